// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ServerConfigurationKind is the kind of [ServerConfiguration].
const ServerConfigurationKind = "ServerConfiguration"

// ServerConfiguration is the file of `mortise up --config`. Each field sets what the flag of the same meaning sets; docs/configuration.md
// lists both. A field that is absent has the flag's default. Secrets are named by file and never stand in the configuration.
type ServerConfiguration struct {
	metav1.TypeMeta `json:",inline"`
	// DataDir is the directory of all state.
	DataDir string `json:"dataDir,omitempty"`
	// Kubeconfig is the file to which the administrator's kubeconfig is written.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Listen is HOST:PORT of the API.
	Listen string `json:"listen,omitempty"`
	// Store selects the storage engine.
	Store StoreConfiguration `json:"store,omitzero"`
	// Logging configures the log.
	Logging LoggingConfiguration `json:"logging,omitzero"`
	// FeatureGates overrides defaults of Kubernetes feature gates.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// RuntimeConfig enables and disables APIs.
	RuntimeConfig  map[string]bool             `json:"runtimeConfig,omitempty"`
	Serving        ServingConfiguration        `json:"serving,omitzero"`
	Compatibility  CompatibilityConfiguration  `json:"compatibility,omitzero"`
	Authentication AuthenticationConfiguration `json:"authentication,omitzero"`
	Authorization  AuthorizationConfiguration  `json:"authorization,omitzero"`
	Admission      AdmissionConfiguration      `json:"admission,omitzero"`
	Audit          AuditConfiguration          `json:"audit,omitzero"`
	FlowControl    FlowControlConfiguration    `json:"flowControl,omitzero"`
	Encryption     EncryptionConfiguration     `json:"encryption,omitzero"`
	Aggregation    AggregationConfiguration    `json:"aggregation,omitzero"`
	Egress         EgressConfiguration         `json:"egress,omitzero"`
	Explain        ExplainConfiguration        `json:"explain,omitzero"`
	Controllers    ControllersConfiguration    `json:"controllers,omitzero"`
	Scheduler      SchedulerConfiguration      `json:"scheduler,omitzero"`
	Node           NodeConfiguration           `json:"node,omitzero"`
	Networking     NetworkingConfiguration     `json:"networking,omitzero"`
}

// ServingConfiguration names the files of the certificates that the API server presents to clients.
type ServingConfiguration struct {
	TLSCertFile       string `json:"tlsCertFile,omitempty"`
	TLSPrivateKeyFile string `json:"tlsPrivateKeyFile,omitempty"`
	CertDir           string `json:"certDir,omitempty"`
	// TLSSNICertKeys are CERT-FILE,KEY-FILE[:NAME,NAME...].
	TLSSNICertKeys []string `json:"tlsSNICertKeys,omitempty"`
	// AdvertiseAddress is the IP address at which pods and other servers reach this one.
	AdvertiseAddress string `json:"advertiseAddress,omitempty"`
	// Console is the web page below /console/.
	Console ConsoleConfiguration `json:"console,omitzero"`
}

// ConsoleConfiguration configures the web page below /console/.
type ConsoleConfiguration struct {
	Enabled *bool `json:"enabled,omitempty"`
	// Hosts are names of hosts under which browsers reach the console, such as those of proxies in front of the server.
	Hosts []string `json:"hosts,omitempty"`
}

// CompatibilityConfiguration names versions of Kubernetes. The server refuses all but its own and the one before.
type CompatibilityConfiguration struct {
	EmulatedVersions                        []string `json:"emulatedVersions,omitempty"`
	MinCompatibilityVersions                []string `json:"minCompatibilityVersions,omitempty"`
	EmulationForwardCompatible              *bool    `json:"emulationForwardCompatible,omitempty"`
	RuntimeConfigEmulationForwardCompatible *bool    `json:"runtimeConfigEmulationForwardCompatible,omitempty"`
}

// StoreConfiguration selects the storage engine.
type StoreConfiguration struct {
	// Engine is local, etcd or memory.
	Engine string `json:"engine,omitempty"`
	// Etcd says where the engine etcd finds its cluster.
	Etcd EtcdConfiguration `json:"etcd,omitzero"`
}

// EtcdConfiguration says where an etcd cluster is.
type EtcdConfiguration struct {
	// Servers are the URLs of etcd's members.
	Servers []string `json:"servers,omitempty"`
	// CAFile is the file of the authorities of the members' certificates.
	CAFile string `json:"caFile,omitempty"`
	// CertFile and KeyFile are the server's certificate as a client of etcd, and its key.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// Prefix is the prefix of all keys.
	Prefix string `json:"prefix,omitempty"`
	// Listen is where the store of another engine is served by etcd's protocol: unix://PATH or HOST:PORT.
	Listen string `json:"listen,omitempty"`
}

