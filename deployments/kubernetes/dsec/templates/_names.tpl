{{/* The release's name for one of its parts; cluster-wide objects carry the namespace too. */}}
{{- define "dsec.name" -}}{{ printf "%s-%s" .Release.Name .part | trunc 63 | trimSuffix "-" }}{{- end }}
{{- define "dsec.clusterName" -}}
{{ printf "%s-%s-%s" .Release.Namespace .Release.Name .part | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- define "dsec.selector" -}}
app.kubernetes.io/name: dsec
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}
{{- define "dsec.labels" -}}
{{ include "dsec.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Values.managedBy | default .Release.Service }}
dsec.io/release-namespace: {{ .Release.Namespace }}
{{- end }}
{{- define "dsec.image" -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end }}
{{- define "dsec.gangNamespaces" -}}
{{- toJson (.Values.gangs.namespaces | default (list .Release.Namespace)) -}}
{{- end }}
{{/* The pool's name as pods of gangs carry it: what `label_value` of the Kubernetes adapter makes of it. */}}
{{- define "dsec.poolLabel" -}}
{{ regexReplaceAll "[^A-Za-z0-9_.-]+" .Values.pool "-" | trunc 63 | trimAll "-_." | quote }}
{{- end }}
{{/* The lines of a pod that say what else it may go by: `of` is the part's own values. */}}
{{- define "dsec.placing" -}}
{{- with .of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- define "dsec.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.user }}
runAsGroup: {{ .Values.user }}
fsGroup: {{ .Values.user }}
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "dsec.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
{{- define "dsec.prefectEnv" -}}
{{- range list "PREFECT_API_URL" "PREFECT_API_KEY" "PREFECT_API_AUTH_STRING" }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ $.Values.prefect.secret }}, key: {{ . }}, optional: {{ ne . "PREFECT_API_URL" }}}}
{{- end }}
- name: DSEC_LEDGER_URL
  valueFrom: {secretKeyRef: {name: {{ .Values.ledger.secret }}, key: {{ .Values.ledger.key }}}}
{{- end }}
{{/* Annotations by which a Prometheus that discovers pods finds a port; `port` is that. */}}
{{- define "dsec.scrape" -}}
prometheus.io/scrape: "true"
prometheus.io/path: /metrics
prometheus.io/port: {{ .port | quote }}
{{- end }}
{{/* The part of a NetworkPolicy that lets scrapers in; `port` is where. */}}
{{- define "dsec.scrapers" -}}
{{- with .Values.networkPolicy.metricsFrom }}
ingress:
  - from: {{- toYaml . | nindent 6 }}
    ports: [{protocol: TCP, port: {{ $.port }}}]
{{- end }}
{{- end }}
