#!/usr/bin/env bash
# Builds the real parts that the tests run against (etcd, kube-apiserver, Flux, Helm, …) from their published Go
# modules, once, into a cache outside the work tree:
#
#   ${COZY_GITOPS_CACHE:-${XDG_CACHE_HOME:-~/.cache}/cozy-gitops}/
#     peers/<name>-<key>/   one finished build; the key covers the wrapper module, the Go version and the platform
#     bin/<name>            links to the programs of the current versions
#     crds/<name>/          links to the Flux CRDs of the current versions
#
#   peers/build.sh            builds what is missing
#   peers/build.sh <name>…    builds only these parts
#   peers/build.sh --update   rewrites the wrapper modules from `versions` (needs the module proxy), builds nothing
#
# A build happens in a directory of its own and is renamed into place when it is whole, under a lock per part: two
# builds at once do not disturb each other, and an interrupted one is not taken for a finished one.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
cache=${COZY_GITOPS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cozy-gitops}
export GOFLAGS=-trimpath GOWORK=off CGO_ENABLED=0 GOTOOLCHAIN=local

say() { printf 'peers: %s\n' "$*" >&2; }
version() { awk -v name="$1" '$1 == name { print $3 }' "$here/versions"; }
module() { awk -v name="$1" '$1 == name { print $2 }' "$here/versions"; }

# Wrapper modules, and the programs that each builds: <directory>:<package>[,<package>…]
parts=(
  "kustomize:sigs.k8s.io/kustomize/kustomize/v5"
  "etcd:go.etcd.io/etcd/server/v3"
  "helm:helm.sh/helm/v3/cmd/helm"
  "crds:sigs.k8s.io/controller-tools/cmd/controller-gen"
  "kubernetes:k8s.io/kubernetes/cmd/kube-apiserver,k8s.io/kubernetes/cmd/kube-controller-manager,k8s.io/kubernetes/cmd/kubectl"
  "source-controller:github.com/fluxcd/source-controller"
  "kustomize-controller:github.com/fluxcd/kustomize-controller"
  "helm-unittest:github.com/helm-unittest/helm-unittest/cmd/helm-unittest"
  "sops:github.com/getsops/sops/v3/cmd/sops"
  "applications-api:./"
  "age:filippo.io/age/cmd/age,filippo.io/age/cmd/age-keygen"
)

# Name of the program that a package builds.
program() {
  case $1 in
    go.etcd.io/etcd/server/v3) echo etcd ;;
    sigs.k8s.io/kustomize/kustomize/v5) echo kustomize ;;
    ./) echo applications-api ;;
    *) basename "$1" ;;
  esac
}

update() {
  for part in "${parts[@]}"; do
    local name=${part%%:*} packages=${part#*:}
    mkdir -p "$name"
    (
      cd "$name"
      rm -f go.mod go.sum
      {
        echo "// Written by peers/build.sh --update."
        echo "module peers/$name"
        echo
        echo "go 1.26.0"
        echo
        case $name in
          crds)
            echo "require $(module controller-gen) $(version controller-gen)"
            echo "require $(module helm-controller-api) $(version helm-controller-api)"
            echo "require $(module source-watcher-api) $(version source-watcher-api)"
            ;;
          # Our own, on the libraries of the kube-apiserver that it is tested with.
          applications-api)
            local staging; staging=$(version kubernetes | sed 's/^v1/v0/')
            for library in apiextensions-apiserver apimachinery apiserver client-go; do echo "require k8s.io/$library $staging"; done
            ;;
          *) echo "require $(module "$name") $(version "$name")" ;;
        esac
        # A module's replace lines count only in the module itself, so they are repeated here.
        case $name in
          kubernetes)
            local mod; mod=$(go mod download -json "k8s.io/kubernetes@$(version kubernetes)" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
            sed -n 's/^\s*\(k8s.io\/[a-z-]*\) => .\/staging.*/\1/p' "$mod" \
              | awk -v v="$(version kubernetes | sed 's/^v1/v0/')" '{ print "replace " $1 " => " $1 " " v }'
            ;;
          source-controller | kustomize-controller)
            echo "replace github.com/opencontainers/go-digest => github.com/opencontainers/go-digest v1.0.1-0.20220411205349-bde1400a84be"
            # The version that source-controller asks for is not served.
            [ "$name" = kustomize-controller ] || echo "replace github.com/fluxcd/pkg/artifact => github.com/fluxcd/pkg/artifact v0.18.0"
            ;;
          helm-unittest) echo "replace github.com/vmware-labs/yaml-jsonpath => github.com/helm-unittest/yaml-jsonpath v0.4.0" ;;
        esac
        [ "$packages" = ./ ] || for package in ${packages//,/ }; do echo "tool $package"; done
      } > go.mod
      [ "$name" != crds ] || cat > crds.go <<'G'
