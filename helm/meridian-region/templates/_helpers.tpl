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

{{/* Image reference, by digest if one is set. Call with (list IMAGE DEFAULT-TAG). */}}
{{- define "region.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default (index . 1) }}{{ end }}
{{- end }}

{{/* Scheduling: where pods may run, and their priority. Call with the values of a component. */}}
{{- define "region.scheduling" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Spread over zones and nodes, unless the values say otherwise. Call with (list ROOT COMPONENT VALUES REPLICAS). */}}
{{- define "region.spread" -}}
{{- $root := index . 0 -}}
{{- if (index . 2).topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml (index . 2).topologySpreadConstraints | nindent 2 }}
{{- else if gt (int (index . 3)) 1 }}
topologySpreadConstraints:
  {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "region.selector" $root | nindent 8 }}
        app.kubernetes.io/component: {{ index $ 1 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* `local` where values of an older chart have no such key. */}}
{{- define "region.storage" -}}
{{ .Values.region.storage | default "local" }}
{{- end }}

{{- define "region.brokers" -}}
{{ .Values.broker.replicas | default 1 | int }}
{{- end }}

{{/* Not empty: the region's brokers share it, each with an id and an address of its own. A region without others shares
even with one, so that adding brokers restarts none; one with others does not, because brokers with an id know no dispatch
scope `origin` yet. */}}
{{- define "region.isShared" -}}
{{- $isAlone := and (eq (include "region.brokers" .) "1") .Values.region.peers -}}
{{- if and (eq (include "region.storage" .) "bookkeeper") (not $isAlone) }}true{{ end -}}
{{- end }}

{{/* Bytes of a volume, such as 20Gi. */}}
{{- define "region.bytes" -}}
{{- $unit := get (dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776) (regexFind "[A-Z]i$" .) | default 1 -}}
{{- mul (regexFind "^[0-9]+" . | int64) (int64 $unit) -}}
{{- end }}

{{- define "region.brokerHost" -}}
{{ include "region.name" . }}-broker.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The part of a broker's DNS name behind its pod's name. */}}
{{- define "region.brokerPods" -}}
{{ include "region.name" . }}-broker-pods.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "region.bookiePods" -}}
{{ include "region.name" . }}-bookie.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "region.brokerUrl" -}}
{{ if .Values.tls.enabled }}pulsar+ssl{{ else }}pulsar{{ end }}://{{ include "region.brokerHost" . }}:{{ if .Values.tls.enabled }}6651{{ else }}6650{{ end }}
{{- end }}

{{- define "region.adminUrl" -}}
{{ if .Values.tls.enabled }}https{{ else }}http{{ end }}://{{ include "region.brokerHost" . }}:{{ if .Values.tls.enabled }}8443{{ else }}8080{{ end }}
{{- end }}

{{- define "region.externalUrl" -}}
{{ if .Values.tls.enabled }}pulsar+ssl{{ else }}pulsar{{ end }}://{{ .Values.external.host }}:{{ .Values.external.port }}
{{- end }}

{{- define "region.tlsSecret" -}}
{{ .Values.tls.existingSecret | default (printf "%s-broker-tls" (include "region.name" .)) }}
{{- end }}

{{/* All three possible members: the certificate contains all their names. */}}
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

{{/* Half of the volume, at most 8 GiB: the log and snapshots need the rest, and a larger database slows etcd down. */}}
{{- define "region.etcdQuota" -}}
{{- min 8589934592 (div (include "region.bytes" .Values.etcd.volume.size | int64) 2) -}}
{{- end }}
