{{- define "alpacamq.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "alpacamq.selector" -}}
app.kubernetes.io/name: alpacamq
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "alpacamq.labels" -}}
{{ include "alpacamq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "alpacamq.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "alpacamq.headless" -}}
{{ include "alpacamq.name" . }}-nodes
{{- end }}

{{- define "alpacamq.domain" -}}
{{ include "alpacamq.headless" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{- define "alpacamq.clusterSecret" -}}
{{ .Values.cluster.existingSecret | default (printf "%s-cluster" (include "alpacamq.name" .)) }}
{{- end }}

{{- define "alpacamq.tlsSecret" -}}
{{ .Values.tls.existingSecret | default (printf "%s-tls" (include "alpacamq.name" .)) }}
{{- end }}

{{- define "alpacamq.isCluster" -}}
{{- if gt (int .Values.replicas) 1 }}yes{{ end -}}
{{- end }}

{{/* The nodes that found the cluster: never more than vote, so that scaling does not change it. */}}
{{- define "alpacamq.nodes" -}}
{{- $nodes := list }}
{{- range $ordinal := until (int (min .Values.voters .Values.replicas)) }}
{{- $nodes = append $nodes (printf "%d@%s-%d.%s:9093" (add1 $ordinal) (include "alpacamq.name" $) $ordinal (include "alpacamq.domain" $)) }}
{{- end }}
{{- join "," $nodes }}
{{- end }}

{{- define "alpacamq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "alpacamq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* How alpacactl in a pod of its own reaches the cluster. */}}
{{- define "alpacamq.clientEnv" -}}
- {name: ALPACACTL_HTTP, value: "{{ include "alpacamq.name" . }}:8080"}
- {name: ALPACACTL_BROKER, value: "{{ include "alpacamq.name" . }}:9092"}
- {name: ALPACACTL_CONFIG, value: /tmp/alpacactl.toml}
{{- if .Values.auth.enabled }}
- {name: ALPACAMQ_USER, value: admin}
- name: ALPACAMQ_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.auth.existingSecret }}, key: password}}
{{- end }}
{{- if .Values.tls.enabled }}
- {name: ALPACAMQ_CA, value: /run/alpacamq/tls/ca.crt}
{{- end }}
{{- end }}

{{/* The command line of alpacactl in the first pod, for an administrator of Kubernetes. */}}
{{- define "alpacamq.alpacactl" -}}
{{- $namespace := .Release.Namespace }}
{{- if .Values.auth.enabled -}}
kubectl -n {{ $namespace }} get secret {{ .Values.auth.existingSecret }} -o jsonpath='{.data.password}' | base64 --decode |
    kubectl -n {{ $namespace }} exec -i {{ include "alpacamq.name" . }}-0 -c broker -- alpacactl --user admin --password-file /dev/stdin
{{- else -}}
kubectl -n {{ $namespace }} exec {{ include "alpacamq.name" . }}-0 -c broker -- alpacactl
{{- end }}
{{- if .Values.tls.enabled }} --http {{ include "alpacamq.name" . }}:8080 --ca /run/alpacamq/tls/ca.crt{{ end }}
{{- end }}

{{/* Fails with the name of the value for what the schema cannot check. */}}
{{- define "alpacamq.check" -}}
{{- if and .Values.auth.enabled (not .Values.auth.existingSecret) }}
{{- fail "auth.existingSecret is empty: name a Secret with the keys users and password, or set auth.enabled=false" }}
{{- end }}
{{- if and .Values.tls.enabled (not .Values.tls.existingSecret) (not .Values.tls.certManager.enabled) }}
{{- fail "tls.enabled is true: set tls.existingSecret, or tls.certManager.enabled" }}
{{- end }}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuer.name) }}
{{- fail "tls.certManager.issuer.name is empty" }}
{{- end }}
{{- if and .Values.tls.certManager.enabled (not (.Capabilities.APIVersions.Has "cert-manager.io/v1/Certificate")) }}
{{- fail "tls.certManager.enabled is true, and the cluster has no cert-manager.io/v1 Certificate: install cert-manager" }}
{{- end }}
{{- if eq (int .Values.replicas) 2 }}
{{- fail "replicas is 2: with one of two nodes lost, none goes on; use 1 or at least 3" }}
{{- end }}
{{- if and (gt (int .Values.replicas) 1) (gt (int .Values.voters) (int .Values.replicas)) }}
{{- fail (printf "voters (%d) is more than replicas (%d)" (int .Values.voters) (int .Values.replicas)) }}
{{- end }}
{{- end }}
