// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"cmp"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// DefaultEvictionHard is what holds where no hard thresholds are given.
func DefaultEvictionHard() map[string]string {
	return map[string]string{
		"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%",
	}
}

func value[T comparable](field *T, fallback T) { *field = cmp.Or(*field, fallback) }

func pointer[T any](field **T, fallback T) {
	if *field == nil {
		*field = &fallback
	}
}

func duration(field *metav1.Duration, fallback time.Duration) {
	field.Duration = cmp.Or(field.Duration, fallback)
}

// SetDefaults fills in what a file leaves out, as kubelet 1.37 does.
func SetDefaults(c *configv1beta1.KubeletConfiguration) {
	c.APIVersion, c.Kind = configv1beta1.SchemeGroupVersion.String(), "KubeletConfiguration"
	pointer(&c.EnableServer, true)
	duration(&c.SyncFrequency, time.Minute)
	duration(&c.FileCheckFrequency, 20*time.Second)
	duration(&c.HTTPCheckFrequency, 20*time.Second)
	value(&c.Address, "0.0.0.0")
	value(&c.Port, 10250)
	pointer(&c.Authentication.Anonymous.Enabled, false)
	pointer(&c.Authentication.Webhook.Enabled, true)
	duration(&c.Authentication.Webhook.CacheTTL, 2*time.Minute)
	value(&c.Authorization.Mode, configv1beta1.KubeletAuthorizationModeWebhook)
	duration(&c.Authorization.Webhook.CacheAuthorizedTTL, 5*time.Minute)
	duration(&c.Authorization.Webhook.CacheUnauthorizedTTL, 30*time.Second)
	pointer(&c.RegistryPullQPS, 5)
	value(&c.RegistryBurst, 10)
	pointer(&c.EventRecordQPS, 50)
	value(&c.EventBurst, 100)
	pointer(&c.EnableDebuggingHandlers, true)
	pointer(&c.HealthzPort, 10248)
	value(&c.HealthzBindAddress, "127.0.0.1")
	pointer(&c.OOMScoreAdj, -999)
	duration(&c.StreamingConnectionIdleTimeout, 4*time.Hour)
	if c.NodeStatusReportFrequency.Duration == 0 {
		// A status that is looked at more often is also to be written more often.
		c.NodeStatusReportFrequency.Duration = cmp.Or(c.NodeStatusUpdateFrequency.Duration, 5*time.Minute)
	}
	duration(&c.NodeStatusUpdateFrequency, 10*time.Second)
	value(&c.NodeLeaseDurationSeconds, 40)
	duration(&c.ImageMinimumGCAge, 2*time.Minute)
	pointer(&c.ImageGCHighThresholdPercent, 85)
	pointer(&c.ImageGCLowThresholdPercent, 80)
	duration(&c.VolumeStatsAggPeriod, time.Minute)
	pointer(&c.CgroupsPerQOS, true)
	value(&c.CgroupDriver, "cgroupfs")
	value(&c.CPUManagerPolicy, "none")
	duration(&c.CPUManagerReconcilePeriod, 10*time.Second)
	value(&c.MemoryManagerPolicy, configv1beta1.NoneMemoryManagerPolicy)
	value(&c.TopologyManagerPolicy, configv1beta1.NoneTopologyManagerPolicy)
	value(&c.TopologyManagerScope, configv1beta1.ContainerTopologyManagerScope)
	duration(&c.RuntimeRequestTimeout, 2*time.Minute)
	value(&c.HairpinMode, configv1beta1.PromiscuousBridge)
	value(&c.MaxPods, 110)
	if c.PodPidsLimit == nil || *c.PodPidsLimit < 0 {
		c.PodPidsLimit = new(int64(-1))
	}
	pointer(&c.ResolverConfig, "/etc/resolv.conf")
	pointer(&c.CPUCFSQuota, true)
	pointer(&c.CPUCFSQuotaPeriod, metav1.Duration{Duration: 100 * time.Millisecond})
	pointer(&c.NodeStatusMaxImages, 50)
	value(&c.MaxOpenFiles, 1000000)
	value(&c.ContentType, "application/vnd.kubernetes.protobuf")
	pointer(&c.KubeAPIQPS, 50)
	value(&c.KubeAPIBurst, 100)
	pointer(&c.SerializeImagePulls, c.MaxParallelImagePulls == nil || *c.MaxParallelImagePulls < 2)
	duration(&c.EvictionPressureTransitionPeriod, 5*time.Minute)
	pointer(&c.MergeDefaultEvictionSettings, false)
	pointer(&c.EnableControllerAttachDetach, true)
	pointer(&c.MakeIPTablesUtilChains, true)
	pointer(&c.IPTablesMasqueradeBit, 14)
	pointer(&c.IPTablesDropBit, 15)
	pointer(&c.FailSwapOn, true)
	value(&c.ContainerLogMaxSize, "10Mi")
	pointer(&c.ContainerLogMaxFiles, 5)
	pointer(&c.ContainerLogMaxWorkers, 1)
	pointer(&c.ContainerLogMonitorInterval, metav1.Duration{Duration: 10 * time.Second})
	value(&c.ConfigMapAndSecretChangeDetectionStrategy, configv1beta1.WatchChangeDetectionStrategy)
	if c.EnforceNodeAllocatable == nil {
		c.EnforceNodeAllocatable = []string{"pods"}
	}
	value(&c.VolumePluginDir, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/")
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
	pointer(&c.EnableSystemLogHandler, true)
	pointer(&c.EnableProfilingHandler, true)
	pointer(&c.EnableDebugFlagsHandler, true)
	pointer(&c.SeccompDefault, false)
	// kubelet's own default is true: it does not run with cgroups v1 unless it is told to. Mortise does.
	pointer(&c.FailCgroupV1, false)
	value(&c.MemoryReservationPolicy, configv1beta1.NoneMemoryReservationPolicy)
	pointer(&c.RegisterNode, true)
	pointer(&c.LocalStorageCapacityIsolation, true)
	value(&c.PodLogsDir, "/var/log/pods")
	if enabled(c, "KubeletCrashLoopBackOffMax") {
		pointer(&c.CrashLoopBackOff.MaxContainerRestartPeriod, metav1.Duration{Duration: 5 * time.Minute})
	}
	if enabled(c, "KubeletEnsureSecretPulledImages") {
		value(&c.ImagePullCredentialsVerificationPolicy, configv1beta1.NeverVerifyPreloadedImages)
	}
}
