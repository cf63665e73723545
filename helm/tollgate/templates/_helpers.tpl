{{/* Names, labels, and values shared by several templates. */}}

{{- define "tollgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 50 characters, so that suffixes such as -prometheus and that of a pod fit in 63. */}}
{{- define "tollgate.fullname" -}}
{{- $name := include "tollgate.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tollgate.selector" -}}
app.kubernetes.io/name: {{ include "tollgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: ratelimit
{{- end }}

{{- define "tollgate.redisSelector" -}}
app.kubernetes.io/name: {{ include "tollgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: redis
{{- end }}

{{/* Labels of resources of the whole release. */}}
{{- define "tollgate.commonLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tollgate.labels" -}}
{{ include "tollgate.selector" . }}
{{ include "tollgate.commonLabels" . }}
{{- end }}

{{/* Annotations of a resource, within its metadata. Arguments: context, its own annotations, which take precedence. */}}
{{- define "tollgate.annotations" -}}
{{- with merge (dict) (index . 1) (index . 0).Values.commonAnnotations }}
{{- dict "annotations" . | toYaml | nindent 2 }}
{{- end }}
{{- end }}

{{/* Fields of a pod that runs Tollgate's image, each from the value of its name. */}}
{{- define "tollgate.podFields" -}}
{{- range list "dnsPolicy" "hostAliases" "imagePullSecrets" "nodeSelector" "priorityClassName" "runtimeClassName" "schedulerName" "tolerations" }}
{{- $field := . }}
{{- with index $.Values $field }}
{{ dict $field . | toYaml }}
{{- end }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- end }}

{{- define "tollgate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "tollgate.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "tollgate.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag }}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ $tag }}{{ end }}
{{- end }}

{{/* "true" if counters are in Redis. */}}
{{- define "tollgate.onRedis" -}}
{{- if or .Values.redis.url .Values.redis.urlFrom.secretName .Values.redis.dev.enabled }}true{{ end }}
{{- end }}

{{/* "true" if a second Redis has the limits per second. */}}
{{- define "tollgate.onSecondRedis" -}}
{{- if or .Values.redis.perSecond.url .Values.redis.perSecond.urlFrom.secretName }}true{{ end }}
{{- end }}

{{/* Secrets with Redis credentials, as a YAML map by mount name. */}}
{{- define "tollgate.redisSecrets" -}}
{{- with .Values.redis }}
{{- $all := dict "redis-auth" .auth "redis-sentinel-auth" .sentinelAuth "redis-tls" .tls }}
{{- $_ := merge $all (dict "redis-per-second-auth" .perSecond.auth "redis-per-second-sentinel-auth" .perSecond.sentinelAuth) }}
{{- range $name, $values := $all }}
{{- with $values.existingSecret }}
{{ $name }}: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Name of the ConfigMap with the rules; empty with another source. */}}
{{- define "tollgate.rulesConfigMap" -}}
{{- if .Values.rules.existingConfigMap }}
{{- .Values.rules.existingConfigMap }}
{{- else if not .Values.xds.enabled }}
{{- include "tollgate.fullname" . }}-rules
{{- end }}
{{- end }}

{{- define "tollgate.overlayConfigMap" -}}
{{- if .Values.overlay.existingConfigMap }}
{{- .Values.overlay.existingConfigMap }}
{{- else if .Values.overlay.content }}
{{- include "tollgate.fullname" . }}-overlay
{{- end }}
{{- end }}

{{/* The least number of pods. */}}
{{- define "tollgate.podsMin" -}}
{{- .Values.autoscaling.enabled | ternary .Values.autoscaling.minReplicas .Values.replicaCount }}
{{- end }}

{{/* Number of replicas that share a limit during a Redis outage, until heartbeats have counted them. */}}
{{- define "tollgate.replicas" -}}
{{- .Values.onStoreError.replicas | default (include "tollgate.podsMin" . | int) | default 1 | int }}
{{- end }}

{{- define "tollgate.gracePeriod" -}}
{{- $needed := add (int .Values.drainPeriodSeconds) (int .Values.shutdownTimeoutSeconds) }}
{{- .Values.terminationGracePeriodSeconds | default (add $needed 5) | int }}
{{- end }}

{{/* The rules files as a YAML map from name to content. ConfigMap keys cannot contain the slashes of a domain. */}}
{{- define "tollgate.rulesFiles" -}}
{{- $files := deepCopy .Values.rules.files }}
{{- range $name, $text := $files }}
{{- with (fromYaml $text).Error }}
{{- fail (printf "rules.files: %q is not a rules file: %s" $name .) }}
{{- end }}
{{- end }}
{{- range $domain, $rules := .Values.rules.domains }}
{{- $name := printf "%s.yaml" (regexReplaceAll "[^-._a-zA-Z0-9]" $domain "-" | trimPrefix ".") }}
{{- if hasKey $files $name }}
{{- fail (printf "rules.domains: domain %q would be written to the file %q, which exists in rules.files; rename that file" $domain $name) }}
{{- end }}
{{- if hasKey $rules "domain" }}
{{- fail (printf "rules.domains: domain %q contains `domain`; remove that line" $domain) }}
{{- end }}
{{- $_ := set $files $name (printf "domain: %s\n%s" ($domain | toJson) (toYaml $rules)) }}
{{- end }}
{{- toYaml $files }}
{{- end }}

{{/* The overlay as a YAML map from its name to its content. */}}
{{- define "tollgate.overlayFile" -}}
overlay.yaml: |
  {{- toYaml .Values.overlay.content | nindent 2 }}
{{- end }}

{{/*
Rejects combinations of values. The schema has validated each value.
*/}}
{{- define "tollgate.check" -}}
{{- $values := .Values }}
{{- if not $values.image.repository }}
{{- fail (printf "image.repository is empty, and Tollgate is in no public registry: build and push the image with `make image OUTPUT=push IMAGE=registry.example.com/tollgate:%s`, then set image.repository=registry.example.com/tollgate" (default .Chart.AppVersion $values.image.tag)) }}
{{- end }}
{{- $onRedis := include "tollgate.onRedis" . }}
{{- if and (not $onRedis) (gt (int $values.replicaCount) 1) (not $values.autoscaling.enabled) }}
{{- fail (printf "replicaCount is %d without Redis: each pod would count separately and admit the whole limit. Set redis.url (or redis.dev.enabled=true to try it out), or replicaCount=1" (int $values.replicaCount)) }}
{{- end }}
{{- if and (not $onRedis) $values.autoscaling.enabled }}
{{- fail "autoscaling.enabled is true without Redis: each pod would count separately and admit the whole limit. Set redis.url, or autoscaling.enabled=false" }}
{{- end }}
{{- if and $values.autoscaling.enabled (gt (int $values.autoscaling.minReplicas) (int $values.autoscaling.maxReplicas)) }}
{{- fail "autoscaling.minReplicas is greater than autoscaling.maxReplicas" }}
{{- end }}
{{- $addresses := compact (list $values.redis.url $values.redis.urlFrom.secretName (ternary "dev" "" $values.redis.dev.enabled)) }}
{{- if gt (len $addresses) 1 }}
{{- fail "redis.url, redis.urlFrom.secretName and redis.dev.enabled exclude each other: set one of them" }}
{{- end }}
{{- if and (not $onRedis) (or $values.redis.auth.existingSecret $values.redis.sentinelAuth.existingSecret $values.redis.tls.enabled) }}
{{- fail "redis.auth, redis.sentinelAuth and redis.tls have no effect without a Redis: set redis.url" }}
{{- end }}
{{- $onSecondRedis := include "tollgate.onSecondRedis" . }}
{{- if and $onSecondRedis (not $onRedis) }}
{{- fail "redis.perSecond needs a first Redis for all other limits: set redis.url" }}
{{- end }}
{{- if and (not $onSecondRedis) (or $values.redis.perSecond.auth.existingSecret $values.redis.perSecond.tls (ne $values.redis.perSecond.type "single")) }}
{{- fail "redis.perSecond has no address: set redis.perSecond.url" }}
{{- end }}
{{- if and $values.redis.perSecond.url $values.redis.perSecond.urlFrom.secretName }}
{{- fail "redis.perSecond.url and redis.perSecond.urlFrom.secretName exclude each other: set one of them" }}
{{- end }}
{{- if and $values.redis.dev.enabled (ne $values.redis.type "single") }}
{{- fail (printf "redis.dev.enabled deploys a single server, but redis.type is %s: set redis.url to yours, or redis.type=single" $values.redis.type) }}
{{- end }}
{{- range $name, $redis := dict "redis" $values.redis "redis.perSecond" $values.redis.perSecond }}
{{- if and (eq $redis.type "sentinel") $redis.url (not (contains "," $redis.url)) }}
{{- fail (printf "%s.type is sentinel: %s.url is MASTER,HOST:PORT,… with the name of the master and the addresses of the sentinels" $name $name) }}
{{- end }}
{{- if and (eq $redis.type "single") (contains "," $redis.url) }}
{{- fail (printf "%s.url has several addresses, but %s.type is single: set it to sentinel or cluster" $name $name) }}
{{- end }}
{{- if and $redis.sentinelAuth.existingSecret (ne $redis.type "sentinel") }}
{{- fail (printf "%s.sentinelAuth is for sentinels: set %s.type=sentinel" $name $name) }}
{{- end }}
{{- end }}
{{- if and $values.redis.tls.clientCertificate (not $values.redis.tls.existingSecret) }}
{{- fail "redis.tls.clientCertificate is true: set redis.tls.existingSecret to a Secret with tls.crt and tls.key" }}
{{- end }}
{{- if and (not $values.redis.tls.enabled) (not $values.redis.perSecond.tls) (or $values.redis.tls.existingSecret $values.redis.tls.clientCertificate) }}
{{- fail "redis.tls.existingSecret has no effect unless redis.tls.enabled=true or redis.perSecond.tls=true" }}
{{- end }}
{{- with $values.trial }}
{{- if and (not .upstream) (or .tls.enabled .enforcePercent) }}
{{- fail "trial.tls and trial.enforcePercent have no effect without a service in use: set trial.upstream" }}
{{- end }}
{{- if and (not .tls.enabled) (or .tls.existingSecret .tls.clientCertificate .tls.serverName) }}
{{- fail "trial.tls.existingSecret, clientCertificate and serverName have no effect unless trial.tls.enabled=true" }}
{{- end }}
{{- if and .tls.clientCertificate (not .tls.existingSecret) }}
{{- fail "trial.tls.clientCertificate is true: set trial.tls.existingSecret to a Secret with tls.crt and tls.key" }}
{{- end }}
{{- end }}
{{- if and $values.tls.enabled (not $values.tls.secretName) }}
{{- fail "tls.enabled is true: set tls.secretName to a Secret with tls.crt and tls.key" }}
{{- end }}
{{- if and $values.tls.clientCA.enabled (not $values.tls.enabled) }}
{{- fail "tls.clientCA.enabled is true: client certificates require tls.enabled=true" }}
{{- end }}
{{- if and $values.tls.clientCA.san (not $values.tls.clientCA.enabled) }}
{{- fail "tls.clientCA.san has no effect unless tls.clientCA.enabled=true" }}
{{- end }}
{{- $ownRules := or $values.rules.domains $values.rules.files }}
{{- if and $ownRules $values.rules.existingConfigMap }}
{{- fail "rules.existingConfigMap replaces rules.domains and rules.files: set only one of them" }}
{{- end }}
{{- if $values.xds.enabled }}
{{- if or $ownRules $values.rules.existingConfigMap }}
{{- fail "xds.enabled is true: rules come from the control plane, so rules.* must be empty" }}
{{- end }}
{{- if not $values.xds.serverURL }}
{{- fail "xds.enabled is true: set xds.serverURL to the control plane's HOST:PORT" }}
{{- end }}
{{- if eq $values.xds.nodeID "envoy-ratelimit" }}
{{- fail "xds.nodeID is envoy-ratelimit: Envoy Gateway serves that node id to the rate limit service that it deploys itself, and its Envoys call only that one. Do not install this chart for Envoy Gateway; set Tollgate's image in the EnvoyGateway configuration, as in deploy/envoy-gateway/envoy-gateway.yaml" }}
{{- end }}
{{- if and $values.xds.tls.enabled (not $values.xds.tls.secretName) }}
{{- fail "xds.tls.enabled is true: set xds.tls.secretName to a Secret with tls.crt, tls.key and ca.crt" }}
{{- end }}
{{- end }}
{{- with $values.settings.DEBUG_HOST }}
{{- if or (hasPrefix "127." .) (has . (list "::1" "localhost")) }}
{{- fail (printf "settings.DEBUG_HOST is %s: the kubelet's probes, and other pods, reach the admin port at the address of the pod. Remove it; networkPolicy.ingress.admin restricts the port" .) }}
{{- end }}
{{- end }}
{{- if and $values.overlay.content $values.overlay.existingConfigMap }}
{{- fail "overlay.existingConfigMap replaces overlay.content: set only one of them" }}
{{- end }}
{{- if and $values.tracing.enabled (not $values.tracing.endpoint) }}
{{- fail "tracing.enabled is true: set tracing.endpoint, such as http://otel-collector.observability:4318" }}
{{- end }}
{{- if and $values.service.nodePort (eq $values.service.type "ClusterIP") }}
{{- fail "service.nodePort has no effect with service.type=ClusterIP: set service.type=NodePort" }}
{{- end }}
{{- if and $values.service.loadBalancerClass (ne $values.service.type "LoadBalancer") }}
{{- fail (printf "service.loadBalancerClass has no effect with service.type=%s: set service.type=LoadBalancer" $values.service.type) }}
{{- end }}
{{- $needed := add (int $values.drainPeriodSeconds) (int $values.shutdownTimeoutSeconds) }}
{{- if lt (int (include "tollgate.gracePeriod" .)) (int $needed) }}
{{- fail (printf "terminationGracePeriodSeconds is %d: drainPeriodSeconds and shutdownTimeoutSeconds need %d, or calls are interrupted" (int $values.terminationGracePeriodSeconds) $needed) }}
{{- end }}
{{- if and (not $values.metrics.enabled) (or $values.metrics.serviceMonitor.enabled $values.metrics.podMonitor.enabled) }}
{{- fail "metrics.serviceMonitor and metrics.podMonitor scrape ports.metrics: set metrics.enabled=true" }}
{{- end }}
{{- if and $values.metrics.serviceMonitor.enabled $values.metrics.podMonitor.enabled }}
{{- fail "metrics.serviceMonitor and metrics.podMonitor would scrape every pod twice: enable only one of them" }}
{{- end }}
{{- if $values.istio.envoyFilter.enabled }}
{{- if or (not $values.istio.envoyFilter.domain) (not $values.istio.envoyFilter.rateLimits) }}
{{- fail "istio.envoyFilter.enabled is true: set istio.envoyFilter.domain, and the descriptors of each request in istio.envoyFilter.rateLimits" }}
{{- end }}
{{- end }}
{{- $ports := list (int $values.ports.grpc) (int $values.ports.http) (int $values.ports.admin) (int $values.ports.metrics) }}
{{- if lt (len (uniq $ports)) 4 }}
{{- fail "ports: two ports are equal" }}
{{- end }}
{{- end }}
