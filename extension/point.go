// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package extension is the catalogue of Mortise's extension points, and the ledger of all calls to extensions.
//
// [Points] is the catalogue: one row for each extension point of Kubernetes. A [Ledger] makes the calls: it gives each a
// deadline, retries it if the policy allows, counts and times it, keeps the last error and the expiry of the extension's
// certificate, and stops calling one that keeps failing until a trial call succeeds ([Ledger.Call]). The reader of a
// configuration registers the extensions in it ([Ledger.Register], [Ledger.RegisterAll]), so that the ledger also lists
// those that were never called, and removes them with the configuration ([Ledger.Unregister]). [Ledger.Snapshot] returns
// the ledger's contents; `mortise extensions` prints them.
//
// A Ledger is safe for concurrent use; it starts no goroutines.
//
// # Stability
//
// What this package exports only grows: a committed list of it is compared in a test, and a change that breaks a program is announced in a
// release before.
package extension

// Point is a place where Mortise calls out, or lets itself be driven.
type Point string

// The points.
const (
	KubectlPlugin         Point = "kubectl-plugin"
	ExecCredential        Point = "exec-credential"
	TokenWebhook          Point = "token-webhook"
	OIDCIssuer            Point = "oidc-issuer"
	TokenSigner           Point = "token-signer"
	AuthorizationWebhook  Point = "authorization-webhook"
	AuditWebhook          Point = "audit-webhook"
	KMS                   Point = "kms"
	CertificateSigner     Point = "certificate-signer"
	CustomResource        Point = "custom-resource"
	ConversionWebhook     Point = "conversion-webhook"
	AggregatedAPI         Point = "aggregated-api"
	MutatingWebhook       Point = "mutating-webhook"
	ValidatingWebhook     Point = "validating-webhook"
	MutatingPolicy        Point = "mutating-admission-policy"
	ValidatingPolicy      Point = "validating-admission-policy"
	ImagePolicyWebhook    Point = "image-policy-webhook"
	Initializer           Point = "initializer"
	AdmissionPlugin       Point = "admission-plugin"
	Controller            Point = "controller"
	SchedulerPlugin       Point = "scheduler-plugin"
	SchedulerExtender     Point = "scheduler-extender"
	Scheduler             Point = "scheduler"
	CloudController       Point = "cloud-controller"
	MetricsAPI            Point = "metrics-api"
	ContainerRuntime      Point = "cri"
	RuntimeClass          Point = "runtime-class"
	NetworkPlugin         Point = "cni"
	StorageDriver         Point = "csi"
	DevicePlugin          Point = "device-plugin"
	ResourceDriver        Point = "dra"
	NodePlugin            Point = "node-plugin"
	ImageCredentials      Point = "image-credentials"
	LifecycleHook         Point = "lifecycle-hook"
	StoreEngine           Point = "store-engine"
	ComponentConfigFile   Point = "component-config"
	AnnotationsAndLabels  Point = "annotations"
	EgressProxy           Point = "egress-proxy"
	ExternalLoadBalancing Point = "load-balancer-class"
)

// Ways in which a point works.
const (
	Called = "called" // by this server, through the ledger
	Drives = "drives" // the extension is a client of the API, and is not called
	Linked = "linked" // Go code in the same process
	Client = "client" // the client calls it: kubectl, client-go
)

// Description is one row of the catalogue.
type Description struct {
	Point      Point  `json:"point"`
	Title      string `json:"title"`
	Way        string `json:"way"`
	Contract   string `json:"contract"`   // the protocol and its version
	Configured string `json:"configured"` // how an extension is plugged in
	Documented string `json:"documented"` // its page in the documentation
}

