// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podstats measures the node, its pods and their containers: a [Provider] combines statistics of the runtime with those of the
// kernel (package stats). It caches the measurements of volumes, since these take long.
package podstats

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/stats"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// Pods are the pods of the node.
type Pods interface {
	// Spec returns the newest definition of the pod; nil: the node does not have it. The caller must not change it.
	Spec(uid types.UID) *corev1.Pod
}

// Volumes locates the volumes of pods, and says how their usage is measured.
type Volumes interface {
	Measure(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (path string, measure volumes.Measure, err error)
	// Usage measures a volume that is measured by its driver.
	Usage(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (volumes.Usage, error)
}

// ProviderConfig configures a Provider. All fields are required except CgroupFS, which is /sys/fs/cgroup by default.
type ProviderConfig struct {
	Runtime  *cri.Client
	Pods     Pods
	Volumes  Volumes
	Clock    clock.PassiveClock
	Config   runconfig.Node // locates the cgroups and logs of pods
	RootDir  string
	CgroupFS string
	// VolumePeriod is how long measurements of volumes are cached; negative: volumes are not measured.
	VolumePeriod time.Duration
}

// Provider measures the node, its pods and their containers. It is safe for concurrent use.
type Provider struct {
	ProviderConfig
	measured measured
	asked    asked
}

// NewProvider makes a Provider.
func NewProvider(c ProviderConfig) *Provider { return &Provider{ProviderConfig: c} }

// Stats measures what the options select. It implements the node's API (package server).
func (p *Provider) Stats(ctx context.Context, o stats.Options) (*stats.Usage, error) {
	out := &stats.Usage{Time: p.Clock.Now()}
	var err error
	if out.Containers, err = p.containerStats(ctx); err != nil {
		return nil, err
	}
	if !o.Cgroups && !o.Files && !o.Processes {
		return out, nil
	}
	sandboxes, err := p.readySandboxes(ctx)
	if err != nil {
		return nil, err
	}
	pods := map[types.UID]*corev1.Pod{}
	for _, s := range sandboxes {
		if pod := p.Pods.Spec(types.UID(s.GetMetadata().GetUid())); pod != nil {
			pods[pod.UID] = pod
		}
	}
	for i := range out.Containers { // older runtimes report only the image's ID
		c := &out.Containers[i]
		if pod := pods[c.Target.UID]; pod != nil && (c.Image == "" || strings.HasPrefix(c.Image, "sha256:")) {
			if spec := podspec.Container(pod, c.Target.Container); spec != nil {
				c.Image = spec.Image
			}
		}
	}
	for _, s := range sandboxes {
		if pod := pods[types.UID(s.GetMetadata().GetUid())]; pod != nil {
			out.Pods = append(out.Pods, stats.Pod{
				Target:  podspec.Target{Namespace: pod.Namespace, Pod: pod.Name, UID: pod.UID},
				Started: time.Unix(0, s.CreatedAt), SandboxID: s.Id,
			})
		}
	}
	slices.SortFunc(out.Pods, func(a, b stats.Pod) int {
		x, y := a.Target, b.Target
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.UID, y.UID))
	})
	if o.Cgroups || o.Processes {
		p.addCgroups(out, pods, o.Processes)
	}
	if o.Files {
		p.addFiles(ctx, out, pods)
	}
	return out, nil
}

// readySandboxes returns the ready sandboxes.
func (p *Provider) readySandboxes(ctx context.Context) ([]*runtimeapi.PodSandbox, error) {
	ready := &runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}}
	list, err := p.Runtime.Runtime.ListPodSandbox(cri.Quiet(ctx), ready)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	return list, nil
}

