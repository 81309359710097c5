// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
)

// DefaultEvictionHard returns the default hard thresholds.
func DefaultEvictionHard() map[string]string {
	return map[string]string{
		"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%",
	}
}

// SetDefaults sets the defaults of unset fields as kubelet 1.37 does.
func SetDefaults(c *configv1beta1.KubeletConfiguration) {
	c.APIVersion, c.Kind = configv1beta1.SchemeGroupVersion.String(), "KubeletConfiguration"
	componentconfig.Pointer(&c.EnableServer, true)
	componentconfig.Duration(&c.SyncFrequency, time.Minute)
	componentconfig.Duration(&c.FileCheckFrequency, 20*time.Second)
	componentconfig.Duration(&c.HTTPCheckFrequency, 20*time.Second)
	componentconfig.Value(&c.Address, "0.0.0.0")
	componentconfig.Value(&c.Port, 10250)
	componentconfig.Pointer(&c.Authentication.Anonymous.Enabled, false)
	componentconfig.Pointer(&c.Authentication.Webhook.Enabled, true)
	componentconfig.Duration(&c.Authentication.Webhook.CacheTTL, 2*time.Minute)
	componentconfig.Value(&c.Authorization.Mode, configv1beta1.KubeletAuthorizationModeWebhook)
	componentconfig.Duration(&c.Authorization.Webhook.CacheAuthorizedTTL, 5*time.Minute)
	componentconfig.Duration(&c.Authorization.Webhook.CacheUnauthorizedTTL, 30*time.Second)
	componentconfig.Pointer(&c.RegistryPullQPS, 5)
	componentconfig.Value(&c.RegistryBurst, 10)
	componentconfig.Pointer(&c.EventRecordQPS, 50)
	componentconfig.Value(&c.EventBurst, 100)
	componentconfig.Pointer(&c.EnableDebuggingHandlers, true)
	componentconfig.Pointer(&c.HealthzPort, 10248)
	componentconfig.Value(&c.HealthzBindAddress, "127.0.0.1")
	componentconfig.Pointer(&c.OOMScoreAdj, -999)
	componentconfig.Duration(&c.StreamingConnectionIdleTimeout, 4*time.Hour)
	if c.NodeStatusReportFrequency.Duration == 0 {
		// A shorter interval of checks means a shorter interval of writes.
		c.NodeStatusReportFrequency.Duration = cmp.Or(c.NodeStatusUpdateFrequency.Duration, 5*time.Minute)
	}
	componentconfig.Duration(&c.NodeStatusUpdateFrequency, 10*time.Second)
	componentconfig.Value(&c.NodeLeaseDurationSeconds, 40)
	componentconfig.Duration(&c.ImageMinimumGCAge, 2*time.Minute)
	componentconfig.Pointer(&c.ImageGCHighThresholdPercent, 85)
	componentconfig.Pointer(&c.ImageGCLowThresholdPercent, 80)
	componentconfig.Duration(&c.VolumeStatsAggPeriod, time.Minute)
	componentconfig.Pointer(&c.CgroupsPerQOS, true)
	componentconfig.Value(&c.CgroupDriver, "cgroupfs")
	componentconfig.Value(&c.CPUManagerPolicy, "none")
	componentconfig.Duration(&c.CPUManagerReconcilePeriod, 10*time.Second)
	componentconfig.Value(&c.MemoryManagerPolicy, configv1beta1.NoneMemoryManagerPolicy)
	componentconfig.Value(&c.TopologyManagerPolicy, configv1beta1.NoneTopologyManagerPolicy)
	componentconfig.Value(&c.TopologyManagerScope, configv1beta1.ContainerTopologyManagerScope)
	componentconfig.Duration(&c.RuntimeRequestTimeout, 2*time.Minute)
	componentconfig.Value(&c.HairpinMode, configv1beta1.PromiscuousBridge)
	componentconfig.Value(&c.MaxPods, 110)
	if c.PodPidsLimit == nil || *c.PodPidsLimit < 0 {
		c.PodPidsLimit = new(int64(-1))
	}
	componentconfig.Pointer(&c.ResolverConfig, "/etc/resolv.conf")
	componentconfig.Pointer(&c.CPUCFSQuota, true)
	componentconfig.Pointer(&c.CPUCFSQuotaPeriod, metav1.Duration{Duration: 100 * time.Millisecond})
	componentconfig.Pointer(&c.NodeStatusMaxImages, 50)
	componentconfig.Value(&c.MaxOpenFiles, 1000000)
	componentconfig.Value(&c.ContentType, "application/vnd.kubernetes.protobuf")
	componentconfig.Pointer(&c.KubeAPIQPS, 50)
	componentconfig.Value(&c.KubeAPIBurst, 100)
	componentconfig.Pointer(&c.SerializeImagePulls, c.MaxParallelImagePulls == nil || *c.MaxParallelImagePulls < 2)
	componentconfig.Duration(&c.EvictionPressureTransitionPeriod, 5*time.Minute)
	componentconfig.Pointer(&c.MergeDefaultEvictionSettings, false)
	componentconfig.Pointer(&c.EnableControllerAttachDetach, true)
	componentconfig.Pointer(&c.MakeIPTablesUtilChains, true)
	componentconfig.Pointer(&c.IPTablesMasqueradeBit, 14)
	componentconfig.Pointer(&c.IPTablesDropBit, 15)
	componentconfig.Pointer(&c.FailSwapOn, true)
	componentconfig.Value(&c.ContainerLogMaxSize, "10Mi")
	componentconfig.Pointer(&c.ContainerLogMaxFiles, 5)
	componentconfig.Pointer(&c.ContainerLogMaxWorkers, 1)
	componentconfig.Pointer(&c.ContainerLogMonitorInterval, metav1.Duration{Duration: 10 * time.Second})
	componentconfig.Value(&c.ConfigMapAndSecretChangeDetectionStrategy, configv1beta1.WatchChangeDetectionStrategy)
	if c.EnforceNodeAllocatable == nil {
		c.EnforceNodeAllocatable = []string{"pods"}
	}
	componentconfig.Value(&c.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
	componentconfig.Pointer(&c.EnableSystemLogHandler, true)
	componentconfig.Pointer(&c.EnableProfilingHandler, true)
	componentconfig.Pointer(&c.EnableDebugFlagsHandler, true)
	componentconfig.Pointer(&c.SeccompDefault, false)
	// kubelet's own default is true: by default it does not run with cgroups v1. Mortise does.
	componentconfig.Pointer(&c.FailCgroupV1, false)
	componentconfig.Value(&c.MemoryReservationPolicy, configv1beta1.NoneMemoryReservationPolicy)
	componentconfig.Pointer(&c.RegisterNode, true)
	componentconfig.Pointer(&c.LocalStorageCapacityIsolation, true)
	componentconfig.Value(&c.PodLogsDir, "/var/log/pods")
	if componentconfig.GateOn(c.FeatureGates, "KubeletCrashLoopBackOffMax") {
		componentconfig.Pointer(&c.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{Duration: 5 * time.Minute})
	}
	if componentconfig.GateOn(c.FeatureGates, "KubeletEnsureSecretPulledImages") {
		componentconfig.Value(&c.ImagePullCredentialsVerificationPolicy, configv1beta1.NeverVerifyPreloadedImages)
	}
}
