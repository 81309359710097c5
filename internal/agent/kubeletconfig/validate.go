// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
	"github.com/mortise-dev/mortise/internal/agent/pullmanager"
)

// mistakes collects validation errors.
type mistakes []error

func (m *mistakes) add(wrong bool, format string, args ...any) {
	if wrong {
		*m = append(*m, fmt.Errorf("invalid configuration: "+format, args...))
	}
}

// Validate validates a configuration with defaults: it rejects what kubelet 1.37 rejects, with its messages, and what this node does not
// support.
func Validate(c *configv1beta1.KubeletConfiguration) error {
	var m mistakes
	m = append(m, componentconfig.CheckGates(c.FeatureGates)...)
	checkNumbers(c, &m)
	checkImages(c, &m)
	checkShutdown(c, &m)
	checkReserved(c, &m)
	checkChoices(c, &m)
	checkAddresses(c, &m)
	checkLogs(c, &m)
	checkUserNamespaces(c, &m)
	if _, err := Evictions(c); err != nil {
		m = append(m, err)
	}
	m = append(m, refused(c)...)
	return utilerrors.NewAggregate(m)
}

func port(n int32) bool { return len(validation.IsValidPortNum(int(n))) == 0 }

func within(n, low, high int64) bool { return n >= low && n <= high }

