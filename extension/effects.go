// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extension

// Affected is something that a dead extension affects, by its configuration.
type Affected struct {
	What   string `json:"what"` // "create, update pods", "widgets.example.com"
	Effect Effect `json:"effect"`
}

// Effect is what happens to what depends on a dead extension.
type Effect string

// The effects.
const (
	Refused     Effect = "refused"     // requests fail
	Unchecked   Effect = "unchecked"   // requests succeed without the extension's part
	Unavailable Effect = "unavailable" // it cannot be used
	Delayed     Effect = "delayed"     // it waits, and goes on when the extension is back
)

// Effects says for each point what the death of an extension means there. Points that nothing is plugged into at run time are left out.
func Effects() map[Point]string {
	return map[Point]string{
		TokenWebhook:          "Bearer tokens that only the webhook knows are not accepted; the results of the last seconds still are.",
		OIDCIssuer:            "Tokens signed with keys that the server has not fetched yet are not accepted, and users cannot sign in at the issuer.",
		TokenSigner:           "No service account token is issued: new pods do not start, and running ones cannot renew their tokens.",
		AuthorizationWebhook:  "Requests that no other authorizer decides are refused, or go on to the next authorizer, as failurePolicy says.",
		AuditWebhook:          "Audit events wait in a buffer, and are dropped when it is full; in blocking mode requests fail.",
		KMS:                   "Encrypted objects whose key is not in memory can be neither read nor written; /readyz fails.",
		CertificateSigner:     "CertificateSigningRequests of its signer stay pending, and certificates are not renewed.",
		ConversionWebhook:     "Custom resources cannot be read or written in a version other than the stored one.",
		AggregatedAPI:         "Its group answers 503; discovery shows the last known resources; namespaces cannot be emptied of its objects.",
		MutatingWebhook:       "Matching requests are refused with failurePolicy Fail, and go on unchanged with Ignore, after the timeout.",
		ValidatingWebhook:     "Matching requests are refused with failurePolicy Fail, and go on unchecked with Ignore, after the timeout.",
		MutatingPolicy:        "Matching requests are refused with failurePolicy Fail if an expression fails, and go on unchanged with Ignore.",
		ValidatingPolicy:      "Matching requests are refused with failurePolicy Fail if an expression fails, and go on unchecked with Ignore.",
		ImagePolicyWebhook:    "Pods are refused, or admitted with defaultAllow.",
		Initializer:           "New objects wait for it until their time is over, and are deleted or shown as its configuration says.",
		Controller:            "Its objects stay as they are: changes have no effect, and its finalizers are not removed.",
		SchedulerExtender:     "Pods that it is asked about are not scheduled, unless it is ignorable.",
		Scheduler:             "Pods that name it in spec.schedulerName stay pending.",
		CloudController:       "New nodes keep the taint node.cloudprovider.kubernetes.io/uninitialized; load balancers are not made.",
		MetricsAPI:            "HorizontalPodAutoscalers with its metrics keep their replicas; kubectl top has no figures.",
		ContainerRuntime:      "The node is not ready: no container starts or stops, and pods are evicted after some minutes.",
		NetworkPlugin:         "Pods on the node stay in ContainerCreating, and those that end in Terminating.",
		StorageDriver:         "Its volumes are not provisioned, attached or mounted: pods that need them wait. Mounted ones go on.",
		DevicePlugin:          "The node has none of its devices: pods that ask for them stay pending. Running ones keep theirs.",
		ResourceDriver:        "Claims of its devices are not prepared: pods that use them do not start.",
		NodePlugin:            "Pods on the node that need it do not start.",
		ImageCredentials:      "Images of its registries are pulled without credentials.",
		LifecycleHook:         "A failed postStart hook kills the container; a failed preStop hook is only recorded.",
		EgressProxy:           "Connections of its kind fail: to webhooks and aggregated servers, to nodes, or to etcd.",
		ExternalLoadBalancing: "Services of its class have no load balancer.",
	}
}
