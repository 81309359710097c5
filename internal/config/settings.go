// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package config reads and prints the configuration file of a server: the kind ServerConfiguration of config.mortise.dev.
//
// One table names for each flag of `mortise up` the field of the file that sets the same; the flags of controllers name their fields
// themselves, by [Declare]. [Settings] are both. [Read] decodes a file strictly,
// [File.Apply] gives its values to the flags that the command line left alone, and [Effective] reads a configuration back from
// flags; [Marshal] writes it as YAML. So a flag's parser and its checks are those of the field too, and a server never sees which
// of the two a setting came from.
//
// A flag at its default is the same as no flag, unless its row is Optional: then its absence differs from all values.
// Effective omits optional settings that are not set.
package config

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Setting is one row of the table: a flag and the field that sets the same.
type Setting struct {
	Flag string
	// Field is the path of the field, with the key of a map in brackets.
	Field string
	// Values are the allowed values; none: the flag's own parser decides.
	Values []string
	// Optional settings have no default that stands for their absence.
	Optional bool
}

var (
	levels    = []string{"debug", "info", "warn", "error"}
	nodeModes = []string{"auto", "cri", "simulated", "none"}
	auditTo   = []string{"batch", "blocking", "blocking-strict"}
	formats   = []string{"json", "legacy"}
	versions  = []string{"v1", "v1beta1"}
	proxies   = []string{"nftables", "iptables"}
)

// Annotations of flags: the field that sets the same, and the values that are allowed.
const (
	fieldOf  = "config.mortise.dev/field"
	valuesOf = "config.mortise.dev/values"
)

// Allow says which values a flag takes, and so its field. It is for flags of which the table does not say it.
func Allow(flag *pflag.Flag, values ...string) { annotate(flag, valuesOf, values) }

func annotate(flag *pflag.Flag, name string, texts []string) {
	if flag.Annotations == nil {
		flag.Annotations = map[string][]string{}
	}
	flag.Annotations[name] = texts
}

// Declare has a flag name its field, and whether it is optional. It is for flags that are declared outside of this package's table.
func Declare(flag *pflag.Flag, s Setting) {
	texts := []string{s.Field}
	if s.Optional {
		texts = append(texts, "optional")
	}
	annotate(flag, fieldOf, texts)
}

// declared is the setting that a flag declares.
func declared(flag *pflag.Flag) (Setting, bool) {
	texts := flag.Annotations[fieldOf]
	if len(texts) == 0 {
		return Setting{}, false
	}
	return Setting{Flag: flag.Name, Field: texts[0], Values: flag.Annotations[valuesOf], Optional: len(texts) > 1}, true
}

// Settings are those of a server that has these flags: the table, in the order of the configuration, then what flags declare.
func Settings(flags *pflag.FlagSet) []Setting {
	all := table()
	for i := range all {
		if flag := flags.Lookup(all[i].Flag); flag != nil && len(flag.Annotations[valuesOf]) > 0 {
			all[i].Values = flag.Annotations[valuesOf]
		}
	}
	flags.VisitAll(func(flag *pflag.Flag) {
		if s, ok := declared(flag); ok {
			all = append(all, s)
		}
	})
	return all
}