func checkNumbers(c *configv1beta1.KubeletConfiguration, m *mistakes) {
	m.add(c.NodeLeaseDurationSeconds <= 0, "nodeLeaseDurationSeconds must be greater than 0")
	m.add(c.SystemCgroups != "" && c.CgroupRoot == "",
		"systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified")
	m.add(c.EventBurst < 0, "eventBurst (--event-burst) %v must not be a negative number", c.EventBurst)
	m.add(*c.EventRecordQPS < 0, "eventRecordQPS (--event-qps) %v must not be a negative number", *c.EventRecordQPS)
	m.add(*c.HealthzPort != 0 && !port(*c.HealthzPort), "healthzPort (--healthz-port) %v must be between 1 and 65535, inclusive",
		*c.HealthzPort)
	period := c.CPUCFSQuotaPeriod.Duration
	if componentconfig.GateOn(c.FeatureGates, "CustomCPUCFSQuotaPeriod") {
		m.add(!within(int64(period), int64(time.Millisecond), int64(time.Second)),
			"cpuCFSQuotaPeriod (--cpu-cfs-quota-period) %v must be between 1ms and 1sec, inclusive", *c.CPUCFSQuotaPeriod)
	} else {
		m.add(period != 100*time.Millisecond, "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) %v requires feature gate CustomCPUCFSQuotaPeriod",
			*c.CPUCFSQuotaPeriod)
	}
	m.add(!within(int64(*c.IPTablesDropBit), 0, 31), "iptablesDropBit (--iptables-drop-bit) %v must be between 0 and 31, inclusive",
		*c.IPTablesDropBit)
	m.add(!within(int64(*c.IPTablesMasqueradeBit), 0, 31),
		"iptablesMasqueradeBit (--iptables-masquerade-bit) %v must be between 0 and 31, inclusive", *c.IPTablesMasqueradeBit)
	m.add(c.KubeAPIBurst < 0, "kubeAPIBurst (--kube-api-burst) %v must not be a negative number", c.KubeAPIBurst)
	m.add(*c.KubeAPIQPS < 0, "kubeAPIQPS (--kube-api-qps) %v must not be a negative number", *c.KubeAPIQPS)
	m.add(*c.NodeStatusMaxImages < -1, "nodeStatusMaxImages (--node-status-max-images) %v must be -1 or greater", *c.NodeStatusMaxImages)
	m.add(c.MaxOpenFiles < 0, "maxOpenFiles (--max-open-files) %v must not be a negative number", c.MaxOpenFiles)
	m.add(c.MaxPods < 0, "maxPods (--max-pods) %v must not be a negative number", c.MaxPods)
	m.add(!within(int64(*c.OOMScoreAdj), -1000, 1000), "oomScoreAdj (--oom-score-adj) %v must be between -1000 and 1000, inclusive",
		*c.OOMScoreAdj)
	m.add(c.PodsPerCore < 0, "podsPerCore (--pods-per-core) %v must not be a negative number", c.PodsPerCore)
	m.add(!port(c.Port), "port (--port) %v must be between 1 and 65535, inclusive", c.Port)
	m.add(c.ReadOnlyPort != 0 && !port(c.ReadOnlyPort), "readOnlyPort (--read-only-port) %v must be between 0 and 65535, inclusive",
		c.ReadOnlyPort)
	m.add(c.RegistryBurst < 0, "registryBurst (--registry-burst) %v must not be a negative number", c.RegistryBurst)
	m.add(*c.RegistryPullQPS < 0, "registryPullQPS (--registry-qps) %v must not be a negative number", *c.RegistryPullQPS)
	if p := c.CrashLoopBackOff.MaxContainerRestartPeriod; componentconfig.GateOn(c.FeatureGates, "KubeletCrashLoopBackOffMax") {
		m.add(p == nil, "FeatureGate KubeletCrashLoopBackOffMax is enabled, CrashLoopBackOff.MaxContainerRestartPeriod must be set")
		m.add(p != nil && !within(p.Milliseconds(), 1000, 300000),
			"CrashLoopBackOff.MaxContainerRestartPeriod (got: %v seconds) must be set between 1s and 300s", seconds(p))
	} else {
		m.add(p != nil, "FeatureGate KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not be set")
	}
	if f := c.MemoryThrottlingFactor; f != nil {
		m.add(!componentconfig.GateOn(c.FeatureGates, "MemoryQoS") && *f != 0.9,
			"memoryThrottlingFactor must not be set when MemoryQoS feature gate is disabled")
		m.add(*f <= 0 || *f > 1, "memoryThrottlingFactor %v must be greater than 0 and less than or equal to 1.0", *f)
	}
	for _, d := range []struct {
		name string
		time time.Duration
	}{
		{"syncFrequency", c.SyncFrequency.Duration}, {"fileCheckFrequency", c.FileCheckFrequency.Duration},
		{"httpCheckFrequency", c.HTTPCheckFrequency.Duration},
		{"nodeStatusUpdateFrequency", c.NodeStatusUpdateFrequency.Duration}, {"nodeStatusReportFrequency", c.NodeStatusReportFrequency.Duration},
		{"evictionPressureTransitionPeriod", c.EvictionPressureTransitionPeriod.Duration},
	} {
		// kubelet accepts these values, and then spins or panics.
		m.add(d.time < 0, "%s %v must not be negative", d.name, d.time)
	}
	m.add(c.EvictionMaxPodGracePeriod < 0, "evictionMaxPodGracePeriod %v must not be negative", c.EvictionMaxPodGracePeriod)
}

func seconds(d interface{ Seconds() float64 }) float64 { return d.Seconds() }

