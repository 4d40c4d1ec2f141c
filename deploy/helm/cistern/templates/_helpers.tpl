{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- define "cistern.selector" -}}
app.kubernetes.io/name: cistern
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cistern.labels" -}}
{{ include "cistern.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "cistern.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* JSON's strings, numbers, switches and lists of strings are TOML's too. */}}
{{- define "cistern.config" -}}
memory = {{ .Values.memory | toRawJson }}
memory_dir = "/memory/cistern"
socket = "/sockets/cistern.sock"
http = "{{ .Values.address }}:{{ .Values.port }}"
clients = {{ .Values.clients | default (list (printf "group:%d" (int .Values.group))) | toRawJson }}
{{- if .Values.flash }}
flash = [
{{- range $at, $one := .Values.flash }}{{ if $at }}, {{ end }}{{ printf "/flash/%d:%s" $at $one.size | toRawJson }}{{ end -}}
]
{{- end }}
{{- if .Values.cell.etcd }}
cell = {{ .Values.cell.etcd | toRawJson }}
cell_key = [
{{- range $at, $one := .Values.cell.keys }}{{ if $at }}, {{ end }}{{ printf "/cell/%s" $one | toRawJson }}{{ end -}}
]
{{- end }}
{{- range $name, $value := .Values.settings }}
{{ $name }} = {{ $value | toRawJson }}
{{- end }}
{{- end }}
