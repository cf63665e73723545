{{/* Names, labels, and what several templates have to agree on. */}}

{{- define "tollgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 50 characters, so that -prometheus and the like, and a pod's own suffix, still fit in 63. */}}
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

{{/* Labels of what belongs to the release as a whole. */}}
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

{{/* "true" if counts are kept in Redis. */}}
{{- define "tollgate.onRedis" -}}
{{- if or .Values.redis.url .Values.redis.urlFrom.secretName .Values.redis.dev.enabled }}true{{ end }}
{{- end }}

{{/* "true" if limits of a second are counted in a Redis of their own. */}}
{{- define "tollgate.onSecondRedis" -}}
{{- if or .Values.redis.perSecond.url .Values.redis.perSecond.urlFrom.secretName }}true{{ end }}
{{- end }}

{{/* Secrets with credentials of Redis, as a YAML map of what each is mounted as. */}}
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

{{/* The ConfigMap with the rules, or nothing where they come from elsewhere. */}}
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

{{/* Among how many a limit is shared while Redis is gone. With autoscaling the most there may be: too strict is the safe side. */}}
{{- define "tollgate.replicas" -}}
{{- $pods := .Values.autoscaling.enabled | ternary .Values.autoscaling.maxReplicas .Values.replicaCount }}
{{- .Values.onStoreError.replicas | default $pods | default 1 | int }}
{{- end }}

{{- define "tollgate.gracePeriod" -}}
{{- $needed := add (int .Values.drainPeriodSeconds) (int .Values.shutdownTimeoutSeconds) }}
{{- .Values.terminationGracePeriodSeconds | default (add $needed 5) | int }}
{{- end }}

{{/* The rules files, name and text, as one YAML map. A domain may have slashes in its name, which a ConfigMap's key may not. */}}
{{- define "tollgate.rulesFiles" -}}
{{- $files := deepCopy .Values.rules.files }}
{{- range $domain, $rules := .Values.rules.domains }}
{{- $name := printf "%s.yaml" (regexReplaceAll "[^-._a-zA-Z0-9]" $domain "-" | trimPrefix ".") }}
{{- if hasKey $files $name }}
{{- fail (printf "rules.domains: domain %q would be written to the file %q, which is there already; give it as rules.files under another name" $domain $name) }}
{{- end }}
{{- if hasKey $rules "domain" }}
{{- fail (printf "rules.domains: domain %q says its name again, as `domain`; take that line out" $domain) }}
{{- end }}
{{- $_ := set $files $name (printf "domain: %s\n%s" ($domain | toJson) (toYaml $rules)) }}
{{- end }}
{{- toYaml $files }}
{{- end }}

{{/*
What is wrong with values that are right one by one. The schema has looked at each before.
*/}}
{{- define "tollgate.check" -}}
{{- $values := .Values }}
{{- if not $values.image.repository }}
{{- fail (printf "image.repository is empty, and Tollgate is in no public registry: build and push the image with `make image OUTPUT=push IMAGE=registry.example.com/tollgate:%s`, then set image.repository=registry.example.com/tollgate" (default .Chart.AppVersion $values.image.tag)) }}
{{- end }}
{{- $onRedis := include "tollgate.onRedis" . }}
{{- if and (not $onRedis) (gt (int $values.replicaCount) 1) (not $values.autoscaling.enabled) }}
{{- fail (printf "replicaCount is %d, and there is no Redis: each pod would count for itself, and allow the whole limit. Set redis.url (or redis.dev.enabled=true to try it out), or replicaCount=1" (int $values.replicaCount)) }}
{{- end }}
{{- if and (not $onRedis) $values.autoscaling.enabled }}
{{- fail "autoscaling.enabled is true, and there is no Redis: each pod would count for itself, and allow the whole limit. Set redis.url, or autoscaling.enabled=false" }}
{{- end }}
{{- if and $values.autoscaling.enabled (gt (int $values.autoscaling.minReplicas) (int $values.autoscaling.maxReplicas)) }}
{{- fail "autoscaling.minReplicas is more than autoscaling.maxReplicas" }}
{{- end }}
{{- $addresses := compact (list $values.redis.url $values.redis.urlFrom.secretName (ternary "dev" "" $values.redis.dev.enabled)) }}
{{- if gt (len $addresses) 1 }}
{{- fail "redis.url, redis.urlFrom.secretName and redis.dev.enabled each say where Redis is: set one of them" }}
{{- end }}
{{- if and (not $onRedis) (or $values.redis.auth.existingSecret $values.redis.sentinelAuth.existingSecret $values.redis.tls.enabled) }}
{{- fail "redis.auth, redis.sentinelAuth and redis.tls say how to talk to Redis, and nothing says where it is: set redis.url" }}
{{- end }}
{{- $onSecondRedis := include "tollgate.onSecondRedis" . }}
{{- if and $onSecondRedis (not $onRedis) }}
{{- fail "redis.perSecond is for limits of a second, and nothing says where all others are counted: set redis.url" }}
{{- end }}
{{- if and (not $onSecondRedis) (or $values.redis.perSecond.auth.existingSecret $values.redis.perSecond.tls (ne $values.redis.perSecond.type "single")) }}
{{- fail "redis.perSecond says how to talk to a second Redis, and not where it is: set redis.perSecond.url" }}
{{- end }}
{{- if and $values.redis.perSecond.url $values.redis.perSecond.urlFrom.secretName }}
{{- fail "redis.perSecond.url and redis.perSecond.urlFrom.secretName each say where the second Redis is: set one of them" }}
{{- end }}
{{- if and $values.redis.dev.enabled (ne $values.redis.type "single") }}
{{- fail (printf "redis.dev.enabled brings one server, and redis.type is %s: set redis.url to yours, or redis.type=single" $values.redis.type) }}
{{- end }}
{{- range $name, $redis := dict "redis" $values.redis "redis.perSecond" $values.redis.perSecond }}
{{- if and (eq $redis.type "sentinel") $redis.url (not (contains "," $redis.url)) }}
{{- fail (printf "%s.type is sentinel: %s.url is MASTER,HOST:PORT,… with what the sentinels call the master, and where they are" $name $name) }}
{{- end }}
{{- if and (eq $redis.type "single") (contains "," $redis.url) }}
{{- fail (printf "%s.url has several addresses, and %s.type is single: set it to sentinel or cluster" $name $name) }}
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
{{- if and $values.tls.enabled (not $values.tls.secretName) }}
{{- fail "tls.enabled is true: set tls.secretName to a Secret with tls.crt and tls.key" }}
{{- end }}
{{- if and $values.tls.clientCA.enabled (not $values.tls.enabled) }}
{{- fail "tls.clientCA.enabled is true: certificates of callers need tls.enabled=true" }}
{{- end }}
{{- if and $values.tls.clientCA.san (not $values.tls.clientCA.enabled) }}
{{- fail "tls.clientCA.san has no effect unless tls.clientCA.enabled=true" }}
{{- end }}
{{- $ownRules := or $values.rules.domains $values.rules.files }}
{{- if and $ownRules $values.rules.existingConfigMap }}
{{- fail "rules.existingConfigMap takes the place of rules.domains and rules.files: set either" }}
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
{{- if and $values.overlay.content $values.overlay.existingConfigMap }}
{{- fail "overlay.existingConfigMap takes the place of overlay.content: set either" }}
{{- end }}
{{- if and $values.tracing.enabled (not $values.tracing.endpoint) }}
{{- fail "tracing.enabled is true: set tracing.endpoint, such as http://otel-collector.observability:4318" }}
{{- end }}
{{- $needed := add (int $values.drainPeriodSeconds) (int $values.shutdownTimeoutSeconds) }}
{{- if lt (int (include "tollgate.gracePeriod" .)) (int $needed) }}
{{- fail (printf "terminationGracePeriodSeconds is %d: drainPeriodSeconds and shutdownTimeoutSeconds need %d, or calls are cut off" (int $values.terminationGracePeriodSeconds) $needed) }}
{{- end }}
{{- if and (not $values.metrics.enabled) (or $values.metrics.serviceMonitor.enabled $values.metrics.podMonitor.enabled) }}
{{- fail "metrics.serviceMonitor and metrics.podMonitor scrape ports.metrics: set metrics.enabled=true" }}
{{- end }}
{{- if and $values.metrics.serviceMonitor.enabled $values.metrics.podMonitor.enabled }}
{{- fail "metrics.serviceMonitor and metrics.podMonitor would scrape every pod twice: enable either" }}
{{- end }}
{{- if and $values.metrics.prometheusRule.enabled (not $values.metrics.prometheusRule.runbookURL) }}
{{- fail "metrics.prometheusRule.enabled is true: set metrics.prometheusRule.runbookURL to the absolute URL of docs/operations.md where you publish it, such as https://git.example.com/tollgate/blob/main/docs/operations.md" }}
{{- end }}
{{- if $values.istio.envoyFilter.enabled }}
{{- if or (not $values.istio.envoyFilter.domain) (not $values.istio.envoyFilter.rateLimits) }}
{{- fail "istio.envoyFilter.enabled is true: set istio.envoyFilter.domain, and in istio.envoyFilter.rateLimits what is asked about each request" }}
{{- end }}
{{- end }}
{{- $ports := list (int $values.ports.grpc) (int $values.ports.http) (int $values.ports.admin) (int $values.ports.metrics) }}
{{- if lt (len (uniq $ports)) 4 }}
{{- fail "ports: two of them are the same" }}
{{- end }}
{{- end }}