func checkImages(c *configv1beta1.KubeletConfiguration, m *mistakes) {
	high, low := *c.ImageGCHighThresholdPercent, *c.ImageGCLowThresholdPercent
	m.add(!within(int64(high), 0, 100), "imageGCHighThresholdPercent (--image-gc-high-threshold) %v must be between 0 and 100, inclusive",
		high)
	m.add(!within(int64(low), 0, 100), "imageGCLowThresholdPercent (--image-gc-low-threshold) %v must be between 0 and 100, inclusive", low)
	m.add(low >= high, "imageGCLowThresholdPercent (--image-gc-low-threshold) %v must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) %v", low, high)
	least, most := c.ImageMinimumGCAge.Duration, c.ImageMaximumGCAge.Duration
	m.add(most != 0 && !componentconfig.GateOn(c.FeatureGates, "ImageMaximumGCAge"),
		"ImageMaximumGCAge feature gate is required for Kubelet configuration option imageMaximumGCAge")
	m.add(least < 0, "imageMinimumGCAge %v must not be negative", least)
	m.add(most < 0, "imageMaximumGCAge %v must not be negative", most)
	m.add(most > 0 && most <= least, "imageMaximumGCAge %v must be greater than imageMinimumGCAge %v", most, least)
	if n := c.MaxParallelImagePulls; n != nil {
		m.add(*n < 1, "maxParallelImagePulls %v must be a positive number", *n)
		m.add(*c.SerializeImagePulls && *n > 1,
			"maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false")
	}
	policy := c.ImagePullCredentialsVerificationPolicy
	if !componentconfig.GateOn(c.FeatureGates, "KubeletEnsureSecretPulledImages") {
		m.add(policy != "", "`imagePullCredentialsVerificationPolicy` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled")
		m.add(len(c.PreloadedImagesVerificationAllowlist) > 0,
			"`preloadedImagesVerificationAllowlist` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled")
		return
	}
	policies := []configv1beta1.ImagePullCredentialsVerificationPolicy{configv1beta1.NeverVerify, configv1beta1.NeverVerifyPreloadedImages,
		configv1beta1.NeverVerifyAllowlistedImages, configv1beta1.AlwaysVerify}
	m.add(!slices.Contains(policies, policy),
		"option %q specified for imagePullCredentialsVerificationPolicy. Valid options are %q, %q, %q or %q", policy, policies[0], policies[1],
		policies[2], policies[3])
	if err := pullmanager.ValidateAllowlist(c.PreloadedImagesVerificationAllowlist); err != nil &&
		policy == configv1beta1.NeverVerifyAllowlistedImages {
		m.add(true, "invalid image pattern in `preloadedImagesVerificationAllowlist`: %v", err)
	}
	m.add(len(c.PreloadedImagesVerificationAllowlist) > 0 && policy != configv1beta1.NeverVerifyAllowlistedImages,
		"can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \"NeverVerifyAllowlistedImages\"")
}

func checkShutdown(c *configv1beta1.KubeletConfiguration, m *mistakes) {
	all, critical, byPriority := c.ShutdownGracePeriod, c.ShutdownGracePeriodCriticalPods, len(c.ShutdownGracePeriodByPodPriority) > 0
	if componentconfig.GateOn(c.FeatureGates, "GracefulNodeShutdown") {
		m.add(critical.Duration > all.Duration, "shutdownGracePeriodCriticalPods %v must be <= shutdownGracePeriod %v", critical, all)
		m.add(all.Duration < 0 || all.Duration > 0 && all.Duration < time.Second,
			"shutdownGracePeriod %v must be either zero or otherwise >= 1 sec", all)
		m.add(critical.Duration < 0 || critical.Duration > 0 && critical.Duration < time.Second,
			"shutdownGracePeriodCriticalPods %v must be either zero or otherwise >= 1 sec", critical)
	} else {
		m.add(all.Duration > 0 || critical.Duration > 0,
			"specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate GracefulNodeShutdown")
	}
	if componentconfig.GateOn(c.FeatureGates, "GracefulNodeShutdownBasedOnPodPriority") {
		m.add(byPriority && (all.Duration > 0 || critical.Duration > 0),
			"Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time")
	} else {
		m.add(byPriority, "Specifying shutdownGracePeriodByPodPriority requires feature gate GracefulNodeShutdownBasedOnPodPriority")
	}
	for _, p := range c.ShutdownGracePeriodByPodPriority {
		m.add(p.ShutdownGracePeriodSeconds < 0, "shutdownGracePeriodByPodPriority: %d seconds for priority %d must not be negative",
			p.ShutdownGracePeriodSeconds, p.Priority)
	}
}

// The values of enforceNodeAllocatable.
const (
	enforcePods               = "pods"
	enforceSystem             = "system-reserved"
	enforceSystemCompressible = "system-reserved-compressible"
	enforceKube               = "kube-reserved"
	enforceKubeCompressible   = "kube-reserved-compressible"
	enforceNone               = "none"
)

