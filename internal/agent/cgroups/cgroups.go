// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package cgroups creates the cgroups of pods with their limits, in cgroups v1 and v2. It also sets the limits of the cgroups above them:
// each QoS class gets its share of the CPUs, and all pods together get what is not reserved for the system and the node.
package cgroups

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// DefaultRoot is the mount point of the cgroups: v2, or the trees of v1.
const DefaultRoot = "/sys/fs/cgroup"

// Pods are the pods of the node.
type Pods interface {
	// CountedPods returns the pods whose requests count against the node. The caller must not change them.
	CountedPods() []*corev1.Pod
}

// Options configure a Manager. All are required except Root, which is DefaultRoot by default, and Metrics.
type Options struct {
	Pods      Pods
	Config    runconfig.Node // names the cgroups
	Resources allocatable.Node
	Kubelet   *configv1beta1.KubeletConfiguration
	Root      string
	Metrics   *Metrics // nil: none
}

// Manager creates the cgroups of pods, and sets the limits of these, of the QoS classes and of all pods together. It has no state: the
// kernel has.
type Manager struct{ Options }

// New makes the manager.
func New(o Options) *Manager {
	o.Root = cmp.Or(o.Root, DefaultRoot)
	o.Metrics.of(tree{root: o.Root}.unified())
	return &Manager{o}
}

// Bound sets the limits of a pod's cgroup and of those above it.
func (m *Manager) Bound(pod *corev1.Pod) error {
	defer m.Metrics.observe("update")()
	return m.bound(pod, false)
}

// Raise sets only those limits that are wider than the current ones.
func (m *Manager) Raise(pod *corev1.Pod) error {
	defer m.Metrics.observe("update")()
	return m.bound(pod, true)
}

// Create creates the pod's cgroup with its limits before the sandbox. With the systemd driver, systemd creates it with the sandbox.
func (m *Manager) Create(pod *corev1.Pod) error {
	if m.Config.CgroupDriver == runtimeapi.CgroupDriver_SYSTEMD {
		return nil
	}
	defer m.Metrics.observe("create")()
	return m.bound(pod, false)
}

// bound sets the limits of a pod's cgroup, and of those above it. Pod workers call it before they create the sandbox, before they start
// containers, and when they resize the pod; it writes only limits that differ. With raise, limits only become wider.
func (m *Manager) bound(pod *corev1.Pod, raise bool) error {
	if m.Config.Flat {
		return nil
	}
	g := tree{root: m.Root, raise: raise}
	parent := m.Config.CgroupParent(pod)
	if err := g.make(parent); err != nil {
		return err
	}
	if err := m.boundAll(g, parent); err != nil {
		return err
	}
	if class := filepath.Dir(parent); class != allPods(parent) {
		shares := int64(2)
		if cmp.Or(pod.Status.QOSClass, podstatus.QOS(pod)) == corev1.PodQOSBurstable {
			shares = m.burstable(pod)
		}
		if err := g.shares(class, shares); err != nil {
			return err
		}
	}
	own := m.Config.Pod(pod)
	if err := errors.Join(
		g.shares(parent, own.Shares), g.quota(parent, own.Quota, own.Period), g.memory(parent, own.Memory), g.hugePages(parent, own.HugePages),
	); err != nil {
		return err
	}
	if most := *m.Kubelet.PodPidsLimit; most >= 0 {
		g.raise = false
		return g.mustWrite(parent, "pids", most, "pids.max")
	}
	return nil
}

// boundAll sets the limits of all pods together.
func (m *Manager) boundAll(g tree, parent string) error {
	all, capacity := allPods(parent), m.Resources.Capacity()
	enforced := slices.Contains(m.Kubelet.EnforceNodeAllocatable, "pods")
	left := func(name corev1.ResourceName) int64 {
		q := capacity[name]
		if enforced {
			q.Sub(m.Resources.Reserved(name))
		}
		if name == corev1.ResourceCPU {
			return q.MilliValue()
		}
		return q.Value()
	}
	pages := map[int64]int64{}
	for _, p := range m.Resources.Machine.HugePages {
		pages[p.Size] = p.Total
	}
	g.raise = false
	if err := errors.Join(
		g.shares(all, runconfig.Shares(left(corev1.ResourceCPU))), g.memory(all, left(corev1.ResourceMemory)), g.hugePages(all, pages),
	); err != nil {
		return err
	}
	kept := m.Resources.Reserved("pid")
	if _, most, ok := (stats.Reader{}).Threads(); ok && enforced && !kept.IsZero() {
		return g.mustWrite(all, "pids", most-kept.Value(), "pids.max")
	}
	return nil
}