func table() []Setting {
	rows := []Setting{
		{Flag: "data-dir", Field: "dataDir"},
		{Flag: "kubeconfig", Field: "kubeconfig"},
		{Flag: "listen", Field: "listen"},
		{Flag: "store", Field: "store.engine"}, // its values are the engines: see Allow
		{Flag: "etcd-servers", Field: "store.etcd.servers"},
		{Flag: "etcd-cafile", Field: "store.etcd.caFile"},
		{Flag: "etcd-certfile", Field: "store.etcd.certFile"},
		{Flag: "etcd-keyfile", Field: "store.etcd.keyFile"},
		{Flag: "etcd-prefix", Field: "store.etcd.prefix"},
		{Flag: "etcd-listen", Field: "store.etcd.listen"},
		{Flag: "log-level", Field: "logging.level", Values: levels},
		{Flag: "feature-gates", Field: "featureGates"},
		{Flag: "runtime-config", Field: "runtimeConfig"},
		{Flag: "tls-cert-file", Field: "serving.tlsCertFile"},
		{Flag: "tls-private-key-file", Field: "serving.tlsPrivateKeyFile"},
		{Flag: "cert-dir", Field: "serving.certDir"},
		{Flag: "tls-sni-cert-key", Field: "serving.tlsSNICertKeys"},
		{Flag: "advertise-address", Field: "serving.advertiseAddress"},
		{Flag: "console", Field: "serving.console.enabled"},
		{Flag: "console-hosts", Field: "serving.console.hosts"},
		{Flag: "emulated-version", Field: "compatibility.emulatedVersions"},
		{Flag: "min-compatibility-version", Field: "compatibility.minCompatibilityVersions"},
		{Flag: "emulation-forward-compatible", Field: "compatibility.emulationForwardCompatible"},
		{Flag: "runtime-config-emulation-forward-compatible", Field: "compatibility.runtimeConfigEmulationForwardCompatible"},

		{Flag: "authentication-config", Field: "authentication.configFile"},
		{Flag: "api-audiences", Field: "authentication.apiAudiences"},
		{Flag: "anonymous-auth", Field: "authentication.anonymous.enabled", Optional: true},
		{Flag: "enable-bootstrap-token-auth", Field: "authentication.bootstrapToken.enabled"},
		{Flag: "client-ca-file", Field: "authentication.x509.clientCAFile"},
		{Flag: "token-auth-file", Field: "authentication.tokenFile"},
		{Flag: "authentication-token-webhook-config-file", Field: "authentication.webhook.configFile"},
		{Flag: "authentication-token-webhook-version", Field: "authentication.webhook.version", Values: versions},
		{Flag: "authentication-token-webhook-cache-ttl", Field: "authentication.webhook.cacheTTL"},
		{Flag: "requestheader-client-ca-file", Field: "authentication.requestHeader.clientCAFile"},
		{Flag: "requestheader-allowed-names", Field: "authentication.requestHeader.allowedNames"},
		{Flag: "requestheader-username-headers", Field: "authentication.requestHeader.usernameHeaders"},
		{Flag: "requestheader-uid-headers", Field: "authentication.requestHeader.uidHeaders"},
		{Flag: "requestheader-group-headers", Field: "authentication.requestHeader.groupHeaders"},
		{Flag: "requestheader-extra-headers-prefix", Field: "authentication.requestHeader.extraHeaderPrefixes"},
		{Flag: "oidc-issuer-url", Field: "authentication.oidc.issuerURL"},
		{Flag: "oidc-client-id", Field: "authentication.oidc.clientID"},
		{Flag: "oidc-ca-file", Field: "authentication.oidc.caFile"},
		{Flag: "oidc-username-claim", Field: "authentication.oidc.usernameClaim"},
		{Flag: "oidc-username-prefix", Field: "authentication.oidc.usernamePrefix"},
		{Flag: "oidc-groups-claim", Field: "authentication.oidc.groupsClaim"},
		{Flag: "oidc-groups-prefix", Field: "authentication.oidc.groupsPrefix"},
		{Flag: "oidc-signing-algs", Field: "authentication.oidc.signingAlgs"},
		{Flag: "oidc-required-claim", Field: "authentication.oidc.requiredClaims"},
		{Flag: "service-account-key-file", Field: "authentication.serviceAccount.keyFiles"},
		{Flag: "service-account-signing-key-file", Field: "authentication.serviceAccount.signingKeyFile"},
		{Flag: "service-account-signing-endpoint", Field: "authentication.serviceAccount.signingEndpoint"},
		{Flag: "service-account-issuer", Field: "authentication.serviceAccount.issuers"},
		{Flag: "service-account-jwks-uri", Field: "authentication.serviceAccount.jwksURI"},
		{Flag: "service-account-lookup", Field: "authentication.serviceAccount.lookup"},
		{Flag: "service-account-max-token-expiration", Field: "authentication.serviceAccount.maxTokenExpiration"},
		{Flag: "service-account-extend-token-expiration", Field: "authentication.serviceAccount.extendTokenExpiration"},

		{Flag: "authorization-mode", Field: "authorization.modes"},
		{Flag: "authorization-config", Field: "authorization.configFile"},
		{Flag: "authorization-policy-file", Field: "authorization.policyFile"},
		{Flag: "authorization-webhook-config-file", Field: "authorization.webhook.configFile"},
		{Flag: "authorization-webhook-version", Field: "authorization.webhook.version", Values: versions},
		{Flag: "authorization-webhook-cache-authorized-ttl", Field: "authorization.webhook.cacheAuthorizedTTL", Optional: true},
		{Flag: "authorization-webhook-cache-unauthorized-ttl", Field: "authorization.webhook.cacheUnauthorizedTTL", Optional: true},

		{Flag: "admission-control-config-file", Field: "admission.configFile"},
		{Flag: "enable-admission-plugins", Field: "admission.enablePlugins"},
		{Flag: "disable-admission-plugins", Field: "admission.disablePlugins"},
		{Flag: "allow-privileged", Field: "admission.allowPrivileged", Optional: true},
		{Flag: "enable-initializers", Field: "admission.initializers.enabled"},
		{Flag: "default-not-ready-toleration-seconds", Field: "admission.defaultNotReadyTolerationSeconds"},
		{Flag: "default-unreachable-toleration-seconds", Field: "admission.defaultUnreachableTolerationSeconds"},
		{Flag: "admission-deadline", Field: "admission.webhooks.deadline"},
		{Flag: "admission-breaker-failures", Field: "admission.webhooks.breaker.failures"},
		{Flag: "admission-breaker-pause", Field: "admission.webhooks.breaker.pause"},
		{Flag: "admission-lockout-guard", Field: "admission.webhooks.lockoutGuard"},
		{Flag: "admission-name-configurations", Field: "admission.webhooks.nameConfigurations"},

		{Flag: "audit-policy-file", Field: "audit.policyFile"},
		{Flag: "audit-log-path", Field: "audit.log.path"},
		{Flag: "audit-log-maxage", Field: "audit.log.maxAge"},
		{Flag: "audit-log-maxbackup", Field: "audit.log.maxBackup"},
		{Flag: "audit-log-maxsize", Field: "audit.log.maxSize"},
		{Flag: "audit-log-compress", Field: "audit.log.compress"},
		{Flag: "audit-log-format", Field: "audit.log.format", Values: formats},
		{Flag: "audit-webhook-config-file", Field: "audit.webhook.configFile"},
		{Flag: "audit-webhook-initial-backoff", Field: "audit.webhook.initialBackoff"},

		{Flag: "enable-priority-and-fairness", Field: "flowControl.priorityAndFairness.enabled"},
		{Flag: "max-requests-inflight", Field: "flowControl.maxRequestsInflight"},
		{Flag: "max-mutating-requests-inflight", Field: "flowControl.maxMutatingRequestsInflight"},
		{Flag: "request-timeout", Field: "flowControl.requestTimeout"},
		{Flag: "goaway-chance", Field: "flowControl.goawayChance"},
		{Flag: "http2-max-streams-per-connection", Field: "flowControl.http2MaxStreamsPerConnection"},
		{Flag: "http2-server", Field: "flowControl.http2Server"},
		{Flag: "max-connections", Field: "flowControl.maxConnections"},
		{Flag: "max-connections-per-client", Field: "flowControl.maxConnectionsPerClient"},
		{Flag: "max-request-bytes-inflight", Field: "flowControl.maxRequestBytesInflight", Optional: true},
		{Flag: "max-watches-per-user", Field: "flowControl.maxWatchesPerUser"},

		{Flag: "encryption-provider-config", Field: "encryption.configFile"},
		{Flag: "encryption-provider-config-automatic-reload", Field: "encryption.automaticReload"},

		{Flag: "proxy-client-cert-file", Field: "aggregation.proxyClientCertFile"},
		{Flag: "proxy-client-key-file", Field: "aggregation.proxyClientKeyFile"},
		{Flag: "enable-aggregator-routing", Field: "aggregation.routing.enabled"},
		{Flag: "aggregator-reject-forwarding-redirect", Field: "aggregation.rejectForwardingRedirects"},
		{Flag: "resource-metrics-api", Field: "aggregation.resourceMetricsAPI.enabled"},
		{Flag: "enable-external-metrics-routes", Field: "aggregation.externalMetricsRoutes.enabled"},
		{Flag: "peer-ca-file", Field: "aggregation.peers.caFile"},
		{Flag: "peer-advertise-ip", Field: "aggregation.peers.advertiseIP"},
		{Flag: "peer-advertise-port", Field: "aggregation.peers.advertisePort"},
		{Flag: "egress-selector-config-file", Field: "egress.configFile"},

		{Flag: "explain", Field: "explain.enabled"},
		{Flag: "explain-memory", Field: "explain.memoryMiB"},

		{Flag: "scheduler-config", Field: "scheduler.configFile"},
		{Flag: "scheduler-extender-breaker-failures", Field: "scheduler.extenderBreaker.failures"},
		{Flag: "scheduler-extender-breaker-pause", Field: "scheduler.extenderBreaker.pause"},

		{Flag: "node", Field: "node.mode", Values: nodeModes},
		{Flag: "nodes", Field: "node.simulated.count"},
		{Flag: "simulated-nodes", Field: "node.simulated.configFile"},
		{Flag: "cri-socket", Field: "node.criSocket"},
		{Flag: "kubelet-config", Field: "node.kubeletConfigFile"},
		{Flag: "kubelet-config-dir", Field: "node.kubeletConfigDir"},
		{Flag: "root-dir", Field: "node.rootDir"},
		{Flag: "no-kubelet-links", Field: "node.noKubeletLinks"},
		{Flag: "no-local-storage", Field: "node.noLocalStorage"},
		{Flag: "csi-drivers", Field: "node.csiDrivers"},
		{Flag: "cloud-provider", Field: "node.cloudProvider"},
		{Flag: "plugin-wait", Field: "node.pluginWait"},
		{Flag: "image-credential-provider-config", Field: "node.imageCredentialProviderConfig"},
		{Flag: "image-credential-provider-bin-dir", Field: "node.imageCredentialProviderBinDir"},
		{Flag: "kubelet-certificate-authority", Field: "node.kubeletCertificateAuthority"},

		{Flag: "pod-cidr", Field: "networking.podCIDR"},
		{Flag: "service-cidr", Field: "networking.serviceCIDR"},
		{Flag: "no-service-proxy", Field: "networking.disableServiceProxy"},
		{Flag: "no-cluster-dns", Field: "networking.disableClusterDNS"},
		{Flag: "no-node-routes", Field: "networking.disableNodeRoutes"},
		{Flag: "node-vxlan", Field: "networking.vxlan"},
		{Flag: "proxy-config", Field: "networking.proxyConfigFile"},
		{Flag: "proxy-mode", Field: "networking.proxyMode", Values: proxies},
		{Flag: "nodeport-addresses", Field: "networking.nodePortAddresses"},
		{Flag: "masquerade-all", Field: "networking.masqueradeAll", Optional: true},
	}
	rows = append(rows, auditBackend("log")...)
	rows = append(rows, auditBackend("webhook")...)
	return append(rows, controllers()...)
}