// containerStats returns the runtime's statistics of running containers.
func (p *Provider) containerStats(ctx context.Context) ([]stats.Container, error) {
	list, err := p.Runtime.Runtime.ListContainerStats(cri.Quiet(ctx), nil)
	if err != nil {
		return nil, fmt.Errorf("list container stats: %w", err)
	}
	known := map[string]*runtimeapi.Container{}
	containers, err := p.Runtime.Runtime.ListContainers(cri.Quiet(ctx), nil)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers {
		known[c.Id] = c
	}
	var out []stats.Container
	for _, s := range list {
		labels, c := s.GetAttributes().GetLabels(), known[s.GetAttributes().GetId()]
		if labels[podstate.LabelPodUID] == "" || c.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		out = append(out, stats.Container{
			Target: podspec.Target{
				Namespace: labels[podstate.LabelPodNamespace], Pod: labels[podstate.LabelPodName],
				UID: types.UID(labels[podstate.LabelPodUID]), Container: labels[podstate.LabelContainerName],
			},
			ID:                    c.Id,
			Image:                 cmp.Or(c.GetImage().GetUserSpecifiedImage(), c.GetImage().GetImage()),
			Started:               time.Unix(0, c.CreatedAt),
			Time:                  time.Unix(0, s.GetCpu().GetTimestamp()),
			CPUNanoseconds:        s.GetCpu().GetUsageCoreNanoSeconds().GetValue(),
			MemoryBytes:           s.GetMemory().GetUsageBytes().GetValue(),
			MemoryWorkingSetBytes: s.GetMemory().GetWorkingSetBytes().GetValue(),
			SwapBytes:             s.GetSwap().GetSwapUsageBytes().GetValue(),
			SwapFreeBytes:         s.GetSwap().GetSwapAvailableBytes().GetValue(),
			FilesystemBytes:       s.GetWritableLayer().GetUsedBytes().GetValue(),
			FilesystemInodes:      s.GetWritableLayer().GetInodesUsed().GetValue(),
		})
	}
	return out, nil
}

// addCgroups adds the kernel's accounting. It skips cgroups that disappear meanwhile.
func (p *Provider) addCgroups(out *stats.Usage, pods map[types.UID]*corev1.Pod, open bool) {
	read := stats.Reader{Cgroups: p.CgroupFS}
	of := func(path string) stats.Cgroup {
		g, _ := read.Group(path)
		return stats.Cgroup{Path: path, Group: g}
	}
	for _, path := range p.above() {
		if s := of(path); s.Group != nil {
			out.Node = append(out.Node, s)
		}
	}
	out.Network, _ = read.Network(os.Getpid())
	// The runtime names a container's cgroup by its ID, with some prefix and suffix.
	below := map[types.UID][]string{}
	find := func(uid types.UID, id string) string {
		pod := pods[uid]
		if pod == nil || id == "" {
			return ""
		}
		parent := p.Config.CgroupParent(pod)
		names, ok := below[uid]
		if !ok {
			names = read.Below(parent)
			below[uid] = names
		}
		if i := slices.IndexFunc(names, func(name string) bool { return strings.Contains(name, id) }); i >= 0 {
			return filepath.Join(parent, names[i])
		}
		return ""
	}
	for i := range out.Pods {
		pod := &out.Pods[i]
		if !p.Config.Flat {
			pod.Cgroup = of(p.Config.CgroupParent(pods[pod.Target.UID]))
		}
		path := find(pod.Target.UID, pod.SandboxID)
		if path == "" {
			continue
		}
		pod.Sandbox = of(path)
		for _, pid := range read.Processes(path) {
			if !read.SameNetwork(pid, os.Getpid()) {
				pod.Network, _ = read.Network(pid)
			}
			break
		}
	}
	for i := range out.Containers {
		c := &out.Containers[i]
		path := find(c.Target.UID, c.ID)
		if path == "" {
			continue
		}
		c.Cgroup = of(path)
		processes := read.Processes(path)
		c.Processes = uint64(len(processes))
		for _, pid := range processes {
			if !open {
				break
			}
			files, sockets := read.Open(pid)
			c.Files, c.Sockets = c.Files+uint64(files), c.Sockets+uint64(sockets)
		}
	}
}

// above returns the cgroups above pods: the root, that of all pods, and those of the QoS classes.
func (p *Provider) above() []string {
	out := []string{"/"}
	if p.Config.Flat {
		return out
	}
	of := func(class corev1.PodQOSClass) string {
		return filepath.Dir(p.Config.CgroupParent(&corev1.Pod{Status: corev1.PodStatus{QOSClass: class}}))
	}
	return append(out, of(corev1.PodQOSGuaranteed), of(corev1.PodQOSBurstable), of(corev1.PodQOSBestEffort))
}

