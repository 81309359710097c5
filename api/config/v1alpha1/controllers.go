// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ControllersConfiguration selects and configures controllers.
type ControllersConfiguration struct {
	// Enabled lists controllers: "*" all that are on by default, "NAME" this one, "-NAME" not this one; "none" alone disables all.
	Enabled []string `json:"enabled,omitempty"`
	// ConcurrentSyncs is the number of workers, by the controller's name.
	ConcurrentSyncs    map[string]int32                 `json:"concurrentSyncs,omitempty"`
	NodeLifecycle      NodeLifecycleConfiguration       `json:"nodeLifecycle,omitzero"`
	NodeIPAM           NodeIPAMConfiguration            `json:"nodeIPAM,omitzero"`
	ServiceLB          ServiceLBConfiguration           `json:"serviceLB,omitzero"`
	AttachDetach       AttachDetachConfiguration        `json:"attachDetach,omitzero"`
	VolumeBinder       PersistentVolumeBinder           `json:"persistentVolumeBinder,omitzero"`
	Endpoints          EndpointsConfiguration           `json:"endpoints,omitzero"`
	PodGC              PodGCConfiguration               `json:"podGC,omitzero"`
	PodAutoscaler      PodAutoscalerConfiguration       `json:"horizontalPodAutoscaler,omitzero"`
	ResourceQuota      ResourceQuotaConfiguration       `json:"resourceQuota,omitzero"`
	LegacyTokenCleaner LegacyServiceAccountTokenCleanup `json:"legacyServiceAccountTokenCleaner,omitzero"`
	LeaderElection     LeaderElectionConfiguration      `json:"leaderElection,omitzero"`
	Signing            CertificateSigningConfiguration  `json:"certificateSigning,omitzero"`
}

// NodeLifecycleConfiguration configures when a node counts as lost and how fast its pods are evicted.
type NodeLifecycleConfiguration struct {
	NodeMonitorGracePeriod    *metav1.Duration `json:"nodeMonitorGracePeriod,omitempty"`
	NodeStartupGracePeriod    *metav1.Duration `json:"nodeStartupGracePeriod,omitempty"`
	NodeMonitorPeriod         *metav1.Duration `json:"nodeMonitorPeriod,omitempty"`
	NodeEvictionRate          *float32         `json:"nodeEvictionRate,omitempty"`
	SecondaryNodeEvictionRate *float32         `json:"secondaryNodeEvictionRate,omitempty"`
	LargeClusterSizeThreshold *int32           `json:"largeClusterSizeThreshold,omitempty"`
	UnhealthyZoneThreshold    *float32         `json:"unhealthyZoneThreshold,omitempty"`
}

// NodeIPAMConfiguration configures the size of a node's pod address range, as the length of its prefix.
type NodeIPAMConfiguration struct {
	NodeCIDRMaskSize     *int32 `json:"nodeCIDRMaskSize,omitempty"`
	NodeCIDRMaskSizeIPv4 *int32 `json:"nodeCIDRMaskSizeIPv4,omitempty"`
	NodeCIDRMaskSizeIPv6 *int32 `json:"nodeCIDRMaskSizeIPv6,omitempty"`
}

// ServiceLBConfiguration configures the load balancers of a cluster without a cloud.
type ServiceLBConfiguration struct {
	// Pool has the addresses for Services of type LoadBalancer: CIDRs, ranges FIRST-LAST and addresses. Empty: the nodes' own addresses.
	Pool []string `json:"pool,omitempty"`
}

// AttachDetachConfiguration configures how volumes are attached to nodes and detached from them.
type AttachDetachConfiguration struct {
	ReconcilerSyncLoopPeriod          *metav1.Duration `json:"reconcilerSyncLoopPeriod,omitempty"`
	DisableAttachDetachReconcilerSync *bool            `json:"disableAttachDetachReconcilerSync,omitempty"`
	DisableForceDetachOnTimeout       *bool            `json:"disableForceDetachOnTimeout,omitempty"`
}

