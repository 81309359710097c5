// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/figures"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// StatsOptions say what is measured beside what the runtime itself measures of running containers.
type StatsOptions struct {
	Cgroups   bool // what the kernel counts: of the node, of pods, of containers; and networks
	Files     bool // file systems, logs and volumes
	Processes bool // what processes have open
}

// Stats are what a node and what runs on it use.
type Stats struct {
	Time            time.Time
	Node            []CgroupStats // the root, and those that hold all pods and the pods of a class; the root first
	Pods            []PodStats
	Containers      []ContainerStats    // that run
	NodeFS, ImageFS *figures.FileSystem // nil: not known
	Images          *figures.FileSystem // Used and Files are what images take
	Network         []figures.Interface // the machine's
}

// CgroupStats are what a cgroup uses.
type CgroupStats struct {
	Path  string         // from the root of the cgroups
	Group *figures.Group // nil: the kernel does not tell
}

// PodStats are what a pod uses, with its sandbox.
type PodStats struct {
	CgroupStats
	Target    Target // without a container
	Started   time.Time
	SandboxID string
	Sandbox   CgroupStats
	Network   []figures.Interface // none for a pod of the node's network
	Volumes   []VolumeStats
}

// ContainerStats are what one container uses. Time, processor and memory are as the runtime has them.
type ContainerStats struct {
	CgroupStats
	Target                Target
	ID, Image             string
	Started               time.Time
	Time                  time.Time
	CPUNanoseconds        uint64 // used since it started
	MemoryBytes           uint64 // usage
	MemoryWorkingSetBytes uint64
	SwapBytes             uint64
	SwapFreeBytes         uint64
	FilesystemBytes       uint64 // writable layer
	FilesystemInodes      uint64
	LogBytes, LogFiles    uint64
	Processes             uint64
	Files, Sockets        uint64 // that processes have open
}

// VolumeStats are what a volume of a pod uses.
type VolumeStats struct {
	Name, Claim string // Claim: of a persistent volume
	Time        time.Time
	FS          figures.FileSystem
	Bytes       uint64 // that it takes
	Files       uint64
	Own         bool // it shares its room with nothing that lies on the node's own file system
}

// Stats implements Node.
func (n *node) Stats(ctx context.Context, o StatsOptions) (*Stats, error) {
	out := &Stats{Time: n.Clock.Now()}
	var err error
	if out.Containers, err = n.containerStats(ctx); err != nil {
		return nil, err
	}
	if !o.Cgroups && !o.Files && !o.Processes {
		return out, nil
	}
	sandboxes, err := n.readySandboxes(ctx)
	if err != nil {
		return nil, err
	}
	pods := map[types.UID]*corev1.Pod{}
	for _, s := range sandboxes {
		if pod := n.specOf(types.UID(s.GetMetadata().GetUid())); pod != nil {
			pods[pod.UID] = pod
		}
	}
	for i := range out.Containers { // older runtimes have the image's ID alone
		c := &out.Containers[i]
		if pod := pods[c.Target.UID]; pod != nil && (c.Image == "" || strings.HasPrefix(c.Image, "sha256:")) {
			if spec := container(pod, c.Target.Container); spec != nil {
				c.Image = spec.Image
			}
		}
	}
	for _, s := range sandboxes {
		if pod := pods[types.UID(s.GetMetadata().GetUid())]; pod != nil {
			out.Pods = append(out.Pods, PodStats{
				Target:  Target{Namespace: pod.Namespace, Pod: pod.Name, UID: pod.UID},
				Started: time.Unix(0, s.CreatedAt), SandboxID: s.Id,
			})
		}
	}
	slices.SortFunc(out.Pods, func(a, b PodStats) int {
		return cmp.Or(cmp.Compare(a.Target.Namespace, b.Target.Namespace), cmp.Compare(a.Target.Pod, b.Target.Pod), cmp.Compare(a.Target.UID, b.Target.UID))
	})
	if o.Cgroups || o.Processes {
		n.addCgroups(out, pods, o.Processes)
	}
	if o.Files {
		n.addFiles(ctx, out, pods)
	}
	return out, nil
}

// readySandboxes are the sandboxes that run.
func (n *node) readySandboxes(ctx context.Context) ([]*runtimeapi.PodSandbox, error) {
	ready := &runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}}
	list, err := n.cri.Runtime.ListPodSandbox(cri.Quiet(ctx), ready)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	return list, nil
}

