{{- /* Names, labels and decisions that several templates share. */}}
{{- define "fractile.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "fractile.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "fractile.dialects" -}}
{{- $names := list -}}
{{- range $name, $on := .Values.dialects }}{{ if $on }}{{ $names = append $names $name }}{{ end }}{{ end -}}
{{- join "," (sortAlpha $names) -}}
{{- end }}

{{- /* ValidatingAdmissionPolicy v1 exists from Kubernetes 1.30 on. */}}
{{- define "fractile.policies" -}}
{{- if and .Values.admissionPolicies.enabled (semverCompare ">=1.30-0" (include "fractile.kubeVersion" .)) }}true{{ end -}}
{{- end }}

{{- /* Whether the control plane chooses nodes over all nodes, for all pods or for those that ask for it. */}}
{{- define "fractile.globalPlacement" -}}
{{- if or .Values.controlPlane.globalPlacement.everywhere .Values.controlPlane.globalPlacement.onRequest }}true{{ end -}}
{{- end }}

{{- /* Whether Kubernetes has this version or a newer one, and so supports a field: list . "1.28". Without matchConditions (1.28)
the API server calls the webhook for every pod. */}}
{{- define "fractile.atLeast" -}}
{{- if semverCompare (printf ">=%s-0" (index . 1)) (include "fractile.kubeVersion" (index . 0)) }}true{{ end -}}
{{- end }}

{{- /* Secret with the extender's certificate, key and CA, by which kube-scheduler calls the extender. */}}
{{- define "fractile.tlsSecret" -}}
{{- if eq .Values.controlPlane.tls.mode "secret" }}{{ .Values.controlPlane.tls.secretName }}{{ else }}fractile-extender-tls{{ end -}}
{{- end }}

{{- /* Whether this upgrade replaces the CA that kube-scheduler trusts: the names have changed, and the CA's key was not kept. */}}
{{- define "fractile.authorityReplaced" -}}
{{- if eq .Values.controlPlane.tls.mode "generated" -}}
{{- with lookup "v1" "Secret" "fractile-system" "fractile-extender-tls" -}}
{{- $same := eq (dig "metadata" "annotations" "fractile.dev/names" "" .) (include "fractile.tlsNames" $) -}}
{{- if not (or $same (dig "data" "ca.key" "" .)) }}true{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Whether it replaces the certificate that the chart created for kube-scheduler, and its CA. */}}
{{- define "fractile.clientReplaced" -}}
{{- if not .Values.controlPlane.clients.secretName -}}
{{- with lookup "v1" "Secret" "fractile-system" "fractile-extender-client" -}}
{{- if ne (dig "metadata" "annotations" "fractile.dev/name" "" .) (first $.Values.controlPlane.clients.names) }}true{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* Secret with the CA of clients, and kube-scheduler's certificate. */}}
{{- define "fractile.clientSecret" -}}
{{- .Values.controlPlane.clients.secretName | default "fractile-extender-client" -}}
{{- end }}

{{- /* The same for the agents' metrics page; empty without TLS. */}}
{{- define "fractile.agentTlsSecret" -}}
{{- if eq .Values.agent.tls.mode "secret" }}{{ .Values.agent.tls.secretName }}{{ else if ne .Values.agent.tls.mode "none" }}fractile-agent-tls{{ end -}}
{{- end }}

{{- define "fractile.tlsNames" -}}
{{- $names := list "fractile.fractile-system.svc" "fractile.fractile-system.svc.cluster.local" "fractile.fractile-system" -}}
{{- if .Values.controlPlane.service.clusterIP }}{{ $names = append $names .Values.controlPlane.service.clusterIP }}{{ end -}}
{{- join "," (concat $names .Values.controlPlane.service.names | uniq) -}}
{{- end }}

{{- define "fractile.webhookNames" -}}
{{- $names := list "fractile-webhook.fractile-system.svc" "fractile-webhook.fractile-system.svc.cluster.local" -}}
{{- with .Values.webhook.url }}{{ $names = append $names (regexReplaceAll ":[0-9]+$" (urlParse .).host "") }}{{ end -}}
{{- join "," (concat $names .Values.webhook.names | uniq) -}}
{{- end }}

{{- define "fractile.priorityClass" -}}
{{- if .Values.controlPlane.priorityClass.name }}{{ .Values.controlPlane.priorityClass.name }}{{ else if .Values.controlPlane.priorityClass.create }}fractile-control-plane{{ end -}}
{{- end }}

{{- /* Address of the API server, if the address that pods get from Kubernetes is wrong. */}}
{{- define "fractile.apiServer" -}}
{{- with .Values.kubernetes }}
{{- if .host }}
- {name: KUBERNETES_SERVICE_HOST, value: {{ .host | quote }}}
- {name: KUBERNETES_SERVICE_PORT, value: {{ .port | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- /* Security context of a pod without any rights on its node. */}}
{{- define "fractile.restricted" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
seccompProfile: {type: RuntimeDefault}
capabilities: {drop: [ALL]}
{{- end }}

{{- define "fractile.kubeVersion" -}}
{{- .Values.kubeVersion | default .Capabilities.KubeVersion.Version -}}
{{- end }}

{{- /* The extender in kube-scheduler's configuration, as `fractile scheduler-config` prints it (tests/charts). */}}
{{- define "fractile.schedulerConfig" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceName: {{ .Values.scheduler.name }}
  resourceNamespace: fractile-system
{{- with .Values.scheduler.percentageOfNodesToScore }}
percentageOfNodesToScore: {{ . }}
{{- end }}
profiles:
  - schedulerName: {{ .Values.scheduler.name }}
extenders:
  - urlPrefix: {{ .Values.scheduler.extender | default "https://fractile.fractile-system.svc" }}/scheduler
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt
    bindVerb: bind
    weight: 100
    enableHTTPS: true
    tlsConfig:
      caFile: /etc/fractile-tls/ca.crt
      certFile: /etc/fractile-client/tls.crt
      keyFile: /etc/fractile-client/tls.key
    httpTimeout: 5s
    nodeCacheCapable: true
    ignorable: false
    managedResources:
      {{- range $name, $hidden := .Files.Get "files/resources.yaml" | fromYaml }}
      - {name: {{ $name }}, ignoredByScheduler: {{ $hidden }}}
      {{- end }}
{{- end }}

{{- /* The action on use outside the ledger if no value sets it. A new release evicts; an upgrade keeps the agents' present
option. Without a cluster (helm template, Argo CD) the two cannot be told apart, so it only warns. */}}
{{- define "fractile.outsideLedger" -}}
{{- if .Values.agent.outsideLedger -}}
{{ .Values.agent.outsideLedger }}
{{- else -}}
{{- $said := "warn" -}}
{{- $there := lookup "apps/v1" "DaemonSet" "fractile-system" "fractile-agent" -}}
{{- if $there -}}
{{- range (first $there.spec.template.spec.containers).args -}}
{{- if hasPrefix "--outside-ledger=" . }}{{ $said = trimPrefix "--outside-ledger=" . }}{{ end -}}
{{- end -}}
{{- else if and .Release.IsInstall (lookup "v1" "Namespace" "" "default") -}}
{{- $said = "evict" -}}
{{- end -}}
{{ $said }}
{{- end -}}
{{- end }}