func checkReserved(c *configv1beta1.KubeletConfiguration, m *mistakes) {
	list := c.EnforceNodeAllocatable
	for _, pair := range [][2]string{{enforceSystem, enforceSystemCompressible}, {enforceKube, enforceKubeCompressible}} {
		m.add(slices.Contains(list, pair[0]) && slices.Contains(list, pair[1]),
			"both %q and %q cannot be specified together in enforceNodeAllocatable (--enforce-node-allocatable)", pair[0], pair[1])
	}
	for i, word := range list {
		if slices.Contains(list[:i], word) {
			m.add(true, "duplicated enforcements %q in enforceNodeAllocatable (--enforce-node-allocatable)", word)
			continue
		}
		switch word {
		case enforcePods:
		case enforceSystem, enforceSystemCompressible:
			m.add(c.SystemReservedCgroup == "", "systemReservedCgroup (--system-reserved-cgroup) must be specified when %q or %q included in enforceNodeAllocatable (--enforce-node-allocatable)", enforceSystem, enforceSystemCompressible)
		case enforceKube, enforceKubeCompressible:
			m.add(c.KubeReservedCgroup == "", "kubeReservedCgroup (--kube-reserved-cgroup) must be specified when %q or %q included in enforceNodeAllocatable (--enforce-node-allocatable)", enforceKube, enforceKubeCompressible)
		case enforceNone:
			m.add(len(list) > 1, "enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements when %q is specified",
				enforceNone)
			continue
		default:
			m.add(true, "option %q specified for enforceNodeAllocatable (--enforce-node-allocatable). Valid options are %q, %q, %q, %q, %q or %q",
				word, enforcePods, enforceSystem, enforceSystemCompressible, enforceKube, enforceKubeCompressible, enforceNone)
			continue
		}
		m.add(!*c.CgroupsPerQOS, "cgroupsPerQOS (--cgroups-per-qos) must be set to true when %q contained in enforceNodeAllocatable (--enforce-node-allocatable)", word)
	}
	if c.ReservedSystemCPUs != "" {
		m.add(c.SystemReservedCgroup != "" || c.KubeReservedCgroup != "",
			"can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)")
		if _, err := cpuset.Parse(c.ReservedSystemCPUs); err != nil {
			m.add(true, "unable to parse reservedSystemCPUs (--reserved-cpus) %v, error: %w", c.ReservedSystemCPUs, err)
		}
	}
	for _, r := range []struct {
		field string
		list  map[string]string
	}{{"systemReserved", c.SystemReserved}, {"kubeReserved", c.KubeReserved}} {
		if _, err := Reserved(r.list); err != nil {
			m.add(true, "%s: %w", r.field, err)
		}
	}
	type numa struct {
		node int32
		name corev1.ResourceName
	}
	seen := map[numa]bool{}
	for _, r := range c.ReservedMemory {
		for name, quantity := range r.Limits {
			m.add(name != corev1.ResourceMemory && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix),
				"the limit type %q for NUMA node %d is not supported, only %v is accepted", name, r.NumaNode,
				[]corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceHugePagesPrefix + "<HugePageSize>"})
			m.add(quantity.IsZero(), "reserved memory may not be zero for NUMA node %d and resource %q", r.NumaNode, name)
			m.add(seen[numa{r.NumaNode, name}], "the reserved memory has a duplicate value for NUMA node %d and resource %q", r.NumaNode, name)
			seen[numa{r.NumaNode, name}] = true
		}
	}
}

// Reserved parses systemReserved or kubeReserved.
func Reserved(list map[string]string) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for name, text := range list {
		switch corev1.ResourceName(name) {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, "pid":
			q, err := resource.ParseQuantity(text)
			if err != nil {
				return nil, fmt.Errorf("failed to parse quantity %q for %q resource: %w", text, name, err) // upstream's words
			}
			if q.Sign() == -1 {
				return nil, fmt.Errorf("resource quantity for %q cannot be negative: %v", name, text)
			}
			out[corev1.ResourceName(name)] = q
		default:
			return nil, fmt.Errorf("cannot reserve %q resource", name)
		}
	}
	return out, nil
}

