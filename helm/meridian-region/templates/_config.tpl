{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* The broker's configuration. A ConfigMap holds it, and the pods carry its checksum. */}}

{{/* The settings that the chart itself sets. All are always present, so that checks.yaml knows them, but for those that
differ between brokers of one region: each pod adds these to its command line. */}}
{{- define "region.ownSettings" -}}
{{- $etcdTls := .Values.etcd.tls.enabled -}}
{{- $tls := .Values.tls.enabled -}}
{{- $storage := include "region.storage" . -}}
{{- $bookieTls := and $etcdTls (eq $storage "bookkeeper") -}}
{{- $listeners := list (printf "internal:%s" (include "region.brokerUrl" .)) -}}
{{- if .Values.external.enabled }}{{ $listeners = append $listeners (printf "external:%s" (include "region.externalUrl" .)) }}{{ end -}}
clusterName: {{ .Values.region.name | quote }}
dataDirectory: /data
managedLedgerStorage: {{ $storage }}
bookkeeperTLSTrustCertsFilePath: {{ if $bookieTls }}/etc/meridian/etcd/ca.crt{{ else }}""{{ end }}
bookkeeperTLSCertificateFilePath: {{ if $bookieTls }}/etc/meridian/etcd/client.crt{{ else }}""{{ end }}
bookkeeperTLSKeyFilePath: {{ if $bookieTls }}/etc/meridian/etcd/client.key{{ else }}""{{ end }}
{{- if and (eq $storage "bookkeeper") .Values.bookies.zones }}
bookieZones: {{ include "region.bookieZones" . | quote }}
{{- end }}
metadataStoreUrl: etcd:{{ include "region.etcdUrls" . }}
metadataStoreUser: meridian
metadataStorePasswordFile: /etc/meridian/etcd/password
metadataStoreTrustCertsFilePath: {{ if $etcdTls }}/etc/meridian/etcd/ca.crt{{ else }}""{{ end }}
metadataStoreCertificateFilePath: {{ if $etcdTls }}/etc/meridian/etcd/client.crt{{ else }}""{{ end }}
metadataStoreKeyFilePath: {{ if $etcdTls }}/etc/meridian/etcd/client.key{{ else }}""{{ end }}
regionsFile: /etc/meridian/config/regions.json
peerTokenFile: /etc/meridian/tokens/peer.token
authenticationEnabled: "true"
insecure: "false"
tokenSecretKey: /etc/meridian/tokens
superUserRoles: {{ join "," .Values.auth.superUserRoles | quote }}
bindAddress: 0.0.0.0
bindAddresses: ""
brokerId: ""
brokerServicePort: "6650"
webServicePort: "8080"
probeServicePort: "8081"
brokerServicePortTls: "6651"
webServicePortTls: "8443"
tlsCertificateFilePath: {{ if $tls }}/etc/meridian/tls/tls.crt{{ else }}""{{ end }}
tlsKeyFilePath: {{ if $tls }}/etc/meridian/tls/tls.key{{ else }}""{{ end }}
brokerClientTlsEnabled: {{ $tls | quote }}
brokerClientTrustCertsFilePath: {{ if $tls }}/etc/meridian/tls/ca.crt{{ else }}""{{ end }}
advertisedAddress: {{ include "region.brokerHost" . }}
internalListenerName: internal
advertisedListeners: {{ join "," $listeners | quote }}
{{- end }}

{{/* Helm stores numbers as floats, which would be rendered as 6e+06. */}}
{{- define "region.settingText" -}}
{{- if kindIs "float64" . }}{{ printf "%.0f" . }}{{ else }}{{ toString . }}{{ end -}}
{{- end }}

{{- define "region.brokerConf" -}}
{{- range $key, $value := include "region.ownSettings" . | fromYaml }}
{{- $key }}={{ $value }}
{{ end }}
{{- range $key, $value := .Values.broker.config }}
{{- $key }}={{ include "region.settingText" $value }}
{{ end }}
{{- end }}

{{- define "region.regionsJson" -}}
{{- $kind := ternary "_tls" "" .Values.tls.enabled -}}
{{- $all := list (dict "name" .Values.region.name "serviceUrl" (include "region.brokerUrl" .) "adminUrl" (include "region.adminUrl" .)) -}}
{{- $regions := list -}}
{{- range concat $all (.Values.region.peers | default list) -}}
{{- $one := dict "name" .name "service_url" "" "admin_url" "" -}}
{{- $_ := set $one (printf "service_url%s" $kind) .serviceUrl -}}
{{- $_ := set $one (printf "admin_url%s" $kind) .adminUrl -}}
{{- $regions = append $regions $one -}}
{{- end -}}
{{- dict "regions" $regions | toPrettyJson -}}
{{- end }}

{{- define "region.configData" -}}
{{- dict "broker.conf" (include "region.brokerConf" .) "regions.json" (include "region.regionsJson" .) | toYaml -}}
{{- end }}
