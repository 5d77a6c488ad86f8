{{- /* Name of the account, the source and the Kustomization. The guards and the documentation refer to it. */}}
{{- define "customizer.name" -}}cozystack-customizer{{- end }}

{{- define "customizer.labels" -}}
app.kubernetes.io/name: {{ include "customizer.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- /* The API server's name of the account. */}}
{{- define "customizer.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "customizer.name" . }}
{{- end }}

{{- /* Name of a Secret given as a string or as {name: …}; empty when there is none. */}}
{{- define "customizer.secretName" -}}
{{- if kindIs "map" . }}{{ .name }}{{- else if kindIs "string" . }}{{ . }}{{- end }}
{{- end }}

{{- /*
What a schema cannot say in a way that helps: values that have no default. Included by every template, so that nothing
is rendered without them.
*/}}
{{- define "customizer.validate" -}}
{{- if not .Values.source.url }}
{{- fail "source.url is missing: set it to the https:// or ssh:// URL of the repository that configures the platform (platform value customizer.source.url)" }}
{{- end }}
{{- if not .Values.kustomization.path }}
{{- fail "kustomization.path is missing: set it to the repository's directory to apply, such as ./clusters/prod; `./` is the whole repository (platform value customizer.kustomization.path)" }}
{{- end }}
{{- if and .Values.decryption (not (include "customizer.secretName" .Values.decryption.secretRef)) }}
{{- fail (printf "decryption.secretRef is missing: set it to the Secret in %s that holds the age keys, made beforehand, or leave decryption empty (platform value customizer.decryption.secretRef)" .Release.Namespace) }}
{{- end }}
{{- if and .Values.source.verify.mode (not (include "customizer.secretName" .Values.source.verify.secretRef)) }}
{{- fail (printf "source.verify.secretRef is missing: set it to the Secret in %s that holds the public keys, or leave source.verify.mode empty" .Release.Namespace) }}
{{- end }}
{{- range .Values.rbac.createNamespaces }}
{{- if not (has . $.Values.rbac.ownedNamespaces) }}
{{- fail (printf "rbac.createNamespaces: %s is not one of rbac.ownedNamespaces" .) }}
{{- end }}
{{- if eq . $.Release.Namespace }}
{{- fail (printf "rbac.createNamespaces: %s is the release's own namespace, which exists already" .) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A list of names as elements of a CEL list. The schema leaves nothing in them that would need escaping. */}}
{{- define "customizer.celNames" -}}
{{- $quoted := list }}
{{- range . }}{{- $quoted = append $quoted (printf "'%s'" .) }}{{- end }}
{{- join ", " $quoted }}
{{- end }}
