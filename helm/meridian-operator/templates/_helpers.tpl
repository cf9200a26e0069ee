{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* Refuses values that an older version of this chart left behind, with the next step. Every template includes it. */}}
{{- define "operator.checks" }}
{{- $missing := list }}
{{- range list "replicas" "regions" "tenantsByNamespace" "verdicts" "tls" "roles" "networkPolicy" "serviceMonitor" }}
{{- if not (hasKey $.Values .) }}{{ $missing = append $missing . }}{{ end }}
{{- end }}
{{- if $missing }}
{{- fail (printf "\n\n* values are missing: %s. The installed release comes from a version of this chart without them, and --reuse-values keeps that version's defaults. Repeat the command with --reset-then-reuse-values in place of --reuse-values%s\n" (join ", " $missing) (ternary ", and list the regions and tenants in a file: -f VALUES (examples/kubernetes/operator.yaml is one)" "" (or (has "regions" $missing) (has "tenantsByNamespace" $missing)))) }}
{{- end }}
{{- if and .Release.IsUpgrade (not .Values.regions) }}
{{- fail "\n\n* regions is empty, so the operator would manage nothing any more: every object would report RegionNotListed, and deletions would wait. Regions are not discovered: list each with its name and adminUrl in a file, -f VALUES (examples/kubernetes/operator.yaml is one)\n" }}
{{- end }}
{{- end }}
