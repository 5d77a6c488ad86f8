{{- /* A list of strings as a list literal of CEL. The values' schema keeps quotes and backslashes out of them. */}}
{{- define "cozy-gitops.admission.celList" -}}
[{{ range $i, $item := . }}{{ if $i }}, {{ end }}'{{ $item }}'{{ end }}]
{{- end }}

{{- /* Only namespaces of tenants. By name, which cannot change: labels of a namespace can. */}}
{{- define "cozy-gitops.admission.tenantNamespace" -}}
name: tenant-namespace
expression: request.namespace.startsWith('tenant-')
{{- end }}

{{- /* What is written, and not metadata alone. So finalizers, annotations and whatever lay there before the rules are
       never in a controller's way, and an object that breaks a rule may be changed only into one that breaks none.
       An absent label is another thing than an empty one: Flux's own controllers take the objects without it. */}}
{{- define "cozy-gitops.admission.changed" -}}
name: changed
expression: >-
  request.operation == 'CREATE' || dyn(object.spec) != dyn(oldObject.spec) ||
  object.metadata.?labels[?'sharding.fluxcd.io/key'].orValue('/absent') !=
  oldObject.metadata.?labels[?'sharding.fluxcd.io/key'].orValue('/absent')
{{- end }}

{{- /* The account that applies a tenant's repositories. */}}
{{- define "cozy-gitops.admission.isGitopsAccount" -}}
request.userInfo.username == 'system:serviceaccount:' + request.namespace + ':' + request.namespace + '-gitops'
{{- end }}

{{- /* Whoever writes by the tenant's roles: the role's marker is held here, and the right over the whole cluster is not.
       Platform controllers and administrators hold the second, accounts with roles of their own not the first. */}}
{{- define "cozy-gitops.admission.confined" -}}
authorizer.group('gitops.cozystack.io').resource('confined').namespace(request.namespace).check('write').allowed()
{{- end }}

{{- define "cozy-gitops.admission.binding" -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "cozy-gitops.labels" .root | nindent 4 }}
    gitops.cozystack.io/enforcement: policy
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end }}

{{- define "cozy-gitops.admission.validate" -}}
{{- if and .Values.tenant.enabled (not .Values.operator.enabled) }}
{{- fail "tenant.enabled needs operator.enabled: the operator answers the webhook and makes the tenants' accounts" }}
{{- end }}
{{- end }}

{{- /* What a tenant's objects may refer to by name, as a pattern of CEL: the catalog application's schema asks for the
       same. The whole name, since one such as gitops-../x begins well too. */}}
{{- define "cozy-gitops.admission.reference" -}}
'^gitops-[a-z0-9]([a-z0-9.-]*[a-z0-9])?$'
{{- end }}

{{- /* The bounds of a duration. What the pattern lets through cannot overflow, so that the message is always this one. */}}
{{- define "cozy-gitops.admission.duration" -}}
expression: >-
  {{ if .optional }}!has(variables.spec.{{ .field }}) || {{ end }}(
  variables.spec.{{ .field }}.matches('^([0-9]{1,5}(\\.[0-9]{1,3})?(ms|s|m|h)){1,4}$') &&
  duration(variables.spec.{{ .field }}) >= duration('{{ .min }}') &&
  duration(variables.spec.{{ .field }}) <= duration('{{ .max }}'))
message: >-
  [{{ .rule }}] spec.{{ .field }}: must be a duration between {{ .min }} and {{ .max }}, such as {{ .example | default "5m" }}
reason: Forbidden
{{- end }}

{{- /* Twice: by name here, and by the names of tenants in the match conditions. The platform's own objects never wait
       for the webhook, so that its pods can always be made again. */}}
{{- define "cozy-gitops.admission.notPlatform" -}}
namespaceSelector:
  matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values:
    {{- list .Release.Namespace "cozy-system" "cozy-fluxcd" "kube-system" | uniq | toYaml | nindent 4 }}
{{- end }}

{{- /* What has to be in force before a tenant gets any right. A test holds it against what the chart renders. */}}
{{- define "cozy-gitops.admission.enforcedBy" -}}
{{- $policies := list "applications" "flux-kinds" "gitrepositories" "kustomizations" "metadata" "quota" "secrets" }}
{{- if .Values.admission.dryRunGuard.enabled }}{{ $policies = append $policies "dry-run" }}{{ end }}
{{- $all := list }}
{{- range $policies }}{{ $all = append $all (printf "ValidatingAdmissionPolicy/cozy-gitops-%s" .) }}{{ end }}
{{- if or (ne .Values.admission.mutation "policy") .Values.admission.webhook.prune.enabled }}
{{- $all = append $all "MutatingWebhookConfiguration/cozy-gitops-tenant" }}
{{- end }}
{{- if ne .Values.admission.mutation "webhook" }}
{{- $all = append $all "MutatingAdmissionPolicy/cozy-gitops-stamp" }}
{{- end }}
{{- join "," $all }}
{{- end }}