// PersistentVolumeBinder configures the pods that empty volumes whose reclaim policy is Recycle. Timeouts are in seconds: at least, and for
// each GiB of the volume.
type PersistentVolumeBinder struct {
	RecyclerPodTemplateFilePathHostPath string `json:"recyclerPodTemplateFilePathHostPath,omitempty"`
	RecyclerMinimumTimeoutHostPath      *int32 `json:"recyclerMinimumTimeoutHostPath,omitempty"`
	RecyclerIncrementTimeoutHostPath    *int32 `json:"recyclerIncrementTimeoutHostPath,omitempty"`
	RecyclerPodTemplateFilePathNFS      string `json:"recyclerPodTemplateFilePathNFS,omitempty"`
	RecyclerMinimumTimeoutNFS           *int32 `json:"recyclerMinimumTimeoutNFS,omitempty"`
	RecyclerIncrementTimeoutNFS         *int32 `json:"recyclerIncrementTimeoutNFS,omitempty"`
}

// EndpointsConfiguration configures how the endpoints of services are published.
type EndpointsConfiguration struct {
	MaxEndpointsPerSlice            *int32           `json:"maxEndpointsPerSlice,omitempty"`
	MirroringMaxEndpointsPerSubset  *int32           `json:"mirroringMaxEndpointsPerSubset,omitempty"`
	EndpointUpdatesBatchPeriod      *metav1.Duration `json:"endpointUpdatesBatchPeriod,omitempty"`
	EndpointSliceUpdatesBatchPeriod *metav1.Duration `json:"endpointSliceUpdatesBatchPeriod,omitempty"`
	MirroringUpdatesBatchPeriod     *metav1.Duration `json:"mirroringEndpointSliceUpdatesBatchPeriod,omitempty"`
}

// PodGCConfiguration configures the collection of finished pods.
type PodGCConfiguration struct {
	TerminatedPodGCThreshold *int32 `json:"terminatedPodGCThreshold,omitempty"`
}

// PodAutoscalerConfiguration configures how HorizontalPodAutoscalers are evaluated.
type PodAutoscalerConfiguration struct {
	SyncPeriod                   *metav1.Duration `json:"syncPeriod,omitempty"`
	DownscaleStabilizationWindow *metav1.Duration `json:"downscaleStabilizationWindow,omitempty"`
	Tolerance                    *float64         `json:"tolerance,omitempty"`
	CPUInitializationPeriod      *metav1.Duration `json:"cpuInitializationPeriod,omitempty"`
	InitialReadinessDelay        *metav1.Duration `json:"initialReadinessDelay,omitempty"`
}

// ResourceQuotaConfiguration configures the resource quota controller.
type ResourceQuotaConfiguration struct {
	SyncPeriod *metav1.Duration `json:"resourceQuotaSyncPeriod,omitempty"`
}

// LegacyServiceAccountTokenCleanup configures the removal of unused token Secrets.
type LegacyServiceAccountTokenCleanup struct {
	CleanUpPeriod *metav1.Duration `json:"cleanUpPeriod,omitempty"`
}

// LeaderElectionConfiguration configures the Leases of controllers and scheduler.
type LeaderElectionConfiguration struct {
	LeaderElect       *bool            `json:"leaderElect,omitempty"`
	LeaseDuration     *metav1.Duration `json:"leaseDuration,omitempty"`
	RenewDeadline     *metav1.Duration `json:"renewDeadline,omitempty"`
	RetryPeriod       *metav1.Duration `json:"retryPeriod,omitempty"`
	ResourceLock      string           `json:"resourceLock,omitempty"`
	ResourceNamespace string           `json:"resourceNamespace,omitempty"`
	ResourceName      string           `json:"resourceName,omitempty"`
}

// CertificateSigningConfiguration configures the signers of certificate signing requests.
type CertificateSigningConfiguration struct {
	Duration            *metav1.Duration `json:"duration,omitempty"`
	CertFile            string           `json:"certFile,omitempty"`
	KeyFile             string           `json:"keyFile,omitempty"`
	RootCAFile          string           `json:"rootCAFile,omitempty"`
	KubeletServing      SignerFiles      `json:"kubeletServing,omitzero"`
	KubeletClient       SignerFiles      `json:"kubeletClient,omitzero"`
	KubeAPIServerClient SignerFiles      `json:"kubeAPIServerClient,omitzero"`
	LegacyUnknown       SignerFiles      `json:"legacyUnknown,omitzero"`
}

// SignerFiles names the certificate and the private key of one signer.
type SignerFiles struct {
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
}
