// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"slices"

	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
)

// Fields are all fields, by name. docs/kubelet-configuration.md shows the same table.
func Fields() []componentconfig.Field {
	honoured := func(why string, names ...string) []componentconfig.Field {
		return componentconfig.Each(componentconfig.Honoured, why, names...)
	}
	without := func(why string, names ...string) []componentconfig.Field {
		return componentconfig.Each(componentconfig.Without, why, names...)
	}
	refuse := func(why string, names ...string) []componentconfig.Field {
		return componentconfig.Each(componentconfig.Refused, why, names...)
	}
	return componentconfig.Sorted(
		honoured("static pods", "staticPodPath", "staticPodURL", "staticPodURLHeader", "fileCheckFrequency", "httpCheckFrequency"),
		honoured("the node's API", "enableServer", "address", "port", "tlsCertFile", "tlsPrivateKeyFile", "tlsCipherSuites", "tlsCurvePreferences", "tlsMinVersion",
			"authentication", "authorization", "enableDebuggingHandlers", "healthzPort", "healthzBindAddress"),
		honoured("how often", "syncFrequency", "nodeStatusUpdateFrequency", "nodeStatusReportFrequency", "nodeLeaseDurationSeconds"),
		honoured("the Node object", "registerNode", "registerWithTaints", "nodeStatusMaxImages", "maxPods", "podsPerCore", "providerID", "enableControllerAttachDetach"),
		honoured("what the node keeps for itself", "systemReserved", "kubeReserved", "reservedSystemCPUs"),
		honoured("resolvers of pods", "clusterDomain", "clusterDNS", "resolvConf"),
		honoured("the range of the pod network that is installed where none is", "podCIDR"),
		honoured("the runtime", "containerRuntimeEndpoint", "cgroupDriver", "cgroupRoot", "cgroupsPerQOS", "podLogsDir"),
		honoured("figures of volumes", "volumeStatsAggPeriod"),
		honoured("events", "eventRecordQPS", "eventBurst"),
		honoured("pulling images", "serializeImagePulls", "maxParallelImagePulls", "registryPullQPS", "registryBurst"),
		honoured("who may use an image that is on the node", "imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist"),
		honoured("collecting images", "imageMinimumGCAge", "imageMaximumGCAge", "imageGCHighThresholdPercent", "imageGCLowThresholdPercent"),
		honoured("eviction", "evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionPressureTransitionPeriod", "evictionMaxPodGracePeriod",
			"evictionMinimumReclaim", "mergeDefaultEvictionSettings", "localStorageCapacityIsolation"),
		honoured("logs of containers", "containerLogMaxSize", "containerLogMaxFiles", "containerLogMonitorInterval"),
		honoured("containers", "podPidsLimit", "cpuCFSQuota", "cpuCFSQuotaPeriod", "seccompDefault", "allowedUnsafeSysctls", "crashLoopBackOff", "memorySwap", "memoryThrottlingFactor", "userNamespaces"),
		honoured("shutting down", "shutdownGracePeriod", "shutdownGracePeriodCriticalPods", "shutdownGracePeriodByPodPriority"),
		honoured("the machine is checked", "failSwapOn", "failCgroupV1", "protectKernelDefaults"),
		honoured("names are checked; a gate changes what is checked and what the node declares in its status; what it does, only KubeletEnsureSecretPulledImages", "featureGates"),

		honoured("a node that joined asks the cluster for its serving certificate; one in the server's process has one anyway", "serverTLSBootstrap"),
		without("a node that joined always replaces its certificate; one in the server's process has none that ends", "rotateCertificates"),
		without("the node is a part of the server's process", "oomScoreAdj", "maxOpenFiles", "kubeletCgroups", "systemCgroups", "contentType", "kubeAPIQPS", "kubeAPIBurst", "runtimeRequestTimeout"),
		without("there is no such port or page", "readOnlyPort", "enableContentionProfiling", "enableSystemLogHandler", "enableSystemLogQuery",
			"enableProfilingHandler", "enableDebugFlagsHandler", "showHiddenMetricsForVersion"),
		without("Mortise logs as `mortise up` is told to", "logging", "tracing"),
		without("streams end with their clients", "streamingConnectionIdleTimeout"),
		without("the pod network is the CNI plug-ins' and the proxy's", "hairpinMode", "makeIPTablesUtilChains", "iptablesMasqueradeBit", "iptablesDropBit"),
		without("objects are watched", "configMapAndSecretChangeDetectionStrategy"),
		without("one is enough", "containerLogMaxWorkers"),
		without("there are no FlexVolumes", "volumePluginDir"),
		without("memory is looked at every ten seconds", "kernelMemcgNotification"),
		without("the kernel's own rule holds", "singleProcessOOMKill"),
		without("its policy is none", "cpuManagerReconcilePeriod", "topologyManagerScope", "reservedMemory"),
		without("only words of enforceNodeAllocatable that are refused would use them", "systemReservedCgroup", "kubeReservedCgroup"),

		refuse("containers would not have processors or memory of their own", "cpuManagerPolicy", "cpuManagerPolicyOptions", "memoryManagerPolicy",
			"topologyManagerPolicy", "topologyManagerPolicyOptions", "qosReserved", "memoryReservationPolicy"),
		refuse("daemons of the system would not be bounded; pods and none are honoured", "enforceNodeAllocatable"),
		refuse("pods would not have them", "defaultPodSysctls"),
		refuse("images are the runtime's", "imageServiceEndpoint"),
		refuse("kubelet has no such mode any more", "runOnce"),
	)
}

// Unheeded says of each field that is set and without effect that it is.
func Unheeded(c *configv1beta1.KubeletConfiguration) []string {
	return componentconfig.Unheeded(Fields(), componentconfig.Set(c, Default()))
}

// refused are the complaints about fields whose neglect would be unsafe.
func refused(c *configv1beta1.KubeletConfiguration) []error {
	harmless := map[string]bool{
		"enforceNodeAllocatable": !slices.ContainsFunc(c.EnforceNodeAllocatable, func(word string) bool { return word != enforcePods && word != enforceNone }),
		"imageServiceEndpoint":   c.ImageServiceEndpoint == c.ContainerRuntimeEndpoint,
	}
	return componentconfig.Unsupported(Fields(), componentconfig.Set(c, Default()), harmless)
}
