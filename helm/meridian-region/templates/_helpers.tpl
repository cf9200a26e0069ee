{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- define "region.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "region.labels" -}}
app.kubernetes.io/name: meridian
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: meridian
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "region.selector" -}}
app.kubernetes.io/name: meridian
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "region.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "region.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "region.brokerUrl" -}}
pulsar://{{ include "region.name" . }}-broker.{{ .Release.Namespace }}.svc:6650
{{- end }}

{{- define "region.adminUrl" -}}
http://{{ include "region.name" . }}-broker.{{ .Release.Namespace }}.svc:8080
{{- end }}


{{/* The three members that there may be: their names stand in the certificate, also of those that are added later. */}}
{{- define "region.etcdHosts" -}}
{{- $service := printf "%s-etcd" (include "region.name" .) -}}
{{- range $i := until 3 }}{{ if $i }},{{ end }}{{ printf "%s-%d.%s.%s.svc" $service $i $service $.Release.Namespace }}{{ end }}
{{- end }}

{{- define "region.etcdScheme" -}}
{{ if .Values.etcd.tls.enabled }}https{{ else }}http{{ end }}
{{- end }}

{{- define "region.etcdUrls" -}}
{{- range $i, $host := slice (splitList "," (include "region.etcdHosts" .)) 0 (int .Values.etcd.replicas) -}}
{{ if $i }},{{ end }}{{ include "region.etcdScheme" $ }}://{{ $host }}:2379
{{- end }}
{{- end }}

{{- define "region.etcdLogin" -}}
{{ .Values.etcd.auth.existingSecret | default (printf "%s-etcd-login" (include "region.name" .)) }}
{{- end }}

{{- define "region.etcdTls" -}}
{{ .Values.etcd.tls.existingSecret | default (printf "%s-etcd-tls" (include "region.name" .)) }}
{{- end }}

{{/* Half of the volume, at most 8 GiB: the log and snapshots need the rest, and etcd grows slow beyond. */}}
{{- define "region.etcdQuota" -}}
{{- $size := .Values.etcd.volume.size -}}
{{- $unit := get (dict "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776) (regexFind "[A-Z]i$" $size) -}}
{{- min 8589934592 (div (mul (regexFind "^[0-9]+" $size | int64) (int64 $unit)) 2) -}}
{{- end }}