// Points is the catalogue, in the order in which a user meets them.
func Points() []Description {
	return []Description{
		{KubectlPlugin, "kubectl plug-in", Client, "an executable kubectl-NAME on $PATH", "mortise kubectl finds it on $PATH",
			"docs/points/kubectl-plugin.md"},
		{ExecCredential, "client credentials", Client, "ExecCredential client.authentication.k8s.io/v1, v1beta1 of a child process",
			"users[].user.exec of a kubeconfig", "docs/points/exec-credential.md"},
		{TokenWebhook, "token webhook", Called, "TokenReview authentication.k8s.io/v1, v1beta1 over HTTPS",
			"--authentication-token-webhook-config-file", "docs/points/token-webhook.md"},
		{OIDCIssuer, "OpenID Connect issuer", Called, "OpenID Connect discovery 1.0 and JWKS over HTTPS",
			"--oidc-issuer-url or --authentication-config", "docs/points/oidc-issuer.md"},
		{TokenSigner, "service-account token signer", Called, "externaljwt v1 gRPC over a unix socket", "--service-account-signing-endpoint",
			"docs/points/token-signer.md"},
		{AuthorizationWebhook, "authorization webhook", Called, "SubjectAccessReview authorization.k8s.io/v1, v1beta1 over HTTPS",
			"--authorization-webhook-config-file or --authorization-config", "docs/points/authorization-webhook.md"},
		{AuditWebhook, "audit webhook", Called, "EventList audit.k8s.io/v1 over HTTPS", "--audit-webhook-config-file",
			"docs/points/audit-webhook.md"},
		{KMS, "key management", Called, "KMS v2 gRPC over a unix socket", "--encryption-provider-config",
			"docs/points/kms.md"},
		{CertificateSigner, "certificate signer", Drives,
			"CertificateSigningRequest, PodCertificateRequest, ClusterTrustBundle certificates.k8s.io/v1", "a client of the API",
			"docs/points/certificate-signer.md"},
		{CustomResource, "custom resource", Linked, "CustomResourceDefinition apiextensions.k8s.io/v1", "an object",
			"docs/points/custom-resource.md"},
		{ConversionWebhook, "CRD conversion webhook", Called, "ConversionReview apiextensions.k8s.io/v1, v1beta1 over HTTPS",
			"spec.conversion.webhook of a CustomResourceDefinition",
			"docs/points/conversion-webhook.md"},
		{AggregatedAPI, "aggregated API server", Called, "APIService apiregistration.k8s.io/v1, an API server behind a proxy",
			"an APIService with a service", "docs/points/aggregated-api.md"},
		{MutatingWebhook, "mutating admission webhook", Called, "AdmissionReview admission.k8s.io/v1, v1beta1 over HTTPS",
			"a MutatingWebhookConfiguration", "docs/points/mutating-webhook.md"},
		{ValidatingWebhook, "validating admission webhook", Called, "AdmissionReview admission.k8s.io/v1, v1beta1 over HTTPS",
			"a ValidatingWebhookConfiguration", "docs/points/validating-webhook.md"},
		{MutatingPolicy, "mutating admission policy", Linked, "CEL in MutatingAdmissionPolicy admissionregistration.k8s.io/v1",
			"an object and its bindings", "docs/points/mutating-admission-policy.md"},
		{ValidatingPolicy, "validating admission policy", Linked, "CEL in ValidatingAdmissionPolicy admissionregistration.k8s.io/v1",
			"an object and its bindings", "docs/points/validating-admission-policy.md"},
		{ImagePolicyWebhook, "image policy webhook", Called, "ImageReview imagepolicy.k8s.io/v1alpha1 over HTTPS",
			"--admission-control-config-file", "docs/points/image-policy-webhook.md"},
		{Initializer, "initializer", Drives, "the verb initialize, the annotation extension.mortise.dev/initializers of uninitialized objects",
			"an InitializerConfiguration extension.mortise.dev/v1alpha1, with --enable-initializers", "docs/points/initializer.md"},
		{AdmissionPlugin, "admission plug-in", Linked, "admission.Mutator, admission.Validator in Go", "embed.Server.Extensions",
			"docs/points/admission-plugin.md"},
		{Controller, "controller", Linked, "controller.Controller in Go; or any client of the API", "embed.Server.Extensions",
			"docs/points/controller.md"},
		{SchedulerPlugin, "scheduler plug-in", Linked, "k8s.io/kube-scheduler/framework in Go",
			"embed.Server.Extensions, and a profile of --scheduler-config", "docs/points/scheduler-plugin.md"},
		{SchedulerExtender, "scheduler extender", Called, "kube-scheduler/extender/v1 JSON over HTTP or HTTPS", "extenders of --scheduler-config",
			"docs/points/scheduler-extender.md"},
		{Scheduler, "second scheduler", Drives, "spec.schedulerName of pods, the binding subresource", "a client of the API",
			"docs/points/scheduler.md"},
		{CloudController, "cloud controller", Drives, "the taint node.cloudprovider.kubernetes.io/uninitialized, providerID",
			"a client of the API", "docs/points/cloud-controller.md"},
		{MetricsAPI, "metrics API", Called, "metrics.k8s.io/v1beta1, custom.metrics.k8s.io/v1beta2, external.metrics.k8s.io/v1beta1",
			"an APIService with a service; an ExternalMetricsRoute extension.mortise.dev/v1alpha1, with --enable-external-metrics-routes",
			"docs/points/metrics-api.md"},
		{ContainerRuntime, "container runtime", Called, "CRI runtime.v1 gRPC over a unix socket", "mortise up --cri-socket",
			"docs/points/cri.md"},
		{RuntimeClass, "runtime class", Linked, "RuntimeClass node.k8s.io/v1: a handler of the container runtime", "an object",
			"docs/points/runtime-class.md"},
		{NetworkPlugin, "network plug-in", Drives, "CNI 1.1.0 executables, run by the container runtime", "/etc/cni/net.d",
			"docs/points/cni.md"},
		{StorageDriver, "storage driver", Called, "CSI 1.13 gRPC over a unix socket; its sidecars are clients of storage.k8s.io/v1",
			"plug-in registration of the node, CSIDriver storage.k8s.io/v1", "docs/points/csi.md"},
		{DevicePlugin, "device plug-in", Called, "deviceplugin v1beta1 gRPC over unix sockets", "registers itself with the node",
			"docs/points/device-plugin.md"},
		{ResourceDriver, "dynamic resource driver", Called, "DRAPlugin v1, v1beta1 gRPC; ResourceSlice resource.k8s.io/v1",
			"plug-in registration of the node", "docs/points/dra.md"},
		{NodePlugin, "node plug-in registration", Called, "pluginregistration v1 gRPC over a unix socket", "a socket in plugins_registry",
			"docs/points/node-plugin.md"},
		{ImageCredentials, "image credential provider", Called,
			"CredentialProviderRequest credentialprovider.kubelet.k8s.io/v1, v1beta1, v1alpha1 of a child process",
			"--image-credential-provider-config", "docs/points/image-credentials.md"},
		{LifecycleHook, "container lifecycle hook", Linked, "postStart, preStop: exec, httpGet, sleep", "a pod's containers",
			"docs/points/lifecycle-hook.md"},
		{StoreEngine, "store engine", Linked, "store.Engine in Go, proved by storetest.Run", "package store", "docs/points/store-engine.md"},
		{ComponentConfigFile, "component configuration", Linked, "versioned configuration files", "flags of mortise up",
			"docs/points/component-config.md"},
		{AnnotationsAndLabels, "annotations and labels", Drives, "metadata that only the extension reads, kept as it is", "any object",
			"docs/points/annotations.md"},
		{EgressProxy, "egress proxy", Called, "EgressSelectorConfiguration apiserver.k8s.io/v1beta1: HTTP CONNECT, konnectivity's gRPC",
			"--egress-selector-config-file", "docs/points/egress-proxy.md"},
		{ExternalLoadBalancing, "load balancer class", Drives, "spec.loadBalancerClass of services, the status subresource",
			"a client of the API", "docs/points/load-balancer-class.md"},
	}
}
