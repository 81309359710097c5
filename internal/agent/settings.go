// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/sysctls"
)

// heed applies the kubelet configuration to those options that are not set.
func (o *Options) heed() {
	o.Kubelet = kubeletconfig.Effective(o.Kubelet)
	k := o.Kubelet
	if o.Host.LogDir == "" {
		o.Host.LogDir = k.PodLogsDir
	}
	if found := o.ClusterDNS; found == nil {
		o.ClusterDNS = func() []string { return k.ClusterDNS }
	} else if len(k.ClusterDNS) > 0 {
		o.ClusterDNS = func() []string {
			if now := found(); len(now) > 0 {
				return now
			}
			return k.ClusterDNS
		}
	}
	if o.CNI.PodCIDR == "" {
		o.CNI.PodCIDR = k.PodCIDR
	}
	if !*k.EnableServer {
		o.Server.Serve, o.Server.ReadOnly = nil, nil
	}
}

// restartPeriod returns the maximum back-off of crashing containers.
func (o *Options) restartPeriod() time.Duration {
	if p := o.Kubelet.CrashLoopBackOff.MaxContainerRestartPeriod; p != nil {
		return p.Duration
	}
	return backoff.Max
}

// settings are those parts of the kubelet configuration that the node parses.
type settings struct {
	logBytes int64 // of one file; negative: no limit
	sysctls  *sysctls.List
	bootID   string // of the machine; empty: unknown
}

func (n *node) readSettings(machine hardware.Machine) error {
	k, s := n.Kubelet, &n.settings
	var err error
	s.bootID = machine.BootID
	if n.resources, err = allocatable.New(machine, int64(k.MaxPods), k); err != nil {
		return err
	}
	size, err := resource.ParseQuantity(k.ContainerLogMaxSize)
	if err != nil {
		return fmt.Errorf("read largest size of logs: %w", err)
	}
	s.logBytes = size.Value()
	s.sysctls, err = sysctls.New(machine.Kernel, k.AllowedUnsafeSysctls)
	return err
}

// driver returns the cgroup driver to use if the runtime does not report its own.
func driver(k *configv1beta1.KubeletConfiguration) runtimeapi.CgroupDriver {
	if k.CgroupDriver == "systemd" {
		return runtimeapi.CgroupDriver_SYSTEMD
	}
	return runtimeapi.CgroupDriver_CGROUPFS
}

// eventClient returns the client for events, which has its own rate limit.
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
