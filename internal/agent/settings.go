// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/sysctls"
)

// Effective is the configuration that a node with the given one goes by. Without one it has kubelet's defaults, but it
// runs beside swap, pulls images side by side, listens at no well-known port, and takes pods until a twentieth of the disk is
// left, as k3s does: laptops and small machines are rarely emptier than kubelet wants them.
func Effective(given *configv1beta1.KubeletConfiguration) *configv1beta1.KubeletConfiguration {
	if given != nil {
		return given
	}
	c := kubeletconfig.Default()
	c.FailSwapOn, c.SerializeImagePulls, c.HealthzPort = new(false), new(false), new(int32(0))
	c.EvictionHard = kubeletconfig.DefaultEvictionHard()
	c.EvictionHard["nodefs.available"], c.EvictionHard["imagefs.available"] = "5%", "5%"
	return c
}

// heed takes over from the kubelet configuration what the options themselves leave open.
func (o *Options) heed() {
	o.Kubelet = Effective(o.Kubelet)
	k := o.Kubelet
	if o.MaxPods == 0 {
		o.MaxPods = int64(k.MaxPods)
	}
	if o.LogDir == "" {
		o.LogDir = k.PodLogsDir
	}
	if o.ClusterDomain == "" {
		o.ClusterDomain = k.ClusterDomain
	}
	if len(o.ClusterDNS) == 0 {
		o.ClusterDNS = k.ClusterDNS
	}
	if o.PodCIDR == "" {
		o.PodCIDR = k.PodCIDR
	}
	if !*k.EnableServer {
		o.API = nil
	}
}

// restartPeriod is the longest wait of containers that keep ending.
func (o *Options) restartPeriod() time.Duration {
	if p := o.Kubelet.CrashLoopBackOff.MaxContainerRestartPeriod; p != nil {
		return p.Duration
	}
	return backoff.Max
}

// settings are the parts of the kubelet configuration that the node reads in another form.
type settings struct {
	systemReserved, kubeReserved corev1.ResourceList
	thresholds                   []evict.Threshold
	logBytes                     int64 // of one file; negative: no bound
	pulls                        *semaphore.Weighted
	pullRate                     flowcontrol.RateLimiter // nil: none
	sysctls                      *sysctls.List
}

func (n *node) readSettings() error {
	k, s := n.Kubelet, &n.settings
	var err error
	if s.systemReserved, err = kubeletconfig.Reserved(k.SystemReserved); err != nil {
		return err
	}
	if s.kubeReserved, err = kubeletconfig.Reserved(k.KubeReserved); err != nil {
		return err
	}
	if k.ReservedSystemCPUs != "" {
		set, err := cpuset.Parse(k.ReservedSystemCPUs)
		if err != nil {
			return fmt.Errorf("read reserved processors: %w", err)
		}
		s.systemReserved[corev1.ResourceCPU] = *resource.NewQuantity(int64(set.Size()), resource.DecimalSI)
		delete(s.kubeReserved, corev1.ResourceCPU)
	}
	if s.thresholds, err = kubeletconfig.Evictions(k); err != nil {
		return err
	}
	size, err := resource.ParseQuantity(k.ContainerLogMaxSize)
	if err != nil {
		return fmt.Errorf("read largest size of logs: %w", err)
	}
	s.logBytes = size.Value()
	switch {
	case *k.SerializeImagePulls:
		s.pulls = semaphore.NewWeighted(1)
	case k.MaxParallelImagePulls != nil:
		s.pulls = semaphore.NewWeighted(int64(*k.MaxParallelImagePulls))
	}
	if qps := *k.RegistryPullQPS; qps > 0 {
		s.pullRate = flowcontrol.NewTokenBucketRateLimiter(float32(qps), int(k.RegistryBurst))
	}
	if s.sysctls, err = sysctls.New(n.machine.kernel, k.AllowedUnsafeSysctls); err != nil {
		return err
	}
	if k.PodsPerCore > 0 {
		n.MaxPods = min(n.MaxPods, int64(k.PodsPerCore)*int64(n.machine.cpus))
	}
	return nil
}