func checkChoices(c *configv1beta1.KubeletConfiguration, m *mistakes) {
	m.add(c.ServerTLSBootstrap && !componentconfig.GateOn(c.FeatureGates, "RotateKubeletServerCertificate"),
		"serverTLSBootstrap %v requires feature gate RotateKubeletServerCertificate", c.ServerTLSBootstrap)
	m.add(c.RunOnce, "runOnce (--runOnce) %v, Runonce mode has been deprecated and should not be set", c.RunOnce)
	for _, t := range c.RegisterWithTaints {
		effects := []corev1.TaintEffect{"", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
		m.add(len(validation.IsQualifiedName(t.Key)) > 0 || len(validation.IsValidLabelValue(t.Value)) > 0 || !slices.Contains(effects, t.Effect),
			"taint: %v", t)
		m.add(t.TimeAdded != nil, "taint.TimeAdded is not nil")
	}
	policies := []string{configv1beta1.NoneTopologyManagerPolicy, configv1beta1.BestEffortTopologyManagerPolicy,
		configv1beta1.RestrictedTopologyManagerPolicy, configv1beta1.SingleNumaNodeTopologyManagerPolicy}
	m.add(!slices.Contains(policies, c.TopologyManagerPolicy), "topologyManagerPolicy (--topology-manager-policy) %q must be one of: %q",
		c.TopologyManagerPolicy, policies)
	scopes := []string{configv1beta1.ContainerTopologyManagerScope, configv1beta1.PodTopologyManagerScope}
	m.add(!slices.Contains(scopes, c.TopologyManagerScope), "topologyManagerScope (--topology-manager-scope) %q must be one of: %q, or %q",
		c.TopologyManagerScope, scopes[0], scopes[1])
	if b := c.MemorySwap.SwapBehavior; componentconfig.GateOn(c.FeatureGates, "NodeSwap") {
		m.add(!slices.Contains([]string{"", "NoSwap", "LimitedSwap"}, b), "memorySwap.swapBehavior %q must be one of: \"\", %q or %q", b,
			"LimitedSwap", "NoSwap")
	} else {
		m.add(b != "", "memorySwap.swapBehavior cannot be set when NodeSwap feature flag is disabled")
	}
	hairpins := []string{configv1beta1.HairpinNone, configv1beta1.HairpinVeth, configv1beta1.PromiscuousBridge}
	m.add(!slices.Contains(hairpins, c.HairpinMode), "option %q specified for hairpinMode (--hairpin-mode). Valid options are %q, %q or %q",
		c.HairpinMode, hairpins[0], hairpins[1], hairpins[2])
	m.add(!componentconfig.GateOn(c.FeatureGates, "MemoryQoS") &&
		c.MemoryReservationPolicy == configv1beta1.TieredReservationMemoryReservationPolicy,
		"memoryReservationPolicy %q requires MemoryQoS feature gate to be enabled", c.MemoryReservationPolicy)
	reservations := []configv1beta1.MemoryReservationPolicy{configv1beta1.NoneMemoryReservationPolicy,
		configv1beta1.TieredReservationMemoryReservationPolicy}
	m.add(!slices.Contains(reservations, c.MemoryReservationPolicy),
		"option %q specified for memoryReservationPolicy. Valid options are %q or %q", c.MemoryReservationPolicy, reservations[0],
		reservations[1])
	query := c.EnableSystemLogQuery != nil && *c.EnableSystemLogQuery
	m.add(query && !componentconfig.GateOn(c.FeatureGates, "NodeLogQuery"), "NodeLogQuery feature gate is required for enableSystemLogQuery")
	m.add(query && !*c.EnableSystemLogHandler, "enableSystemLogHandler is required for enableSystemLogQuery")
	m.add(len(c.DefaultPodSysctls) > 0 && !componentconfig.GateOn(c.FeatureGates, "DefaultPodSysctls"),
		"DefaultPodSysctls feature gate is required for Kubelet configuration option defaultPodSysctls")
	m.add(c.CgroupDriver != "cgroupfs" && c.CgroupDriver != "systemd", "cgroupDriver %q must be cgroupfs or systemd", c.CgroupDriver)
	modes := []configv1beta1.KubeletAuthorizationMode{configv1beta1.KubeletAuthorizationModeAlwaysAllow,
		configv1beta1.KubeletAuthorizationModeWebhook}
	m.add(!slices.Contains(modes, c.Authorization.Mode), "authorization.mode %q must be %s or %s", c.Authorization.Mode, modes[0], modes[1])
	for _, pattern := range c.AllowedUnsafeSysctls {
		name := strings.TrimSuffix(strings.TrimSuffix(pattern, "*"), ".")
		m.add(!sysctlName.MatchString(strings.ReplaceAll(name, "/", ".")),
			"allowedUnsafeSysctls: %q is no name of a sysctl, nor one with * at its end", pattern)
	}
}

func checkAddresses(c *configv1beta1.KubeletConfiguration, m *mistakes) {
	ip := func(field, text string) {
		m.add(net.ParseIP(text) == nil, "%s %q is no IP address", field, text)
	}
	ip("address", c.Address)
	ip("healthzBindAddress", c.HealthzBindAddress)
	for _, server := range c.ClusterDNS {
		ip("clusterDNS", server)
	}
	for part := range strings.SplitSeq(c.PodCIDR, ",") {
		if part == "" && c.PodCIDR == "" {
			break
		}
		_, err := netip.ParsePrefix(part)
		m.add(err != nil, "podCIDR %q is no range of addresses", part)
	}
	m.add((c.TLSCertFile == "") != (c.TLSPrivateKeyFile == ""), "tlsCertFile and tlsPrivateKeyFile belong together")
	if _, err := TLS(c); err != nil {
		m.add(true, "%w", err)
	}
}

func checkLogs(c *configv1beta1.KubeletConfiguration, m *mistakes) {
	m.add(*c.ContainerLogMaxWorkers < 1, "containerLogMaxWorkers must be greater than or equal to 1")
	m.add(c.ContainerLogMonitorInterval.Seconds() < 3,
		"containerLogMonitorInterval must be a positive time duration greater than or equal to 3s")
	m.add(*c.ContainerLogMaxFiles <= 1, "containerLogMaxFiles must be greater than 1")
	if size, err := resource.ParseQuantity(c.ContainerLogMaxSize); err != nil {
		m.add(true, "failed to parse container log max size %q: %w", c.ContainerLogMaxSize, err) // upstream's words
	} else {
		m.add(size.Value() == 0, "containerLogMaxSize %q must not be zero", c.ContainerLogMaxSize)
	}
	m.add(!filepath.IsAbs(c.PodLogsDir), "pod logs path %q must be absolute path", c.PodLogsDir)
	m.add(filepath.Clean(c.PodLogsDir) != c.PodLogsDir, "pod logs path %q must be normalized", c.PodLogsDir)
	m.add(strings.ContainsFunc(c.PodLogsDir, func(r rune) bool { return r > unicode.MaxASCII }),
		"pod logs path %q mut contains ASCII characters only", c.PodLogsDir)
}

// userNamespaceUnit is the minimum number of IDs of a user namespace.
const userNamespaceUnit = 65536

func checkUserNamespaces(c *configv1beta1.KubeletConfiguration, m *mistakes) {
	if c.UserNamespaces == nil || c.UserNamespaces.IDsPerPod == nil {
		return
	}
	n := *c.UserNamespaces.IDsPerPod
	m.add(n < userNamespaceUnit, "userNamespaces.idsPerPod must not be less than %d", userNamespaceUnit)
	m.add(n%userNamespaceUnit != 0, "userNamespaces.idsPerPod must be a multiple of %d", userNamespaceUnit)
	m.add(n > math.MaxUint32, "userNamespaces.idsPerPod must not be more than %d", int64(math.MaxUint32))
}