// LoggingConfiguration configures the log.
type LoggingConfiguration struct {
	// Level is debug, info, warn or error.
	Level string `json:"level,omitempty"`
}

// AuthenticationConfiguration configures the authentication of requests.
type AuthenticationConfiguration struct {
	ConfigFile     string                           `json:"configFile,omitempty"`
	APIAudiences   []string                         `json:"apiAudiences,omitempty"`
	Anonymous      Switch                           `json:"anonymous,omitzero"`
	BootstrapToken Switch                           `json:"bootstrapToken,omitzero"`
	X509           X509Configuration                `json:"x509,omitzero"`
	TokenFile      string                           `json:"tokenFile,omitempty"`
	Webhook        AuthenticationWebhook            `json:"webhook,omitzero"`
	RequestHeader  RequestHeaderConfiguration       `json:"requestHeader,omitzero"`
	OIDC           OIDCConfiguration                `json:"oidc,omitzero"`
	ServiceAccount ServiceAccountTokenConfiguration `json:"serviceAccount,omitzero"`
}

// Switch turns something on or off.
type Switch struct {
	Enabled *bool `json:"enabled,omitempty"`
}

// X509Configuration configures client certificates.
type X509Configuration struct {
	ClientCAFile string `json:"clientCAFile,omitempty"`
}

// AuthenticationWebhook configures the webhook that reviews tokens.
type AuthenticationWebhook struct {
	ConfigFile string           `json:"configFile,omitempty"`
	Version    string           `json:"version,omitempty"`
	CacheTTL   *metav1.Duration `json:"cacheTTL,omitempty"`
}

// RequestHeaderConfiguration configures the front proxies that the server trusts.
type RequestHeaderConfiguration struct {
	ClientCAFile        string   `json:"clientCAFile,omitempty"`
	AllowedNames        []string `json:"allowedNames,omitempty"`
	UsernameHeaders     []string `json:"usernameHeaders,omitempty"`
	UIDHeaders          []string `json:"uidHeaders,omitempty"`
	GroupHeaders        []string `json:"groupHeaders,omitempty"`
	ExtraHeaderPrefixes []string `json:"extraHeaderPrefixes,omitempty"`
}

// OIDCConfiguration configures one OpenID Connect issuer.
type OIDCConfiguration struct {
	IssuerURL      string            `json:"issuerURL,omitempty"`
	ClientID       string            `json:"clientID,omitempty"`
	CAFile         string            `json:"caFile,omitempty"`
	UsernameClaim  string            `json:"usernameClaim,omitempty"`
	UsernamePrefix string            `json:"usernamePrefix,omitempty"`
	GroupsClaim    string            `json:"groupsClaim,omitempty"`
	GroupsPrefix   string            `json:"groupsPrefix,omitempty"`
	SigningAlgs    []string          `json:"signingAlgs,omitempty"`
	RequiredClaims map[string]string `json:"requiredClaims,omitempty"`
}

// ServiceAccountTokenConfiguration configures how service-account tokens are signed and verified.
type ServiceAccountTokenConfiguration struct {
	KeyFiles              []string         `json:"keyFiles,omitempty"`
	SigningKeyFile        string           `json:"signingKeyFile,omitempty"`
	SigningEndpoint       string           `json:"signingEndpoint,omitempty"`
	Issuers               []string         `json:"issuers,omitempty"`
	JWKSURI               string           `json:"jwksURI,omitempty"`
	Lookup                *bool            `json:"lookup,omitempty"`
	MaxTokenExpiration    *metav1.Duration `json:"maxTokenExpiration,omitempty"`
	ExtendTokenExpiration *bool            `json:"extendTokenExpiration,omitempty"`
}

// AuthorizationConfiguration configures which requests are allowed.
type AuthorizationConfiguration struct {
	Modes      []string             `json:"modes,omitempty"`
	ConfigFile string               `json:"configFile,omitempty"`
	PolicyFile string               `json:"policyFile,omitempty"`
	Webhook    AuthorizationWebhook `json:"webhook,omitzero"`
}

// AuthorizationWebhook configures the webhook of the mode Webhook.
type AuthorizationWebhook struct {
	ConfigFile           string           `json:"configFile,omitempty"`
	Version              string           `json:"version,omitempty"`
	CacheAuthorizedTTL   *metav1.Duration `json:"cacheAuthorizedTTL,omitempty"`
	CacheUnauthorizedTTL *metav1.Duration `json:"cacheUnauthorizedTTL,omitempty"`
}

