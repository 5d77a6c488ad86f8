// Package crds keeps the Flux APIs that controller-gen makes CRDs of in this module's requirements.
package crds

import (
	_ "github.com/fluxcd/helm-controller/api/v2"
	_ "github.com/fluxcd/source-watcher/api/v2/v1beta1"
)