// driver is the cgroup driver that is used where the runtime does not say which one is its own.
func driver(k *configv1beta1.KubeletConfiguration) runtimeapi.CgroupDriver {
	if k.CgroupDriver == "systemd" {
		return runtimeapi.CgroupDriver_SYSTEMD
	}
	return runtimeapi.CgroupDriver_CGROUPFS
}

// eventClient is the client that events go by: they have a rate of their own.
func (o *Options) eventClient() (kubernetes.Interface, error) {
	if o.Config == nil {
		return o.Client, nil
	}
	config := rest.CopyConfig(o.Config)
	config.QPS, config.Burst = float32(*o.Kubelet.EventRecordQPS), int(o.Kubelet.EventBurst)
	if config.QPS == 0 {
		config.QPS = -1
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client for events: %w", err)
	}
	return client, nil
}

// acquirePull waits until an image may be pulled.
func (n *node) acquirePull(ctx context.Context) (release func(), err error) {
	if n.settings.pulls != nil {
		if err := n.settings.pulls.Acquire(ctx, 1); err != nil {
			return nil, err
		}
	}
	release = func() {
		if n.settings.pulls != nil {
			n.settings.pulls.Release(1)
		}
	}
	if n.settings.pullRate != nil && !n.settings.pullRate.TryAccept() {
		release()
		return nil, errors.New("pull QPS exceeded") // upstream's words
	}
	return release, nil
}

// checkMachine refuses a machine that the configuration does not want to run on.
func checkMachine(k *configv1beta1.KubeletConfiguration) error {
	if *k.FailCgroupV1 && !unified() {
		return errors.New("kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release") // upstream's words
	}
	if *k.FailSwapOn {
		text, err := os.ReadFile("/proc/swaps")
		if err != nil {
			return fmt.Errorf("look for swap: %w", err)
		}
		if on := swaps(string(text)); len(on) > 0 {
			return fmt.Errorf("running with swap on is not supported, please disable swap or set --fail-swap-on flag to false: %s", strings.Join(on, ", ")) // upstream's words
		}
	}
	if k.ProtectKernelDefaults {
		return checkKernel("/proc/sys")
	}
	return nil
}

// swaps are the swap devices of /proc/swaps, without those in memory.
func swaps(text string) []string {
	var out []string
	first := true
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if !first && len(fields) > 0 && !strings.HasPrefix(fields[0], "/dev/zram") {
			out = append(out, fields[0])
		}
		first = false
	}
	return out
}

// checkKernel compares the kernel's settings with those that kubelet wants.
func checkKernel(root string) error {
	var wrong []error
	for _, want := range []struct{ name, value string }{
		{"vm/overcommit_memory", "1"}, {"vm/panic_on_oom", "0"}, {"kernel/panic", "10"}, {"kernel/panic_on_oops", "1"},
		{"kernel/keys/root_maxkeys", "1000000"}, {"kernel/keys/root_maxbytes", "25000000"},
	} {
		if have := line(root + "/" + want.name); have != want.value {
			wrong = append(wrong, fmt.Errorf("invalid kernel flag: %v, expected value: %v, actual value: %v", want.name, want.value, have)) // upstream's words
		}
	}
	return errors.Join(wrong...)
}

// unified says whether the machine has cgroups v2 alone.
func unified() bool {
	var s unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
}

// boundsSwap says whether the kernel bounds the swap of cgroups. The root of v2 has no such file: one's own is looked at.
func boundsSwap() bool {
	path := cgroupMemory + "/memory.memsw.limit_in_bytes"
	if unified() {
		path = cgroupAll + strings.TrimPrefix(line("/proc/self/cgroup"), "0::") + "/memory.swap.max"
	}
	_, err := os.Stat(path)
	return err == nil
}

// renewal is how often the lease is renewed: four times in its life.
func (n *node) renewal() time.Duration {
	return time.Duration(n.Kubelet.NodeLeaseDurationSeconds) * time.Second / 4
}
