{{- define "gpuwarden.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "gpuwarden.labels" -}}
app.kubernetes.io/name: gpuwarden
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "gpuwarden.selector" -}}
app.kubernetes.io/name: gpuwarden
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "gpuwarden.image" -}}
{{- $image := .root.Values.image -}}
{{- with $image.registry }}{{ . }}/{{ end }}gpuwarden-{{ .part }}
{{- $digest := get $image.digests .part -}}
{{- if $digest }}@{{ $digest }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "gpuwarden.scheme" -}}
{{- if .Values.collector.tls.insecure }}http{{ else }}https{{ end }}
{{- end }}

{{- define "gpuwarden.url" -}}
{{- if .Values.agents.collectorUrl }}{{ .Values.agents.collectorUrl }}
{{- else if not .Values.collector.enabled }}{{ fail "set agents.collectorUrl: collector.enabled is false" }}
{{- else }}{{ include "gpuwarden.scheme" . }}://{{ include "gpuwarden.name" . }}.{{ .Release.Namespace }}.svc:8750
{{- end }}
{{- end }}

{{- /* Secret with the authority that agents believe; empty: the system's. */ -}}
{{- define "gpuwarden.ca" -}}
{{- if ne .Values.agents.caSecret "-" -}}
{{- if .Values.agents.caSecret }}{{ .Values.agents.caSecret }}
{{- else if and .Values.collector.enabled (not .Values.collector.tls.insecure) }}{{ .Values.collector.tls.secret }}
{{- end }}
{{- end }}
{{- end }}