// AdmissionConfiguration configures what mutates and validates writes.
type AdmissionConfiguration struct {
	ConfigFile                          string            `json:"configFile,omitempty"`
	EnablePlugins                       []string          `json:"enablePlugins,omitempty"`
	DisablePlugins                      []string          `json:"disablePlugins,omitempty"`
	AllowPrivileged                     *bool             `json:"allowPrivileged,omitempty"`
	Initializers                        Switch            `json:"initializers,omitzero"`
	DefaultNotReadyTolerationSeconds    *int64            `json:"defaultNotReadyTolerationSeconds,omitempty"`
	DefaultUnreachableTolerationSeconds *int64            `json:"defaultUnreachableTolerationSeconds,omitempty"`
	Webhooks                            AdmissionWebhooks `json:"webhooks,omitzero"`
}

// AdmissionWebhooks configures what Mortise adds to admission webhooks.
type AdmissionWebhooks struct {
	Deadline           *metav1.Duration     `json:"deadline,omitempty"`
	Breaker            BreakerConfiguration `json:"breaker,omitzero"`
	LockoutGuard       *bool                `json:"lockoutGuard,omitempty"`
	NameConfigurations *bool                `json:"nameConfigurations,omitempty"`
}

// BreakerConfiguration configures a circuit breaker.
type BreakerConfiguration struct {
	// Failures is the number of consecutive failures that open the breaker.
	Failures *int32 `json:"failures,omitempty"`
	// Pause is how long the breaker stays open.
	Pause *metav1.Duration `json:"pause,omitempty"`
}

// AuditConfiguration configures the audit log and webhook.
type AuditConfiguration struct {
	PolicyFile string       `json:"policyFile,omitempty"`
	Log        AuditLog     `json:"log,omitzero"`
	Webhook    AuditWebhook `json:"webhook,omitzero"`
}

// AuditLog configures the audit log file.
type AuditLog struct {
	Path       string        `json:"path,omitempty"`
	MaxAge     *int32        `json:"maxAge,omitempty"`
	MaxBackup  *int32        `json:"maxBackup,omitempty"`
	MaxSize    *int32        `json:"maxSize,omitempty"`
	Compress   *bool         `json:"compress,omitempty"`
	Format     string        `json:"format,omitempty"`
	Version    string        `json:"version,omitempty"`
	Mode       string        `json:"mode,omitempty"`
	Batch      AuditBatch    `json:"batch,omitzero"`
	Truncation AuditTruncate `json:"truncate,omitzero"`
}

// AuditWebhook configures the server that audit events are sent to.
type AuditWebhook struct {
	ConfigFile     string           `json:"configFile,omitempty"`
	InitialBackoff *metav1.Duration `json:"initialBackoff,omitempty"`
	Version        string           `json:"version,omitempty"`
	Mode           string           `json:"mode,omitempty"`
	Batch          AuditBatch       `json:"batch,omitzero"`
	Truncation     AuditTruncate    `json:"truncate,omitzero"`
}

// AuditBatch configures the mode batch.
type AuditBatch struct {
	BufferSize *int32           `json:"bufferSize,omitempty"`
	MaxSize    *int32           `json:"maxSize,omitempty"`
	MaxWait    *metav1.Duration `json:"maxWait,omitempty"`
	Throttle   AuditThrottle    `json:"throttle,omitzero"`
}

// AuditThrottle limits the rate of batches.
type AuditThrottle struct {
	Enabled *bool    `json:"enabled,omitempty"`
	QPS     *float32 `json:"qps,omitempty"`
	Burst   *int32   `json:"burst,omitempty"`
}

// AuditTruncate limits the sizes of events and batches, in bytes.
type AuditTruncate struct {
	Enabled      *bool  `json:"enabled,omitempty"`
	MaxBatchSize *int64 `json:"maxBatchSize,omitempty"`
	MaxEventSize *int64 `json:"maxEventSize,omitempty"`
}

// FlowControlConfiguration limits requests, connections and watches.
type FlowControlConfiguration struct {
	PriorityAndFairness          Switch           `json:"priorityAndFairness,omitzero"`
	MaxRequestsInflight          *int32           `json:"maxRequestsInflight,omitempty"`
	MaxMutatingRequestsInflight  *int32           `json:"maxMutatingRequestsInflight,omitempty"`
	RequestTimeout               *metav1.Duration `json:"requestTimeout,omitempty"`
	GoawayChance                 *float64         `json:"goawayChance,omitempty"`
	HTTP2MaxStreamsPerConnection *int32           `json:"http2MaxStreamsPerConnection,omitempty"`
	HTTP2Server                  string           `json:"http2Server,omitempty"` // go or mortise
	MaxConnections               *int32           `json:"maxConnections,omitempty"`
	MaxConnectionsPerClient      *int32           `json:"maxConnectionsPerClient,omitempty"`
	MaxRequestBytesInflight      *int64           `json:"maxRequestBytesInflight,omitempty"`
	MaxWatchesPerUser            *int32           `json:"maxWatchesPerUser,omitempty"`
}

