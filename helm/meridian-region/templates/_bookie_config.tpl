{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* The bookies' configuration, BookKeeper's bk_server.conf. docs/operations.md explains what an operator has to know about it. */}}

{{/* The keys that the chart itself sets; each pod adds `bookieId` and `advertisedAddress`. */}}
{{- define "region.ownBookieSettings" -}}
metadataServiceUri: metadata-store:etcd:{{ include "region.etcdUrls" . | replace "," ";" }}?configFilePath=/etc/bookkeeper/config/etcd.yaml
bookiePort: "3181"
journalDirectories: /data/journal
ledgerDirectories: /data/ledgers
indexDirectories: /data/ledgers
# Not inside a bookie, which would exit with it whenever etcd was away for longer than the lease.
autoRecoveryDaemonEnabled: "false"
# One port for all, encrypted when the client asks for it.
tlsProviderFactoryClass: org.apache.bookkeeper.tls.TLSContextFactory
tlsProvider: OpenSSL
tlsClientAuthentication: "true"
tlsKeyStoreType: PEM
tlsKeyStore: /etc/bookkeeper/tls/bookie.key
tlsCertificatePath: /etc/bookkeeper/tls/bookie.crt
tlsTrustStoreType: PEM
tlsTrustStore: /etc/bookkeeper/tls/ca.crt
tlsHostnameVerificationEnabled: "true"
tlsCertFilesRefreshDurationSeconds: "300"
clientKeyStoreType: PEM
clientKeyStore: /etc/bookkeeper/tls/bookie.key
clientTrustStoreType: PEM
clientTrustStore: /etc/bookkeeper/tls/ca.crt
# The room that a broker's maxMessageSize needs.
nettyMaxFrameSizeBytes: {{ add (include "region.settingText" ((.Values.broker.config | default dict).maxMessageSize | default 5242880) | int) 10240 | quote }}
{{- end }}

{{/* The keys that differ from BookKeeper's defaults; values may set them otherwise. */}}
{{- define "region.bookieDefaults" -}}
ledgerStorageClass: org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
digestType: CRC32C
# A ledger that etcd does not list is deleted only if its metadata cannot be found either.
verifyMetadataOnGC: "true"
gcWaitTime: "600000"
# Seconds after etcd lost sight of a bookie until its ledgers are copied: a pod that is replaced copies nothing.
lostBookieRecoveryDelay: "600"
# Milliseconds of the lease by which a bookie is registered.
zkTimeout: "10000"
journalMaxSizeMB: "1024"
journalMaxBackups: "0"
httpServerEnabled: "false"
enableStatistics: "false"
extraServerComponents: ""
{{- end }}

{{- define "region.bookieConf" -}}
{{- $chosen := dict }}
{{- range $key, $value := .Values.bookies.config }}
{{- $isFraction := and (kindIs "float64" $value) (ne (toString (floor $value)) (toString $value)) }}
{{- $_ := set $chosen $key ($isFraction | ternary (toString $value) (include "region.settingText" $value)) }}
{{- end }}
{{- range $key, $value := merge (include "region.ownBookieSettings" . | fromYaml) $chosen (include "region.bookieDefaults" . | fromYaml) }}
{{- $key }}={{ $value }}
{{ end }}
{{- end }}

{{/* How bookies reach etcd, for Pulsar's driver, which logs in by certificate. All members show one certificate. */}}
{{- define "region.bookieEtcd" -}}
useTls: true
tlsTrustCertsFilePath: /etc/bookkeeper/tls/ca.crt
tlsCertificateFilePath: /etc/bookkeeper/tls/client.crt
tlsKeyFilePath: /etc/bookkeeper/tls/client.key
authority: {{ splitList "," (include "region.etcdHosts" .) | first }}
{{- end }}

{{- define "region.bookieConfigData" -}}
{{- dict "bookie.conf" (include "region.bookieConf" .) "etcd.yaml" (include "region.bookieEtcd" .) | toYaml -}}
{{- end }}

{{/* The StatefulSets of bookies: one, or one in each zone, which the bookies' ids then name. */}}
{{- define "region.bookieSets" -}}
{{- $replicas := int .Values.bookies.replicas -}}
{{- $zones := .Values.bookies.zones | default list -}}
{{- if $zones }}
{{- range $i, $zone := $zones }}
- {part: {{ printf "bookie-%s" $zone | quote }}, zone: {{ $zone | quote }}, replicas: {{ add (div $replicas (len $zones)) (ternary 1 0 (lt $i (mod $replicas (len $zones) | int))) }}}
{{- end }}
{{- else }}
- {part: bookie, zone: "", replicas: {{ $replicas }}}
{{- end }}
{{- end }}

{{/* The brokers' setting: in which zone each bookie is. */}}
{{- define "region.bookieZones" -}}
{{- $found := list -}}
{{- range $zone := .Values.bookies.zones -}}
{{- $found = append $found (printf "%s-bookie-%s-*=%s" (include "region.name" $) $zone $zone) -}}
{{- end -}}
{{- join "," $found -}}
{{- end }}

{{/* An amount of memory, such as 512Mi, in Java's notation. */}}
{{- define "region.javaSize" -}}
{{- . | trimSuffix "i" | lower -}}
{{- end }}

{{/* The beginning of a pod that uses the bookies' configuration and certificates. */}}
{{- define "region.awaitEtcd" -}}
# Until a broker's pod has let bookies into etcd (container secure-etcd).
name: await-etcd
image: {{ include "region.image" (list .Values.broker.image .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.broker.image.pullPolicy }}
args:
  - await-etcd
  - --set=metadataStoreUrl=etcd:{{ include "region.etcdUrls" . }}
  - --set=metadataStoreTrustCertsFilePath=/etc/bookkeeper/tls/ca.crt
  - --set=metadataStoreCertificateFilePath=/etc/bookkeeper/tls/client.crt
  - --set=metadataStoreKeyFilePath=/etc/bookkeeper/tls/client.key
resources:
  requests: {cpu: 10m, memory: 64Mi}
  limits: {memory: 256Mi}
securityContext: {{- include "region.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: tls, mountPath: /etc/bookkeeper/tls, readOnly: true}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "region.bookieVolumes" -}}
- name: config
  configMap: {name: {{ include "region.name" . }}-bookie}
- name: tls
  secret:
    secretName: {{ include "region.etcdTls" . }}
    defaultMode: 0440
    items:
      - {key: ca.crt, path: ca.crt}
      - {key: bookie.crt, path: bookie.crt}
      - {key: bookie.key, path: bookie.key}
      - {key: bookie-client.crt, path: client.crt}
      - {key: bookie-client.key, path: client.key}
- name: tmp
  emptyDir: {}
{{- end }}
