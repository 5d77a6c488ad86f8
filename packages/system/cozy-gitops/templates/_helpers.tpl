{{- /* Name of every object of the operator; the admission webhooks refer to the Service by it. */}}
{{- define "cozy-gitops.name" -}}cozy-gitops{{- end }}

{{- define "cozy-gitops.labels" -}}
app: {{ include "cozy-gitops.name" . }}
app.kubernetes.io/name: {{ include "cozy-gitops.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* What the Deployment's pods are selected by; immutable, so it never grows. */}}
{{- define "cozy-gitops.selector" -}}
app: {{ include "cozy-gitops.name" . }}
{{- end }}