// containerStats are those of running containers as the runtime has them.
func (n *node) containerStats(ctx context.Context) ([]ContainerStats, error) {
	list, err := n.cri.Runtime.ListContainerStats(cri.Quiet(ctx), nil)
	if err != nil {
		return nil, fmt.Errorf("list container stats: %w", err)
	}
	known := map[string]*runtimeapi.Container{}
	containers, err := n.cri.Runtime.ListContainers(cri.Quiet(ctx), nil)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, c := range containers {
		known[c.Id] = c
	}
	var out []ContainerStats
	for _, s := range list {
		labels, c := s.GetAttributes().GetLabels(), known[s.GetAttributes().GetId()]
		if labels[podstate.LabelPodUID] == "" || c.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		out = append(out, ContainerStats{
			Target:                Target{Namespace: labels[podstate.LabelPodNamespace], Pod: labels[podstate.LabelPodName], UID: types.UID(labels[podstate.LabelPodUID]), Container: labels[podstate.LabelContainerName]},
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

// addCgroups adds what the kernel counts. What goes meanwhile is left out.
func (n *node) addCgroups(out *Stats, pods map[types.UID]*corev1.Pod, open bool) {
	read := figures.Reader{Cgroups: n.CgroupFS}
	of := func(path string) CgroupStats {
		g, _ := read.Group(path)
		return CgroupStats{path, g}
	}
	for _, path := range n.above() {
		if s := of(path); s.Group != nil {
			out.Node = append(out.Node, s)
		}
	}
	out.Network, _ = read.Network(os.Getpid())
	// The runtime names a container's cgroup by its ID, with whatever before and after.
	below := map[types.UID][]string{}
	find := func(uid types.UID, id string) string {
		pod := pods[uid]
		if pod == nil || id == "" {
			return ""
		}
		parent := n.config.CgroupParent(pod)
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
		p := &out.Pods[i]
		if !n.config.Flat {
			p.CgroupStats = of(n.config.CgroupParent(pods[p.Target.UID]))
		}
		path := find(p.Target.UID, p.SandboxID)
		if path == "" {
			continue
		}
		p.Sandbox = of(path)
		for _, pid := range read.Processes(path) {
			if !read.SameNetwork(pid, os.Getpid()) {
				p.Network, _ = read.Network(pid)
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
		c.CgroupStats = of(path)
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

// above are the cgroups that pods are in: the root, that of all pods, and those of the classes.
func (n *node) above() []string {
	out := []string{"/"}
	if n.config.Flat {
		return out
	}
	of := func(class corev1.PodQOSClass) string {
		return filepath.Dir(n.config.CgroupParent(&corev1.Pod{Status: corev1.PodStatus{QOSClass: class}}))
	}
	return append(out, of(corev1.PodQOSGuaranteed), of(corev1.PodQOSBurstable), of(corev1.PodQOSBestEffort))
}

// addFiles adds file systems, logs and volumes.
func (n *node) addFiles(ctx context.Context, out *Stats, pods map[types.UID]*corev1.Pod) {
	var read figures.Reader
	out.NodeFS, _ = read.FileSystem(n.RootDir)
	if resp, err := n.cri.Images.ImageFsInfo(cri.Quiet(ctx)); err == nil && len(resp.GetImageFilesystems()) > 0 {
		fs := resp.ImageFilesystems[0]
		if out.ImageFS, err = read.FileSystem(fs.GetFsId().GetMountpoint()); err == nil {
			out.Images = &figures.FileSystem{Used: fs.GetUsedBytes().GetValue(), Files: fs.GetInodesUsed().GetValue()}
		}
	}
	for i := range out.Containers {
		c := &out.Containers[i]
		if pod := pods[c.Target.UID]; pod != nil {
			c.LogBytes, c.LogFiles = figures.Taken(filepath.Join(n.config.PodLogDir(pod), c.Target.Container))
		}
	}
	uids := map[types.UID]bool{}
	for i := range out.Pods {
		p := &out.Pods[i]
		uids[p.Target.UID] = true
		p.Volumes = n.volumeStats(ctx, pods[p.Target.UID])
	}
	n.measured.keep(uids)
}

// volumeStats are those of a pod's volumes, measured at most once in the period that the configuration says: what lies in them has to be
// looked through.
func (n *node) volumeStats(ctx context.Context, pod *corev1.Pod) []VolumeStats {
	period := n.Kubelet.VolumeStatsAggPeriod.Duration
	if period < 0 {
		return nil
	}
	return n.measured.of(pod.UID, n.Clock.Now(), period, func() (out []VolumeStats) {
		var read figures.Reader
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			claim := ""
			if v.PersistentVolumeClaim != nil {
				claim = v.PersistentVolumeClaim.ClaimName
			} else if v.Ephemeral != nil {
				claim = pod.Name + "-" + v.Name
			}
			path, measure, err := n.volumes.Measure(ctx, pod, v)
			if err != nil || measure == volumes.NotMeasured {
				continue // it is not there yet, or not the pod's
			}
			fs, err := read.FileSystem(path)
			if err != nil {
				continue
			}
			s := VolumeStats{Name: v.Name, Claim: claim, Time: n.Clock.Now(), FS: *fs}
			if s.Own = measure == volumes.MeasureFileSystem; s.Own {
				s.Bytes, s.Files = fs.Used, fs.Files-min(fs.Files, fs.FilesFree)
			} else {
				s.Bytes, s.Files = figures.Taken(path)
			}
			out = append(out, s)
		}
		return out
	})
}

// measured are volumes' figures by pod, which are kept for a while.
type measured struct {
	mu   sync.Mutex
	pods map[types.UID]measuredPod
}

type measuredPod struct {
	at      time.Time
	volumes []VolumeStats
}

// of are a pod's, measured anew if they are older than the period.
func (m *measured) of(uid types.UID, now time.Time, period time.Duration, measure func() []VolumeStats) []VolumeStats {
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

// keep forgets other pods.
func (m *measured) keep(uids map[types.UID]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.pods {
		if !uids[uid] {
			delete(m.pods, uid)
		}
	}
}
