{{/* Volumes and mounts: whole directories, because Kubernetes does not update subPath mounts. */}}

{{- define "tollgate.volumes" -}}
{{- with include "tollgate.rulesConfigMap" . }}
- {name: rules, configMap: {name: {{ . | quote }}}}
{{- end }}
{{- with include "tollgate.overlayConfigMap" . }}
- {name: overlay, configMap: {name: {{ . | quote }}}}
{{- end }}
{{- with .Values.admin.token.existingSecret }}
- {name: admin-token, secret: {secretName: {{ . | quote }}}}
{{- end }}
{{- with .Values.admin.readToken.existingSecret }}
- {name: admin-read-token, secret: {secretName: {{ . | quote }}}}
{{- end }}
{{- if .Values.trial.upstream }}
- {name: trial, configMap: {name: {{ printf "%s-trial" (include "tollgate.fullname" .) | quote }}}}
{{- with .Values.trial.tls.existingSecret }}
- {name: trial-tls, secret: {secretName: {{ . | quote }}}}
{{- end }}
{{- end }}
{{- if .Values.tls.enabled }}
- {name: tls, secret: {secretName: {{ .Values.tls.secretName | quote }}}}
{{- end }}
{{- if and .Values.xds.enabled .Values.xds.tls.enabled }}
- {name: xds-tls, secret: {secretName: {{ .Values.xds.tls.secretName | quote }}}}
{{- end }}
{{- range $name, $secret := include "tollgate.redisSecrets" . | fromYaml }}
- {name: {{ $name }}, secret: {secretName: {{ $secret | quote }}}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tollgate.mounts" -}}
{{- if include "tollgate.rulesConfigMap" . }}
- {name: rules, mountPath: /etc/tollgate/rules, readOnly: true}
{{- end }}
{{- if include "tollgate.overlayConfigMap" . }}
- {name: overlay, mountPath: /etc/tollgate/overlay, readOnly: true}
{{- end }}
{{- if .Values.admin.token.existingSecret }}
- {name: admin-token, mountPath: /etc/tollgate/admin-token, readOnly: true}
{{- end }}
{{- if .Values.admin.readToken.existingSecret }}
- {name: admin-read-token, mountPath: /etc/tollgate/admin-read-token, readOnly: true}
{{- end }}
{{- if .Values.trial.upstream }}
- {name: trial, mountPath: /etc/tollgate/trial, readOnly: true}
{{- if .Values.trial.tls.existingSecret }}
- {name: trial-tls, mountPath: /etc/tollgate/trial-tls, readOnly: true}
{{- end }}
{{- end }}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /etc/tollgate/tls, readOnly: true}
{{- end }}
{{- if and .Values.xds.enabled .Values.xds.tls.enabled }}
- {name: xds-tls, mountPath: /etc/tollgate/xds-tls, readOnly: true}
{{- end }}
{{- range $name, $_ := include "tollgate.redisSecrets" . | fromYaml }}
- {name: {{ $name }}, mountPath: /etc/tollgate/{{ $name }}, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