// Package crds keeps the Flux APIs that controller-gen makes CRDs of in this module's requirements.
package crds

import (
	_ "github.com/fluxcd/helm-controller/api/v2"
	_ "github.com/fluxcd/source-watcher/api/v2/v1beta1"
)
G
      # -e: some modules' own tests need versions that are not served; what we build must be complete, though.
      go mod tidy -e 2> /dev/null || true
      go list -mod=readonly -deps ${packages//,/ } > /dev/null
    )
  done
}

# Raise it when a change below makes other programs of the same modules.
recipe=1

key() { # wrapper module, Go version, platform, recipe
  { cat "$1"/go.mod "$1"/go.sum; cat "$1"/*.go 2> /dev/null || true; go version; echo "$recipe"; } | sha256sum | cut -c1-16
}

# build <name> <packages> <directory>: into the directory; its programs in bin/, its CRDs in crds/.
build() {
  local name=$1 packages=$2 out=$3
  mkdir -p "$out/bin" "$out/crds"
  local ldflags="-s -w"
  if [ "$name" = kubernetes ]; then
    local v; v=$(version kubernetes)
    local minor=${v#v1.}
    for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
      ldflags+=" -X $p.gitVersion=$v -X $p.gitMajor=1 -X $p.gitMinor=${minor%%.*} -X $p.gitTreeState=clean"
    done
  fi
  [ "$name" != helm ] || ldflags+=" -X helm.sh/helm/v3/internal/version.version=$(version helm)"
  (
    cd "$name"
    for package in ${packages//,/ }; do
      go build -mod=readonly -ldflags "$ldflags" -o "$out/bin/$(program "$package")" "$package"
    done
    case $name in
      source-controller | kustomize-controller)
        cp "$(go list -m -f '{{.Dir}}' "github.com/fluxcd/$name")"/config/crd/bases/*.yaml "$out/crds/" ;;
      crds)
        for api in github.com/fluxcd/helm-controller/api/v2 github.com/fluxcd/source-watcher/api/v2/v1beta1; do
          "$out/bin/controller-gen" crd "paths=$api" "output:crd:artifacts:config=$out/crds"
        done ;;
    esac
  )
  chmod -R u+w "$out"
}

case ${1:-} in
  --update) update; exit ;;
  # A process of its own: within `… || …` a shell would run on after a failed command and call half a build whole.
  --build) build "$2" "$3" "$4"; exit ;;
esac

mkdir -p "$cache/peers" "$cache/bin" "$cache/crds"
for part in "${parts[@]}"; do
  name=${part%%:*} packages=${part#*:}
  [ $# = 0 ] || case " $* " in *" $name "*) ;; *) continue ;; esac
  dir=$cache/peers/$name-$(key "$name")
  if [ ! -d "$dir" ]; then
    exec 8> "$cache/peers/$name.lock"
    flock 8
    if [ ! -d "$dir" ]; then
      say "building $name (once; minutes for the larger ones)"
      # Under the lock nobody else builds this part: what is there was interrupted.
      rm -rf "$cache/peers/.$name."*
      work=$(mktemp -d "$cache/peers/.$name.XXXXXX")
      trap 'rm -rf "$work"' EXIT
      ./build.sh --build "$name" "$packages" "$work" >&2 || { say "building $name failed; the Go compiler's words are above"; exit 1; }
      mv "$work" "$dir"
      trap - EXIT
    fi
    exec 8>&-
  fi
  for file in "$dir"/bin/*; do
    [ "$(readlink "$cache/bin/$(basename "$file")" || true)" = "$file" ] || ln -sfn "$file" "$cache/bin/$(basename "$file")"
  done
  if [ -n "$(ls "$dir/crds")" ]; then
    [ "$(readlink "$cache/crds/$name" || true)" = "$dir/crds" ] || ln -sfn "$dir/crds" "$cache/crds/$name"
  fi
done