// EncryptionConfiguration configures encryption at rest.
type EncryptionConfiguration struct {
	ConfigFile      string `json:"configFile,omitempty"`
	AutomaticReload *bool  `json:"automaticReload,omitempty"`
}

// AggregationConfiguration configures how the server reaches aggregated API servers.
type AggregationConfiguration struct {
	ProxyClientCertFile       string `json:"proxyClientCertFile,omitempty"`
	ProxyClientKeyFile        string `json:"proxyClientKeyFile,omitempty"`
	Routing                   Switch `json:"routing,omitzero"`
	RejectForwardingRedirects *bool  `json:"rejectForwardingRedirects,omitempty"`
	ResourceMetricsAPI        Switch `json:"resourceMetricsAPI,omitzero"`
	ExternalMetricsRoutes     Switch `json:"externalMetricsRoutes,omitzero"`

	Peers PeersConfiguration `json:"peers,omitzero"`
}

// PeersConfiguration configures how the servers of a cluster reach each other, to forward requests for what one of them does not serve.
type PeersConfiguration struct {
	CAFile        string `json:"caFile,omitempty"`
	AdvertiseIP   string `json:"advertiseIP,omitempty"`
	AdvertisePort string `json:"advertisePort,omitempty"`
}

// EgressConfiguration selects proxies for the server's outgoing connections.
type EgressConfiguration struct {
	ConfigFile string `json:"configFile,omitempty"`
}

// ExplainConfiguration configures the traces of `mortise explain`.
type ExplainConfiguration struct {
	Enabled   *bool  `json:"enabled,omitempty"`
	MemoryMiB *int32 `json:"memoryMiB,omitempty"`
}

// SchedulerConfiguration configures the scheduler.
type SchedulerConfiguration struct {
	ConfigFile      string               `json:"configFile,omitempty"`
	ExtenderBreaker BreakerConfiguration `json:"extenderBreaker,omitzero"`
}

// NodeConfiguration configures the nodes that the process runs, and how the API server reaches nodes.
type NodeConfiguration struct {
	// Mode is auto, cri, simulated or none.
	Mode                          string                      `json:"mode,omitempty"`
	CRISocket                     string                      `json:"criSocket,omitempty"`
	KubeletConfigFile             string                      `json:"kubeletConfigFile,omitempty"`
	KubeletConfigDir              string                      `json:"kubeletConfigDir,omitempty"`
	RootDir                       string                      `json:"rootDir,omitempty"`
	NoKubeletLinks                *bool                       `json:"noKubeletLinks,omitempty"`
	NoLocalStorage                *bool                       `json:"noLocalStorage,omitempty"`
	CSIDrivers                    []string                    `json:"csiDrivers,omitempty"`
	CloudProvider                 string                      `json:"cloudProvider,omitempty"`
	PluginWait                    *metav1.Duration            `json:"pluginWait,omitempty"`
	ImageCredentialProviderConfig string                      `json:"imageCredentialProviderConfig,omitempty"`
	ImageCredentialProviderBinDir string                      `json:"imageCredentialProviderBinDir,omitempty"`
	KubeletCertificateAuthority   string                      `json:"kubeletCertificateAuthority,omitempty"`
	Simulated                     SimulatedNodesConfiguration `json:"simulated,omitzero"`
}

// SimulatedNodesConfiguration configures simulated nodes: a number of equal ones, or a file of [SimulatedNodes].
type SimulatedNodesConfiguration struct {
	Count      *int32 `json:"count,omitempty"`
	ConfigFile string `json:"configFile,omitempty"`
}

// NetworkingConfiguration configures address ranges, and what makes Services work on a real node.
type NetworkingConfiguration struct {
	PodCIDR           string   `json:"podCIDR,omitempty"`
	ServiceCIDR       string   `json:"serviceCIDR,omitempty"`
	DisableProxy      *bool    `json:"disableServiceProxy,omitempty"`
	DisableDNS        *bool    `json:"disableClusterDNS,omitempty"`
	DisableRoutes     *bool    `json:"disableNodeRoutes,omitempty"`
	VXLAN             *bool    `json:"vxlan,omitempty"`
	ProxyConfigFile   string   `json:"proxyConfigFile,omitempty"`
	ProxyMode         string   `json:"proxyMode,omitempty"`
	NodePortAddresses []string `json:"nodePortAddresses,omitempty"`
	MasqueradeAll     *bool    `json:"masqueradeAll,omitempty"`
}