// addFiles adds file systems, logs and volumes.
func (p *Provider) addFiles(ctx context.Context, out *stats.Usage, pods map[types.UID]*corev1.Pod) {
	var read stats.Reader
	out.NodeFS, _ = read.FileSystem(p.RootDir)
	if resp, err := p.Runtime.Images.ImageFsInfo(cri.Quiet(ctx)); err == nil && len(resp.GetImageFilesystems()) > 0 {
		fs := resp.ImageFilesystems[0]
		if out.ImageFS, err = read.FileSystem(fs.GetFsId().GetMountpoint()); err == nil {
			out.Images = &stats.FileSystem{Used: fs.GetUsedBytes().GetValue(), Files: fs.GetInodesUsed().GetValue()}
		}
	}
	for i := range out.Containers {
		c := &out.Containers[i]
		if pod := pods[c.Target.UID]; pod != nil {
			c.LogBytes, c.LogFiles = stats.Taken(filepath.Join(p.Config.PodLogDir(pod), c.Target.Container))
		}
	}
	uids := map[types.UID]bool{}
	late, cancel := p.ask(ctx, slices.Collect(maps.Values(pods)))
	defer cancel()
	for i := range out.Pods {
		pod := &out.Pods[i]
		uids[pod.Target.UID] = true
		pod.Volumes = p.volumeStats(ctx, late, pods[pod.Target.UID])
	}
	p.measured.keep(uids)
	p.asked.keep(uids)
}

// volumeStats returns the usage of a pod's volumes. It measures at most once in the configured period, because it must walk through the
// volumes' contents. It waits for drivers until late is closed; of those that have not answered, it has the last answer.
func (p *Provider) volumeStats(ctx context.Context, late <-chan struct{}, pod *corev1.Pod) []stats.Volume {
	period := p.VolumePeriod
	if period < 0 {
		return nil
	}
	return p.measured.of(pod.UID, p.Clock.Now(), period, func() (out []stats.Volume) {
		var read stats.Reader
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			claim := ""
			if v.PersistentVolumeClaim != nil {
				claim = v.PersistentVolumeClaim.ClaimName
			} else if v.Ephemeral != nil {
				claim = pod.Name + "-" + v.Name
			}
			path, measure, err := p.Volumes.Measure(ctx, pod, v)
			if err != nil || measure == volumes.NotMeasured {
				continue // it does not exist yet, or does not belong to the pod
			}
			if measure == volumes.MeasureDriver {
				if a := p.asked.answer(volumeOf{pod.UID, v.Name}, late); a != nil {
					u := a.usage
					out = append(out, stats.Volume{Name: v.Name, Claim: claim, Time: a.at, Own: true, Bytes: u.Used, Files: u.FilesUsed,
						FS: stats.FileSystem{Bytes: u.Bytes, Free: u.Free, Used: u.Used, Files: u.Files, FilesFree: u.FilesFree}})
				}
				continue
			}
			fs, err := read.FileSystem(path)
			if err != nil {
				continue
			}
			s := stats.Volume{Name: v.Name, Claim: claim, Time: p.Clock.Now(), FS: *fs}
			if s.Own = measure == volumes.MeasureFileSystem; s.Own {
				s.Bytes, s.Files = fs.Used, fs.Files-min(fs.Files, fs.FilesFree)
			} else {
				s.Bytes, s.Files = stats.Taken(path)
			}
			out = append(out, s)
		}
		return out
	})
}

// measured caches the usage of volumes by pod.
type measured struct {
	mu   sync.Mutex
	pods map[types.UID]measuredPod
}

type measuredPod struct {
	at      time.Time
	volumes []stats.Volume
}

// stale reports whether the usage of a pod's volumes is measured anew.
func (m *measured) stale(uid types.UID, now time.Time, period time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, ok := m.pods[uid]
	return !ok || now.Sub(p.at) >= period
}

// of returns the usage of a pod's volumes, measured anew if it is older than the period.
func (m *measured) of(uid types.UID, now time.Time, period time.Duration, measure func() []stats.Volume) []stats.Volume {
	m.mu.Lock()
	p, ok := m.pods[uid]
	m.mu.Unlock()
	if ok && now.Sub(p.at) < period {
		return p.volumes
	}
	p = measuredPod{now, measure()}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods == nil {
		m.pods = map[types.UID]measuredPod{}
	}
	m.pods[uid] = p
	return p.volumes
}

// keep drops all other pods.
func (m *measured) keep(uids map[types.UID]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.pods {
		if !uids[uid] {
			delete(m.pods, uid)
		}
	}
}
