{{- /* What a source's two objects share. The admission layer sets the label too; with it here the chart does not
       depend on that. */}}
{{- define "gitops.labels" -}}
app.kubernetes.io/name: gitops
app.kubernetes.io/instance: {{ .Release.Name | toJson }}
{{- end }}

{{- define "gitops.validate" -}}
{{- if not (hasPrefix "tenant-" .Release.Namespace) }}
{{- fail (printf "namespace %q: repositories belong to tenants, whose namespaces begin with tenant-" .Release.Namespace) }}
{{- end }}
{{- $names := list }}
{{- range .Values.sources }}
{{- if has .name $names }}
{{- fail (printf "sources: the name %q is there twice" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- range $source := .Values.sources }}
{{- range $source.dependsOn }}
{{- if or (not (has . $names)) (eq . $source.name) }}
{{- fail (printf "sources: %q depends on %q, which is not another source" $source.name .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
