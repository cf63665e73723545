{{/* Environment variables of Tollgate's container. */}}

{{/* Formats an integer: templates treat numbers as floats, and 1048576 would print as 1.048576e+06. */}}
{{- define "tollgate.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ toString . }}{{ end }}
{{- end }}

{{/* Variables of the URL and type of a Redis. Arguments: prefix of the variables, values. */}}
{{- define "tollgate.redisPlace" -}}
{{- $begin := index . 0 }}
{{- with index . 1 }}
{{- if ne .type "single" }}
- {name: {{ $begin }}_TYPE, value: {{ .type | quote }}}
{{- end }}
{{- if .url }}
- {name: {{ $begin }}_URL, value: {{ .url | quote }}}
{{- else }}
- name: {{ $begin }}_URL
  valueFrom: {secretKeyRef: {name: {{ .urlFrom.secretName | quote }}, key: {{ .urlFrom.key | quote }}}}
{{- end }}
{{- end }}
{{- end }}

{{/* Variables of its password files. Arguments: prefix of the variables, prefix of the volumes, values. */}}
{{- define "tollgate.redisSecretFiles" -}}
{{- $begin := index . 0 }}
{{- $volume := index . 1 }}
{{- with index . 2 }}
{{- if .auth.existingSecret }}
- {name: {{ $begin }}_AUTH_FILE, value: {{ printf "/etc/tollgate/%s-auth/%s" $volume .auth.key | quote }}}
{{- end }}
{{- if .sentinelAuth.existingSecret }}
- {name: {{ $begin }}_SENTINEL_AUTH_FILE, value: {{ printf "/etc/tollgate/%s-sentinel-auth/%s" $volume .sentinelAuth.key | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "tollgate.chartEnv" -}}
{{- $values := .Values }}
- {name: LOG_LEVEL, value: {{ $values.log.level | quote }}}
- {name: LOG_FORMAT, value: {{ $values.log.format | quote }}}
- {name: GRPC_PORT, value: {{ include "tollgate.text" $values.ports.grpc | quote }}}
- {name: PORT, value: {{ include "tollgate.text" $values.ports.http | quote }}}
- {name: DEBUG_PORT, value: {{ include "tollgate.text" $values.ports.admin | quote }}}
{{- with $values.admin.hosts }}
- {name: ADMIN_HOSTS, value: {{ join "," . | quote }}}
{{- end }}
- {name: ADMIN_REDACT, value: {{ $values.admin.redact | quote }}}
{{- with $values.admin.token }}
{{- if .existingSecret }}
- {name: ADMIN_TOKEN_FILE, value: {{ printf "/etc/tollgate/admin-token/%s" .key | quote }}}
{{- end }}
{{- end }}
{{- with $values.admin.readToken }}
{{- if .existingSecret }}
- {name: ADMIN_READ_TOKEN_FILE, value: {{ printf "/etc/tollgate/admin-read-token/%s" .key | quote }}}
{{- end }}
{{- end }}
{{- if $values.metrics.enabled }}
- {name: USE_PROMETHEUS, value: "true"}
- {name: PROMETHEUS_ADDR, value: {{ printf ":%s" (include "tollgate.text" $values.ports.metrics) | quote }}}
{{- end }}
- {name: DRAIN_PERIOD, value: {{ printf "%ss" (include "tollgate.text" $values.drainPeriodSeconds) | quote }}}
- {name: SHUTDOWN_TIMEOUT, value: {{ printf "%ss" (include "tollgate.text" $values.shutdownTimeoutSeconds) | quote }}}
- {name: CACHE_KEY_FORMAT, value: {{ $values.cacheKeyFormat | quote }}}
{{- with $values.cacheKeyPrefix }}
- {name: CACHE_KEY_PREFIX, value: {{ . | quote }}}
{{- end }}
{{- with $values.defaultAlgorithm }}
- {name: DEFAULT_ALGORITHM, value: {{ . | quote }}}
{{- end }}
{{- if include "tollgate.overlayConfigMap" . }}
- {name: TOLLGATE_OVERLAY, value: /etc/tollgate/overlay/overlay.yaml}
{{- end }}
{{- if $values.xds.enabled }}
- {name: CONFIG_TYPE, value: GRPC_XDS_SOTW}
- {name: CONFIG_GRPC_XDS_SERVER_URL, value: {{ $values.xds.serverURL | quote }}}
- {name: CONFIG_GRPC_XDS_NODE_ID, value: {{ $values.xds.nodeID | quote }}}
- {name: FORCE_START_WITHOUT_INITIAL_CONFIG, value: {{ $values.xds.forceStart | quote }}}
{{- if $values.xds.tls.enabled }}
- {name: CONFIG_GRPC_XDS_SERVER_USE_TLS, value: "true"}
- {name: CONFIG_GRPC_XDS_CLIENT_TLS_CERT, value: /etc/tollgate/xds-tls/tls.crt}
- {name: CONFIG_GRPC_XDS_CLIENT_TLS_KEY, value: /etc/tollgate/xds-tls/tls.key}
- {name: CONFIG_GRPC_XDS_SERVER_TLS_CACERT, value: /etc/tollgate/xds-tls/ca.crt}
{{- with $values.xds.tls.serverSAN }}
- {name: CONFIG_GRPC_XDS_SERVER_TLS_SAN, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- if not $values.xds.enabled }}
# The kubelet mounts each key as a file, with symlinks whose names begin with dots.
- {name: RUNTIME_ROOT, value: /etc/tollgate}
- {name: RUNTIME_APPDIRECTORY, value: rules}
- {name: RUNTIME_IGNOREDOTFILES, value: "true"}
- {name: RUNTIME_WATCH_ROOT, value: "false"}
{{- end }}
{{- if include "tollgate.onRedis" . }}
- {name: BACKEND_TYPE, value: redis}
{{- if $values.redis.dev.enabled }}
- {name: REDIS_URL, value: {{ printf "%s-redis:6379" (include "tollgate.fullname" .) | quote }}}
{{- else }}
{{ include "tollgate.redisPlace" (list "REDIS" $values.redis) | trim }}
{{- end }}
{{- with include "tollgate.redisSecretFiles" (list "REDIS" "redis" $values.redis) | trim }}
{{ . }}
{{- end }}
{{- if $values.redis.tls.enabled }}
- {name: REDIS_TLS, value: "true"}
{{- end }}
{{- if $values.redis.tls.existingSecret }}
- {name: REDIS_TLS_CACERT, value: /etc/tollgate/redis-tls/ca.crt}
{{- end }}
{{- if $values.redis.tls.clientCertificate }}
- {name: REDIS_TLS_CLIENT_CERT, value: /etc/tollgate/redis-tls/tls.crt}
- {name: REDIS_TLS_CLIENT_KEY, value: /etc/tollgate/redis-tls/tls.key}
{{- end }}
{{- if include "tollgate.onSecondRedis" . }}
- {name: REDIS_PERSECOND, value: "true"}
{{ include "tollgate.redisPlace" (list "REDIS_PERSECOND" $values.redis.perSecond) | trim }}
{{- with include "tollgate.redisSecretFiles" (list "REDIS_PERSECOND" "redis-per-second" $values.redis.perSecond) | trim }}
{{ . }}
{{- end }}
{{- if $values.redis.perSecond.tls }}
- {name: REDIS_PERSECOND_TLS, value: "true"}
{{- end }}
{{- end }}
- {name: LOCAL_CACHE_SIZE_IN_BYTES, value: {{ include "tollgate.text" $values.localCacheSizeInBytes | quote }}}
{{- with $values.storeTimeout }}
- {name: STORE_TIMEOUT, value: {{ . | quote }}}
{{- end }}
- {name: ON_STORE_ERROR, value: {{ $values.onStoreError.policy | quote }}}
- {name: REPLICAS, value: {{ include "tollgate.replicas" . | quote }}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- else }}
- {name: BACKEND_TYPE, value: memory}
{{- end }}
{{- with $values.trial }}
{{- if .upstream }}
- {name: TRIAL_UPSTREAM, value: {{ .upstream | quote }}}
- {name: TRIAL_ON_UPSTREAM_ERROR, value: {{ .onUpstreamError | quote }}}
- {name: TRIAL_ENFORCE_PERCENT_FILE, value: /etc/tollgate/trial/percent}
{{- if .tls.enabled }}
- {name: TRIAL_UPSTREAM_TLS, value: "true"}
{{- if .tls.existingSecret }}
- {name: TRIAL_UPSTREAM_TLS_CACERT, value: /etc/tollgate/trial-tls/ca.crt}
{{- end }}
{{- if .tls.clientCertificate }}
- {name: TRIAL_UPSTREAM_TLS_CERT, value: /etc/tollgate/trial-tls/tls.crt}
- {name: TRIAL_UPSTREAM_TLS_KEY, value: /etc/tollgate/trial-tls/tls.key}
{{- end }}
{{- with .tls.serverName }}
- {name: TRIAL_UPSTREAM_SERVER_NAME, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- else if .keepCounters }}
- {name: TRIAL_KEEP_COUNTERS, value: "true"}
{{- end }}
{{- end }}
{{- if $values.tls.enabled }}
- {name: GRPC_SERVER_USE_TLS, value: "true"}
- {name: GRPC_SERVER_TLS_CERT, value: /etc/tollgate/tls/tls.crt}
- {name: GRPC_SERVER_TLS_KEY, value: /etc/tollgate/tls/tls.key}
{{- if $values.tls.clientCA.enabled }}
- {name: GRPC_CLIENT_TLS_CACERT, value: /etc/tollgate/tls/ca.crt}
{{- with $values.tls.clientCA.san }}
- {name: GRPC_CLIENT_TLS_SAN, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- end }}
{{- if $values.tracing.enabled }}
- {name: TRACING_ENABLED, value: "true"}
- {name: TRACING_EXPORTER_PROTOCOL, value: {{ $values.tracing.protocol | quote }}}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ $values.tracing.endpoint | quote }}}
- {name: TRACING_SAMPLING_RATE, value: {{ $values.tracing.samplingRate | quote }}}
- {name: TRACING_SERVICE_NAME, value: {{ $values.tracing.serviceName | quote }}}
- {name: TRACING_SERVICE_NAMESPACE, value: {{ .Release.Namespace | quote }}}
- name: TRACING_SERVICE_INSTANCE_ID
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}
{{- end }}

{{- define "tollgate.env" -}}
{{- $taken := dict }}
{{- range include "tollgate.chartEnv" . | fromYamlArray }}
{{- $_ := set $taken .name true }}
{{- end }}
{{- include "tollgate.chartEnv" . }}
{{- range $name, $value := .Values.settings }}
{{- if and (hasPrefix "REDIS_" $name) (not (include "tollgate.onRedis" $)) }}
{{- fail (printf "settings.%s has no effect without Redis: the pods would count in memory. Set redis.url" $name) }}
{{- end }}
{{- if hasKey $taken $name }}
{{- fail (printf "settings.%s: another value of the chart sets this variable; see `helm show values`, or use extraEnv to override it" $name) }}
{{- end }}
- {name: {{ $name }}, value: {{ include "tollgate.text" $value | quote }}}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
