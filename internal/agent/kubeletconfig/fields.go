// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	configv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// Effect says what a field does here.
type Effect string

// The effects.
const (
	Honoured Effect = "honoured"
	Without  Effect = "without effect" // said once, where it is set
	Refused  Effect = "refused"        // where it is set to something other than its default
)

// Field is one field of a KubeletConfiguration.
type Field struct {
	Name   string // as in JSON
	Effect Effect
	Why    string
}

// Fields are all fields, by name. docs/kubelet-configuration.md shows the same table.
func Fields() []Field {
	honoured := func(why string, names ...string) (out []Field) {
		for _, n := range names {
			out = append(out, Field{n, Honoured, why})
		}
		return out
	}
	without := func(why string, names ...string) (out []Field) {
		for _, n := range names {
			out = append(out, Field{n, Without, why})
		}
		return out
	}
	refuse := func(why string, names ...string) (out []Field) {
		for _, n := range names {
			out = append(out, Field{n, Refused, why})
		}
		return out
	}
	all := slices.Concat(
		honoured("static pods", "staticPodPath", "staticPodURL", "staticPodURLHeader", "fileCheckFrequency", "httpCheckFrequency"),
		honoured("the node's API", "enableServer", "address", "port", "tlsCertFile", "tlsPrivateKeyFile", "tlsCipherSuites", "tlsCurvePreferences", "tlsMinVersion",
			"authentication", "authorization", "enableDebuggingHandlers", "healthzPort", "healthzBindAddress"),
		honoured("how often", "syncFrequency", "nodeStatusUpdateFrequency", "nodeStatusReportFrequency", "nodeLeaseDurationSeconds"),
		honoured("the Node object", "registerNode", "registerWithTaints", "nodeStatusMaxImages", "maxPods", "podsPerCore", "providerID", "enableControllerAttachDetach"),
		honoured("what the node keeps for itself", "systemReserved", "kubeReserved", "reservedSystemCPUs"),
		honoured("resolvers of pods", "clusterDomain", "clusterDNS", "resolvConf"),
		honoured("the range of the pod network that is installed where none is", "podCIDR"),
		honoured("the runtime", "containerRuntimeEndpoint", "cgroupDriver", "cgroupRoot", "cgroupsPerQOS", "podLogsDir"),
		honoured("events", "eventRecordQPS", "eventBurst"),
		honoured("pulling images", "serializeImagePulls", "maxParallelImagePulls", "registryPullQPS", "registryBurst"),
		honoured("collecting images", "imageMinimumGCAge", "imageMaximumGCAge", "imageGCHighThresholdPercent", "imageGCLowThresholdPercent"),
		honoured("eviction", "evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionPressureTransitionPeriod", "evictionMaxPodGracePeriod",
			"evictionMinimumReclaim", "mergeDefaultEvictionSettings", "localStorageCapacityIsolation"),
		honoured("logs of containers", "containerLogMaxSize", "containerLogMaxFiles", "containerLogMonitorInterval"),
		honoured("containers", "podPidsLimit", "cpuCFSQuota", "cpuCFSQuotaPeriod", "seccompDefault", "allowedUnsafeSysctls", "crashLoopBackOff", "memorySwap", "memoryThrottlingFactor", "userNamespaces"),
		honoured("shutting down", "shutdownGracePeriod", "shutdownGracePeriodCriticalPods", "shutdownGracePeriodByPodPriority"),
		honoured("the machine is checked", "failSwapOn", "failCgroupV1", "protectKernelDefaults"),
		honoured("names are checked; a gate changes what is checked, not what the node does", "featureGates"),

		honoured("a node that joined asks the cluster for its serving certificate; one in the server's process has one anyway", "serverTLSBootstrap"),
		without("a node that joined always replaces its certificate; one in the server's process has none that ends", "rotateCertificates"),
		without("the node is a part of the server's process", "oomScoreAdj", "maxOpenFiles", "kubeletCgroups", "systemCgroups", "contentType", "kubeAPIQPS", "kubeAPIBurst", "runtimeRequestTimeout"),
		without("there is no such port or page", "readOnlyPort", "enableContentionProfiling", "enableSystemLogHandler", "enableSystemLogQuery",
			"enableProfilingHandler", "enableDebugFlagsHandler", "showHiddenMetricsForVersion", "volumeStatsAggPeriod"),
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
		refuse("pods would have images without credentials for them; NeverVerify is what is done", "imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist"),
		refuse("pods would not have them", "defaultPodSysctls"),
		refuse("images are the runtime's", "imageServiceEndpoint"),
		refuse("kubelet has no such mode any more", "runOnce"),
	)
	slices.SortFunc(all, func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// set are the fields that a configuration sets to something other than the default, by their names in JSON.
func set(c *configv1beta1.KubeletConfiguration) map[string]bool {
	out := map[string]bool{}
	have, usual := reflect.ValueOf(c).Elem(), reflect.ValueOf(Default()).Elem()
	for i := range have.NumField() {
		if !reflect.DeepEqual(have.Field(i).Interface(), usual.Field(i).Interface()) {
			out[nameOf(have.Type().Field(i))] = true
		}
	}
	return out
}

// nameOf is a field's name in JSON; empty for what is embedded.
func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// Unheeded says of each field that is set and without effect that it is.
func Unheeded(c *configv1beta1.KubeletConfiguration) []string {
	var out []string
	written := set(c)
	for _, f := range Fields() {
		if f.Effect == Without && written[f.Name] {
			out = append(out, fmt.Sprintf("%s is without effect: %s", f.Name, f.Why))
		}
	}
	if written["featureGates"] {
		out = append(out, "featureGates are without effect beyond what is checked of this configuration")
	}
	return out
}

// refused are the complaints about fields whose neglect would be unsafe.
func refused(c *configv1beta1.KubeletConfiguration) []error {
	var out []error
	written := set(c)
	harmless := map[string]bool{
		"enforceNodeAllocatable": !slices.ContainsFunc(c.EnforceNodeAllocatable, func(word string) bool { return word != enforcePods && word != enforceNone }),
		"imagePullCredentialsVerificationPolicy": slices.Contains([]configv1beta1.ImagePullCredentialsVerificationPolicy{"", configv1beta1.NeverVerify, configv1beta1.NeverVerifyPreloadedImages},
			c.ImagePullCredentialsVerificationPolicy),
		"imageServiceEndpoint": c.ImageServiceEndpoint == c.ContainerRuntimeEndpoint,
	}
	for _, f := range Fields() {
		if f.Effect == Refused && written[f.Name] && !harmless[f.Name] {
			out = append(out, fmt.Errorf("%s is not supported: %s", f.Name, f.Why))
		}
	}
	return out
}
