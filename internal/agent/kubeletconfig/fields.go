// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"path/filepath"
	"slices"
	"strings"

	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
)

// Fields lists all fields by name. docs/kubelet-configuration.md shows the same table.
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
		honoured("the node's API", "enableServer", "address", "port", "tlsCertFile", "tlsPrivateKeyFile", "tlsCipherSuites",
			"tlsCurvePreferences", "tlsMinVersion",
			"authentication", "authorization", "enableDebuggingHandlers", "healthzPort", "healthzBindAddress", "readOnlyPort"),
		honoured("how often", "syncFrequency", "nodeStatusUpdateFrequency", "nodeStatusReportFrequency", "nodeLeaseDurationSeconds"),
		honoured("the Node object", "registerNode", "registerWithTaints", "nodeStatusMaxImages", "maxPods", "podsPerCore", "providerID",
			"enableControllerAttachDetach"),
		honoured("resources that the node reserves", "systemReserved", "kubeReserved", "reservedSystemCPUs"),
		honoured("CPUs of containers' own; the period is that of retries: Mortise moves containers when the shared CPUs change",
			"cpuManagerPolicy", "cpuManagerPolicyOptions", "cpuManagerReconcilePeriod"),
		honoured("memory of containers' own", "memoryManagerPolicy", "reservedMemory"),
		honoured("NUMA nodes of containers", "topologyManagerPolicy", "topologyManagerScope", "topologyManagerPolicyOptions"),
		honoured("resolvers of pods", "clusterDomain", "clusterDNS", "resolvConf"),
		honoured("address range of the pod network that the node sets up if the machine has none", "podCIDR"),
		honoured("the runtime", "containerRuntimeEndpoint", "cgroupDriver", "cgroupRoot", "cgroupsPerQOS", "podLogsDir"),
		honoured("statistics of volumes", "volumeStatsAggPeriod"),
		honoured("events", "eventRecordQPS", "eventBurst"),
		honoured("pulling images", "serializeImagePulls", "maxParallelImagePulls", "registryPullQPS", "registryBurst"),
		honoured("which pods may use an image that is on the node", "imagePullCredentialsVerificationPolicy",
			"preloadedImagesVerificationAllowlist"),
		honoured("collecting images", "imageMinimumGCAge", "imageMaximumGCAge", "imageGCHighThresholdPercent", "imageGCLowThresholdPercent"),
		honoured("eviction", "evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionPressureTransitionPeriod",
			"evictionMaxPodGracePeriod",
			"evictionMinimumReclaim", "mergeDefaultEvictionSettings", "localStorageCapacityIsolation"),
		honoured("logs of containers", "containerLogMaxSize", "containerLogMaxFiles", "containerLogMonitorInterval"),
		honoured("containers", "podPidsLimit", "cpuCFSQuota", "cpuCFSQuotaPeriod", "seccompDefault", "allowedUnsafeSysctls", "crashLoopBackOff",
			"memorySwap", "memoryThrottlingFactor", "userNamespaces"),
		honoured("shutting down", "shutdownGracePeriod", "shutdownGracePeriodCriticalPods", "shutdownGracePeriodByPodPriority"),
		honoured("the node checks the machine", "failSwapOn", "failCgroupV1", "protectKernelDefaults"),
		honoured("the node validates names; gates change the validation and the features that the node declares in its status; only KubeletEnsureSecretPulledImages changes what the node does", "featureGates"),

		honoured("a node that joined requests its serving certificate from the cluster; the server signs that of a node in its own process",
			"serverTLSBootstrap"),
		without("a node that joined always rotates its client certificate; a node in the server's process has none", "rotateCertificates"),
		without("the node is a part of the server's process", "oomScoreAdj", "maxOpenFiles", "kubeletCgroups", "systemCgroups", "contentType",
			"kubeAPIQPS", "kubeAPIBurst", "runtimeRequestTimeout"),
		without("Mortise has no such port or page", "enableContentionProfiling", "enableSystemLogHandler", "enableSystemLogQuery",
			"enableProfilingHandler", "enableDebugFlagsHandler", "showHiddenMetricsForVersion"),
		without("`--log-level` of `mortise up` and `mortise node` sets the log level", "logging", "tracing"),
		without("streams end with their clients", "streamingConnectionIdleTimeout"),
		without("the CNI plug-ins and the proxy set up the pod network", "hairpinMode", "makeIPTablesUtilChains", "iptablesMasqueradeBit",
			"iptablesDropBit"),
		without("the node watches objects", "configMapAndSecretChangeDetectionStrategy"),
		without("one worker rotates all logs", "containerLogMaxWorkers"),
		without("there are no FlexVolumes", "volumePluginDir"),
		without("the node measures memory every ten seconds", "kernelMemcgNotification"),
		without("the kernel's default applies", "singleProcessOOMKill"),
		without("they apply to values of enforceNodeAllocatable that Mortise rejects", "systemReservedCgroup", "kubeReservedCgroup"),

		refuse("Mortise does not reserve memory for QoS classes", "qosReserved", "memoryReservationPolicy"),
		refuse("Mortise does not limit system daemons; the values pods and none are honoured", "enforceNodeAllocatable"),
		refuse("Mortise does not set them in pods", "defaultPodSysctls"),
		refuse("the container runtime manages images", "imageServiceEndpoint"),
		refuse("kubelet removed this mode", "runOnce"),
	)
}

// Unheeded returns a message for each field that is set and has no effect.
func Unheeded(c *configv1beta1.KubeletConfiguration) []string {
	return componentconfig.Unheeded(Fields(), componentconfig.Set(c, Default()))
}

// SameEndpoint reports whether two endpoints of a runtime are the same socket, with or without unix://.
func SameEndpoint(a, b string) bool { return socketOf(a) == socketOf(b) }

func socketOf(endpoint string) string {
	socket := strings.TrimPrefix(endpoint, "unix://")
	if socket == "" {
		return ""
	}
	return filepath.Clean(socket)
}

// refused returns the errors of fields that would be unsafe to ignore.
func refused(c *configv1beta1.KubeletConfiguration) []error {
	harmless := map[string]bool{
		"enforceNodeAllocatable": !slices.ContainsFunc(c.EnforceNodeAllocatable,
			func(word string) bool { return word != enforcePods && word != enforceNone }),
		"imageServiceEndpoint": SameEndpoint(c.ImageServiceEndpoint, c.ContainerRuntimeEndpoint),
	}
	return componentconfig.Unsupported(Fields(), componentconfig.Set(c, Default()), harmless)
}