// burstable returns the CPU shares of all burstable pods: of the sum of their requests.
func (m *Manager) burstable(pod *corev1.Pod) int64 {
	milli := requestedCPU(pod)
	for _, other := range m.Pods.CountedPods() {
		if other.UID != pod.UID && cmp.Or(other.Status.QOSClass, podstatus.QOS(other)) == corev1.PodQOSBurstable {
			milli += requestedCPU(other)
		}
	}
	return runconfig.Shares(milli)
}

func requestedCPU(pod *corev1.Pod) int64 {
	cpu := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceCPU]
	return cpu.MilliValue()
}

// allPods returns the cgroup of all pods, given the cgroup of one pod.
func allPods(parent string) string {
	for dir := parent; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if name := strings.TrimSuffix(filepath.Base(dir), ".slice"); name == "kubepods" || strings.HasSuffix(name, "-kubepods") {
			return dir
		}
	}
	return parent
}

// tree is the machine's cgroup tree: one for each controller in v1, a single one in v2.
type tree struct {
	root  string
	raise bool // limits only become wider
}

// controllers are the controllers of pods' limits.
var controllers = []string{"cpu", "memory", "pids", "hugetlb"}

func (g tree) unified() bool {
	_, err := os.Stat(filepath.Join(g.root, "cgroup.controllers"))
	return err == nil
}

// make creates the cgroup with its parents. The runtime creates it for the controllers that the node does not use.
func (g tree) make(cgroup string) error {
	if !g.unified() {
		for _, c := range controllers {
			tree := filepath.Join(g.root, c)
			if _, err := os.Stat(filepath.Join(tree, "cgroup.procs")); err != nil {
				continue // the machine does not have it; systemd leaves an empty directory for what it cannot mount
			}
			if err := os.MkdirAll(filepath.Join(tree, cgroup), 0o755); err != nil {
				return fmt.Errorf("make cgroup: %w", err)
			}
		}
		return nil
	}
	dir := g.root
	for part := range strings.SplitSeq(strings.Trim(cgroup, "/"), "/") {
		have := strings.Fields(hardware.Line(filepath.Join(dir, "cgroup.controllers")))
		on := strings.Fields(hardware.Line(filepath.Join(dir, "cgroup.subtree_control")))
		for _, c := range have {
			if slices.Contains(on, c) {
				continue
			}
			// Some controllers cannot be enabled in subtrees; writing their files fails later.
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o600); err != nil &&
				slices.Contains(controllers[:3], c) {
				return fmt.Errorf("hand %s down to cgroups: %w", c, err)
			}
		}
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	return nil
}

// file returns the path of a cgroup's setting; false: the machine does not have the controller.
func (g tree) file(cgroup, controller, one, two string) (string, bool) {
	dir, name := filepath.Join(g.root, controller, cgroup), one
	if g.unified() {
		dir, name = filepath.Join(g.root, cgroup), two
	}
	_, err := os.Stat(dir)
	return filepath.Join(dir, name), err == nil
}

// write writes a limit, unless it is set already.
func (g tree) write(path, text string) error {
	have := hardware.Line(path)
	if have == text || g.raise && !wider(text, have) {
		return nil
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("bound cgroup: %w", err)
	}
	return nil
}

// wider reports whether a limit is wider than another: a larger number, or no limit. Of two numbers, the first counts.
func wider(a, b string) bool {
	value := func(s string) float64 {
		first, _, _ := strings.Cut(s, " ")
		n, err := strconv.ParseFloat(first, 64)
		if err != nil || n < 0 {
			return math.Inf(1)
		}
		return n
	}
	return b == "" || value(a) > value(b)
}

func (g tree) shares(cgroup string, shares int64) error {
	path, ok := g.file(cgroup, "cpu", "cpu.shares", "cpu.weight")
	if !ok {
		return nil
	}
	if g.unified() {
		shares = weight(shares)
	}
	return g.write(path, strconv.FormatInt(shares, 10))
}

