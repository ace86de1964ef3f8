{{- define "rose.name" -}}
{{- $name := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{- $name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "rose.selector" -}}
app.kubernetes.io/name: rose
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rose.labels" -}}
{{ include "rose.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "rose.devices" -}}
{{- if .Values.gpusPerReplica -}}
{{- $devices := list }}{{- range $index := until (int .Values.gpusPerReplica) }}{{- $devices = append $devices (printf "cuda:%d" $index) }}{{- end -}}
{{ join "," $devices }}
{{- else -}}
cpu
{{- end }}
{{- end }}

{{- define "rose.modelClaim" -}}
{{- .Values.modelVolume.existingClaim | default (printf "%s-models" (include "rose.name" .)) }}
{{- end }}