// auditBackend are the settings that the audit log and the audit webhook share.
func auditBackend(name string) []Setting {
	flag, field := "audit-"+name+"-", "audit."+name+"."
	return []Setting{
		{Flag: flag + "version", Field: field + "version"},
		{Flag: flag + "mode", Field: field + "mode", Values: auditTo},
		{Flag: flag + "batch-buffer-size", Field: field + "batch.bufferSize"},
		{Flag: flag + "batch-max-size", Field: field + "batch.maxSize"},
		{Flag: flag + "batch-max-wait", Field: field + "batch.maxWait"},
		{Flag: flag + "batch-throttle-enable", Field: field + "batch.throttle.enabled"},
		{Flag: flag + "batch-throttle-qps", Field: field + "batch.throttle.qps"},
		{Flag: flag + "batch-throttle-burst", Field: field + "batch.throttle.burst"},
		{Flag: flag + "truncate-enabled", Field: field + "truncate.enabled"},
		{Flag: flag + "truncate-max-batch-size", Field: field + "truncate.maxBatchSize"},
		{Flag: flag + "truncate-max-event-size", Field: field + "truncate.maxEventSize"},
	}
}

func controllers() []Setting {
	return []Setting{
		{Flag: "controllers", Field: "controllers.enabled"},
		{Flag: "leader-elect", Field: "controllers.leaderElection.leaderElect", Optional: true},
		{Flag: "leader-elect-lease-duration", Field: "controllers.leaderElection.leaseDuration"},
		{Flag: "leader-elect-renew-deadline", Field: "controllers.leaderElection.renewDeadline"},
		{Flag: "leader-elect-retry-period", Field: "controllers.leaderElection.retryPeriod"},
		{Flag: "leader-elect-resource-lock", Field: "controllers.leaderElection.resourceLock", Values: []string{"leases"}},
		{Flag: "leader-elect-resource-namespace", Field: "controllers.leaderElection.resourceNamespace"},
		{Flag: "leader-elect-resource-name", Field: "controllers.leaderElection.resourceName"},

		{Flag: "cluster-signing-cert-file", Field: "controllers.certificateSigning.certFile"},
		{Flag: "cluster-signing-key-file", Field: "controllers.certificateSigning.keyFile"},
		{Flag: "cluster-signing-kubelet-serving-cert-file", Field: "controllers.certificateSigning.kubeletServing.certFile"},
		{Flag: "cluster-signing-kubelet-serving-key-file", Field: "controllers.certificateSigning.kubeletServing.keyFile"},
		{Flag: "cluster-signing-kubelet-client-cert-file", Field: "controllers.certificateSigning.kubeletClient.certFile"},
		{Flag: "cluster-signing-kubelet-client-key-file", Field: "controllers.certificateSigning.kubeletClient.keyFile"},
		{Flag: "cluster-signing-kube-apiserver-client-cert-file", Field: "controllers.certificateSigning.kubeAPIServerClient.certFile"},
		{Flag: "cluster-signing-kube-apiserver-client-key-file", Field: "controllers.certificateSigning.kubeAPIServerClient.keyFile"},
		{Flag: "cluster-signing-legacy-unknown-cert-file", Field: "controllers.certificateSigning.legacyUnknown.certFile"},
		{Flag: "cluster-signing-legacy-unknown-key-file", Field: "controllers.certificateSigning.legacyUnknown.keyFile"},
		{Flag: "root-ca-file", Field: "controllers.certificateSigning.rootCAFile"},
	}
}