// weight converts CPU shares (2 to 262144, 1024 by default) to the weight of cgroups v2 (1 to 10000, 100 by default).
func weight(shares int64) int64 {
	switch {
	case shares <= 2:
		return 1
	case shares >= 262144:
		return 10000
	}
	l := math.Log2(float64(shares))
	return int64(math.Ceil(math.Pow(10, (l*l+125*l)/612-7.0/34)))
}

func (g tree) quota(cgroup string, quota, period int64) error {
	path, ok := g.file(cgroup, "cpu", "cpu.cfs_quota_us", "cpu.max")
	if !ok || period == 0 {
		return nil
	}
	text := strconv.FormatInt(quota, 10)
	if g.unified() {
		if quota < 0 {
			text = "max"
		}
		return g.write(path, fmt.Sprintf("%s %d", text, period))
	}
	narrow := g
	narrow.raise = false
	if err := narrow.write(filepath.Join(filepath.Dir(path), "cpu.cfs_period_us"), strconv.FormatInt(period, 10)); err != nil {
		return err
	}
	return g.write(path, text)
}

func (g tree) memory(cgroup string, limit int64) error {
	path, ok := g.file(cgroup, "memory", "memory.limit_in_bytes", "memory.max")
	if !ok || limit == 0 {
		return nil
	}
	return g.write(path, strconv.FormatInt(limit, 10))
}

// hugePages limits huge pages, if the machine has a controller for them.
func (g tree) hugePages(cgroup string, limits map[int64]int64) error {
	for _, size := range slices.Sorted(maps.Keys(limits)) {
		name := "hugetlb." + runconfig.PageUnit(size)
		path, ok := g.file(cgroup, "hugetlb", name+".limit_in_bytes", name+".max")
		if _, err := os.Stat(path); !ok || err != nil {
			continue
		}
		if err := g.write(path, strconv.FormatInt(limits[size], 10)); err != nil {
			return err
		}
	}
	return nil
}

// mustWrite writes a required limit: a missing controller is an error.
func (g tree) mustWrite(cgroup, controller string, value int64, name string) error {
	path, ok := g.file(cgroup, controller, name, name)
	if !ok {
		return fmt.Errorf("bound cgroup %s: the machine has no controller for %s", cgroup, controller)
	}
	return g.write(path, strconv.FormatInt(max(value, 0), 10))
}

// Remove removes the pod's own cgroup, the parent of its containers' cgroups.
func (m *Manager) Remove(_ context.Context, uid types.UID) error {
	if m.Config.CgroupDriver == runtimeapi.CgroupDriver_SYSTEMD {
		return nil // systemd removes empty slices
	}
	defer m.Metrics.observe("destroy")()
	root := m.Root
	roots, err := filepath.Glob(filepath.Join(root, "*", m.Config.CgroupRoot, "kubepods"))
	if err != nil {
		return fmt.Errorf("find cgroups: %w", err)
	}
	roots = append(roots, filepath.Join(root, m.Config.CgroupRoot, "kubepods"))
	var failed []error
	for _, root := range roots {
		for _, class := range []string{"", "burstable", "besteffort"} {
			dir := filepath.Join(root, class, "pod"+string(uid))
			if err := removeEmpty(dir); err != nil {
				failed = append(failed, err)
			}
		}
	}
	return errors.Join(failed...)
}

// removeEmpty removes a cgroup with those below it.
func removeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read cgroup: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeEmpty(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), "busy") {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

// LessThanUsed reports whether the new memory limit of the pod's cgroup is below the current limit and below the usage.
func (m *Manager) LessThanUsed(pod *corev1.Pod) (most, used int64, less bool) {
	most = m.Config.Pod(pod).Memory
	if most == 0 || m.Config.Flat {
		return 0, 0, false
	}
	g, parent := tree{root: m.Root}, m.Config.CgroupParent(pod)
	limit, _ := g.file(parent, "memory", "memory.limit_in_bytes", "memory.max")
	usage, _ := g.file(parent, "memory", "memory.usage_in_bytes", "memory.current")
	used, known := hardware.Number(usage)
	return most, used, known && used >= most && wider(hardware.Line(limit), strconv.FormatInt(most, 10))
}
