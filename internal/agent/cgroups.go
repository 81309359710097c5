// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// cgroupAll is where the kernel shows cgroups: v2, or the trees of v1.
const cgroupAll = "/sys/fs/cgroup"

// makeCgroup makes the pod's cgroup before its sandbox, with its bounds. Where systemd keeps the cgroups, it makes them with the sandbox.
func (n *node) makeCgroup(pod *corev1.Pod) error {
	if n.config.CgroupDriver == runtimeapi.CgroupDriver_SYSTEMD {
		return nil
	}
	return n.bound(pod, false)
}

// bound gives the cgroup of a pod its bounds, and those above it theirs: what is left to pods of what the system and the node keep for
// themselves, and each class its share of the processors. It is told before the sandbox is made, before containers are started and
// when the pod is resized; a bound that is there already is not written again. With raise, bounds only become wider.
func (n *node) bound(pod *corev1.Pod, raise bool) error {
	if n.config.Flat {
		return nil
	}
	g := cgroups{root: cmp.Or(n.CgroupFS, cgroupAll), raise: raise}
	parent := n.config.CgroupParent(pod)
	if err := g.make(parent); err != nil {
		return err
	}
	if err := n.boundAll(g, parent); err != nil {
		return err
	}
	if class := filepath.Dir(parent); class != allPods(parent) {
		shares := int64(2)
		if cmp.Or(pod.Status.QOSClass, podstatus.QOS(pod)) == corev1.PodQOSBurstable {
			shares = n.burstable(pod)
		}
		if err := g.shares(class, shares); err != nil {
			return err
		}
	}
	own := n.config.Pod(pod)
	if err := errors.Join(g.shares(parent, own.Shares), g.quota(parent, own.Quota, own.Period), g.memory(parent, own.Memory), g.hugePages(parent, own.HugePages)); err != nil {
		return err
	}
	if most := *n.Kubelet.PodPidsLimit; most >= 0 {
		g.raise = false
		return g.mustWrite(parent, "pids", most, "pids.max")
	}
	return nil
}

// boundAll bounds all pods together.
func (n *node) boundAll(g cgroups, parent string) error {
	all, capacity := allPods(parent), n.resources.Capacity()
	enforced := slices.Contains(n.Kubelet.EnforceNodeAllocatable, "pods")
	left := func(name corev1.ResourceName) int64 {
		q := capacity[name]
		if enforced {
			q.Sub(n.resources.Reserved(name))
		}
		if name == corev1.ResourceCPU {
			return q.MilliValue()
		}
		return q.Value()
	}
	pages := map[int64]int64{}
	for _, p := range n.resources.Machine.HugePages {
		pages[p.Size] = p.Total
	}
	g.raise = false
	if err := errors.Join(g.shares(all, runconfig.Shares(left(corev1.ResourceCPU))), g.memory(all, left(corev1.ResourceMemory)), g.hugePages(all, pages)); err != nil {
		return err
	}
	kept := n.resources.Reserved("pid")
	if _, most, ok := (stats.Reader{}).Threads(); ok && enforced && !kept.IsZero() {
		return g.mustWrite(all, "pids", most-kept.Value(), "pids.max")
	}
	return nil
}

// burstable is the share of all burstable pods: of what they ask for together.
func (n *node) burstable(pod *corev1.Pod) int64 {
	milli := request(pod, corev1.ResourceCPU)
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid, w := range n.workers {
		if uid != pod.UID && w.counted && w.spec != nil && cmp.Or(w.spec.Status.QOSClass, podstatus.QOS(w.spec)) == corev1.PodQOSBurstable {
			milli += request(w.spec, corev1.ResourceCPU)
		}
	}
	return runconfig.Shares(milli)
}

// allPods is the cgroup of all pods, of which the given one is of a pod.
func allPods(parent string) string {
	for dir := parent; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if name := strings.TrimSuffix(filepath.Base(dir), ".slice"); name == "kubepods" || strings.HasSuffix(name, "-kubepods") {
			return dir
		}
	}
	return parent
}

// cgroups are the machine's: v1 in a tree for each controller, v2 in one.
type cgroups struct {
	root  string
	raise bool // bounds are never made narrower
}

// controllers are those that pods are bounded by.
var controllers = []string{"cpu", "memory", "pids", "hugetlb"}

func (g cgroups) unified() bool {
	_, err := os.Stat(filepath.Join(g.root, "cgroup.controllers"))
	return err == nil
}

// make makes the cgroup with those above it; the runtime makes it for the controllers that nobody needs here.
func (g cgroups) make(cgroup string) error {
	if !g.unified() {
		for _, c := range controllers {
			tree := filepath.Join(g.root, c)
			if _, err := os.Stat(tree); err != nil {
				continue // the machine does not have it
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
			// Some cannot be handed down; what is written to files of theirs then fails.
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o600); err != nil && slices.Contains(controllers[:3], c) {
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

// file is where a setting of a cgroup is; false: the machine does not have the controller.
func (g cgroups) file(cgroup, controller, one, two string) (string, bool) {
	dir, name := filepath.Join(g.root, controller, cgroup), one
	if g.unified() {
		dir, name = filepath.Join(g.root, cgroup), two
	}
	_, err := os.Stat(dir)
	return filepath.Join(dir, name), err == nil
}

// write writes a bound, if it is not there.
func (g cgroups) write(path, text string) error {
	have := hardware.Line(path)
	if have == text || g.raise && !wider(text, have) {
		return nil
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("bound cgroup: %w", err)
	}
	return nil
}

// wider says whether a bound leaves more than another: a number that is larger, or none at all. Of two numbers, the first counts.
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

func (g cgroups) shares(cgroup string, shares int64) error {
	path, ok := g.file(cgroup, "cpu", "cpu.shares", "cpu.weight")
	if !ok {
		return nil
	}
	if g.unified() {
		shares = weight(shares)
	}
	return g.write(path, strconv.FormatInt(shares, 10))
}

// weight turns CPU shares (2 to 262144, 1024 by default) into the weight that they are with cgroups v2 (1 to 10000, 100 by default).
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

func (g cgroups) quota(cgroup string, quota, period int64) error {
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

func (g cgroups) memory(cgroup string, limit int64) error {
	path, ok := g.file(cgroup, "memory", "memory.limit_in_bytes", "memory.max")
	if !ok || limit == 0 {
		return nil
	}
	return g.write(path, strconv.FormatInt(limit, 10))
}

// hugePages bounds huge pages, where the machine has a controller for them.
func (g cgroups) hugePages(cgroup string, limits map[int64]int64) error {
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

// mustWrite writes a bound that would be missed: without its controller, it is an error.
func (g cgroups) mustWrite(cgroup, controller string, value int64, name string) error {
	path, ok := g.file(cgroup, controller, name, name)
	if !ok {
		return fmt.Errorf("bound cgroup %s: the machine has no controller for %s", cgroup, controller)
	}
	return g.write(path, strconv.FormatInt(max(value, 0), 10))
}

// removeCgroup removes the pod's own cgroup, which is made as a parent of its containers'.
func (n *node) removeCgroup(_ context.Context, uid types.UID) error {
	if n.config.CgroupDriver == runtimeapi.CgroupDriver_SYSTEMD {
		return nil // systemd removes empty slices
	}
	root := cmp.Or(n.CgroupFS, cgroupAll)
	roots, err := filepath.Glob(filepath.Join(root, "*", n.config.CgroupRoot, "kubepods"))
	if err != nil {
		return fmt.Errorf("find cgroups: %w", err)
	}
	roots = append(roots, filepath.Join(root, n.config.CgroupRoot, "kubepods"))
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