// path splits a setting's field into the names of nested fields and the key of a map, if it has one.
func (s Setting) path() (names []string, key string) {
	field, key, _ := strings.Cut(strings.TrimSuffix(s.Field, "]"), "[")
	return strings.Split(field, "."), key
}

// Headings are the groups in which help lists the flags, in order, each with the beginnings of its settings' fields.
var headings = []struct {
	name   string
	fields []string
}{
	{"Server", []string{"dataDir", "kubeconfig", "listen", "logging", "featureGates", "runtimeConfig", "serving", "compatibility"}},
	{"Store", []string{"store", "encryption"}},
	{"Node", []string{"node"}},
	{"Networking", []string{"networking"}},
	{"Authentication", []string{"authentication"}},
	{"Authorization", []string{"authorization"}},
	{"Admission", []string{"admission"}},
	{"Audit", []string{"audit"}},
	{"Flow control", []string{"flowControl"}},
	{"Aggregation and egress", []string{"aggregation", "egress"}},
	{"Explain", []string{"explain"}},
	{"Leader election", []string{"controllers.leaderElection"}},
	{"Certificate signing", []string{"controllers.certificateSigning"}},
	{"Controllers", []string{"controllers"}},
	{"Scheduler", []string{"scheduler"}},
}

// Headings are the groups in which help lists flags, in their order.
func Headings() []string {
	names := make([]string, len(headings))
	for i, h := range headings {
		names[i] = h.name
	}
	return names
}

// Heading is the group of a flag; empty: the flag is no setting of a server.
func Heading(flag *pflag.Flag) string {
	s, ok := declared(flag)
	if !ok {
		rows := table()
		i := slices.IndexFunc(rows, func(row Setting) bool { return row.Flag == flag.Name })
		if i < 0 {
			return ""
		}
		s = rows[i]
	}
	for _, h := range headings {
		for _, f := range h.fields {
			if s.Field == f || strings.HasPrefix(s.Field, f+".") || strings.HasPrefix(s.Field, f+"[") {
				return h.name
			}
		}
	}
	return ""
}
