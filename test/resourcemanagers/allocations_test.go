// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcemanagers

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	memorystate "k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/cputopology"
	ours "github.com/mortise-dev/mortise/internal/agent/memorymanager/state"
)

// machines and pods of each; what they give is at least 5,000 allocations of containers.
const (
	machines = 800
	pods     = 16
)

// options makes settings that both sides accept on most machines.
func options(r *rand.Rand, m cputopology.Machine) settings {
	s := settings{machine: m, cpu: "static", memory: "None", scope: pick(r, "container", "pod"), gates: map[string]bool{
		"CPUManagerPolicyAlphaOptions": true, "CPUManagerPolicyBetaOptions": true, "PodLevelResources": true,
		"PodLevelResourceManagers": r.IntN(3) == 0,
	}}
	s.topology = pick(r, "none", "best-effort", "restricted", "single-numa-node")
	if s.topology != "none" && r.IntN(2) == 0 {
		s.topologyOptions = map[string]string{"prefer-closest-numa-nodes": "true"}
	}
	s.cpuOptions = pick(r, map[string]string{},
		map[string]string{"full-pcpus-only": "true"},
		map[string]string{"distribute-cpus-across-numa": "true"},
		map[string]string{"distribute-cpus-across-numa": "true", "full-pcpus-only": "true"},
		map[string]string{"align-by-socket": "true"},
		map[string]string{"align-by-socket": "true", "distribute-cpus-across-numa": "true"},
		map[string]string{"distribute-cpus-across-cores": "true"},
		map[string]string{"prefer-align-cpus-by-uncorecache": "true"},
		map[string]string{"prefer-align-cpus-by-uncorecache": "true", "full-pcpus-only": "true"},
		map[string]string{"full-pcpus-only": "true", "distribute-cpus-across-cores": "true"}, // refused
	)
	if r.IntN(4) == 0 {
		s.cpuOptions["strict-cpu-reservation"] = "true"
	}
	threads := len(m.Nodes[0].Cores[0].Threads)
	// Whole cores: where parts of cores are free, distribute-cpus-across-numa with full-pcpus-only makes kubelet loop for ever.
	count := threads * (1 + r.IntN(2))
	if s.cpuOptions["full-pcpus-only"] == "" {
		count = 1 + r.IntN(3)
	}
	s.reserved = corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(count), resource.DecimalSI)}
	if r.IntN(2) == 0 {
		var first []int
		for _, c := range m.Nodes[r.IntN(len(m.Nodes))].Cores {
			first = append(first, c.Threads...)
		}
		s.reservedCPUs = cpuset.New(first[:min(count, len(first))]...)
		s.reserved[corev1.ResourceCPU] = *resource.NewQuantity(int64(s.reservedCPUs.Size()), resource.DecimalSI)
	} else if s.cpuOptions["full-pcpus-only"] == "" && r.IntN(3) == 0 {
		s.reserved[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(count)*1000-300, resource.DecimalSI)
	}
	if r.IntN(3) > 0 {
		s.memory = "Static"
		total := int64(0)
		for _, n := range m.Nodes {
			bytes := int64(r.IntN(3)) << 28
			if n.ID == 0 {
				bytes += 1 << 28
			}
			if total += bytes; bytes > 0 {
				s.reservedMemory = append(s.reservedMemory, configv1beta1.MemoryReservation{NumaNode: int32(n.ID),
					Limits: corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(bytes, resource.BinarySI)}})
			}
		}
		if r.IntN(20) == 0 {
			total++ // refused
		}
		s.reserved[corev1.ResourceMemory] = *resource.NewQuantity(total, resource.BinarySI)
	}
	return s
}

// TestSameAllocations lets pods come and go.
func TestSameAllocations(t *testing.T) {
	t.Parallel()
	klog.SetLogger(klog.Logger{})
	allocated, rejected, refused, swapped := 0, map[string]int{}, 0, 0
	for seed := range uint64(machines) {
		r := rand.New(rand.NewPCG(seed, 24))
		ours := options(r, machine(r))
		theirs := ours
		ours.dir, theirs.dir = memoryDir(t), memoryDir(t)
		ctx := t.Context()
		k, refusal := newKubelet(ctx, theirs, nil)
		m, err := newMortise(ours)
		if fmt.Sprint(err) != fmt.Sprint(refusal) {
			t.Fatalf("seed %d: %+v\nMortise: %v\nkubelet: %v", seed, ours, err, refusal)
		}
		if err != nil {
			refused++
			continue
		}
		var running []*corev1.Pod
		for number := range pods {
			if len(running) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(running))
				gone := running[i]
				running = slices.Delete(running, i, i+1)
				k.remove(gone.UID)
				if err := m.seam.Release(ctx, gone.UID); err != nil {
					t.Fatal(err)
				}
			}
			p := pod(r, number, ours.machine, ours.gates["PodLevelResourceManagers"] || r.IntN(10) == 0)
			have, want := m.admit(ctx, p.DeepCopy()), k.admit(ctx, p.DeepCopy())
			if have != want {
				t.Fatalf("seed %d, pod %d: %+v\n%s\nMortise: %+v\nkubelet: %+v", seed, number, describe(ours), describePod(p), have, want)
			}
			if want.Reason != "" {
				rejected[want.Reason]++
			} else {
				running = append(running, p)
			}
			if diff := gocmp.Diff(k.assignments(running), m.assignments(running)); diff != "" {
				t.Fatalf("seed %d, pod %d: %+v\n%s\n-kubelet +Mortise:\n%s", seed, number, describe(ours), describePod(p), diff)
			}
			if want.Reason == "" {
				has := m.assignments([]*corev1.Pod{p})
				for name := range has.CPUs {
					if has.CPUs[name] != "" || has.Memory[name] != "" {
						allocated++
					}
				}
			}
		}
		if swap(t, seed, ours, theirs, running) {
			swapped++
		}
	}
	t.Logf("%d allocations on %d machines, pods rejected: %v, configurations refused: %d, files exchanged: %d", allocated, machines,
		rejected, refused, swapped)
	if swapped < machines/2 {
		t.Errorf("only %d pairs of files were exchanged", swapped)
	}
	if allocated < 5000 {
		t.Errorf("only %d allocations", allocated)
	}
}

// memoryDir returns a directory in memory, if the machine has one: both sides sync their files with each allocation.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "resourcemanagers")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// swap starts each side with the other's files. It returns false where kubelet does not even start with its own.
func swap(t *testing.T, seed uint64, ours, theirs settings, running []*corev1.Pod) bool {
	t.Helper()
	ours.dir, theirs.dir = theirs.dir, ours.dir
	before := map[string]string{}
	for _, name := range []string{"cpu_manager_state", "memory_manager_state"} {
		text, err := os.ReadFile(filepath.Join(ours.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		before[name] = string(text)
	}
	k, err := newKubelet(t.Context(), theirs, running)
	if err != nil {
		own := theirs
		own.dir = memoryDir(t)
		for name, text := range before {
			if err := os.WriteFile(filepath.Join(own.dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		// Whether kubelet accepts its file with a NUMA node in two groups depends on the order of a map.
		_, alone := newKubelet(t.Context(), own, running)
		if fmt.Sprint(alone) != err.Error() && !inTwoGroups(t, before["memory_manager_state"]) {
			t.Fatalf("seed %d: kubelet does not start with Mortise's files: %v; with its own: %v", seed, err, alone)
		}
		return false
	}
	m, err := newMortise(ours)
	if err != nil {
		t.Fatalf("seed %d: Mortise does not start with kubelet's files: %v", seed, err)
	}
	if diff := gocmp.Diff(k.assignments(running), m.assignments(running)); diff != "" {
		t.Fatalf("seed %d: after the exchange of files: -kubelet +Mortise:\n%s", seed, diff)
	}
	for name, text := range before {
		now, err := os.ReadFile(filepath.Join(ours.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(now) != text {
			t.Fatalf("seed %d: Mortise has changed kubelet's %s, which fits:\n%s\n%s", seed, name, text, now)
		}
	}
	return true
}

// inTwoGroups reports whether a NUMA node gives memory to two groups of nodes.
func inTwoGroups(t *testing.T, text string) bool {
	t.Helper()
	s, err := ours.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	group := map[int]string{}
	two := false
	for _, containers := range s.Containers {
		for _, blocks := range containers {
			for _, b := range blocks {
				for _, node := range b.NUMAAffinity {
					name := fmt.Sprint(b.NUMAAffinity)
					two = two || group[node] != "" && group[node] != name
					group[node] = name
				}
			}
		}
	}
	return two
}

// assigned is what the containers of all pods have.
type assigned struct {
	Shared     string
	CPUs       map[string]string
	Memory     map[string]string
	Pods       map[string]string
	PodsMemory map[string]string
}

func newAssigned() assigned {
	return assigned{CPUs: map[string]string{}, Memory: map[string]string{}, Pods: map[string]string{}, PodsMemory: map[string]string{}}
}

func (k *kubelet) assignments(pods []*corev1.Pod) assigned {
	out := newAssigned()
	out.Shared = k.cpus.State().GetDefaultCPUSet().String()
	for _, p := range pods {
		uid := string(p.UID)
		out.Pods[uid] = k.cpus.GetPodCPUs(uid).String()
		out.PodsMemory[uid] = texts(k.memory.GetPodMemory(uid))
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			out.CPUs[uid+"/"+c.Name] = k.cpus.GetExclusiveCPUs(uid, c.Name).String()
			out.Memory[uid+"/"+c.Name] = texts(k.memory.GetMemory(klog.Logger{}, uid, c.Name))
		}
	}
	return out
}

func (m *mortise) assignments(pods []*corev1.Pod) assigned {
	out := newAssigned()
	out.Shared = m.cpus.Shared().String()
	for _, p := range pods {
		uid := string(p.UID)
		out.Pods[uid] = m.cpus.OfPod(types.UID(uid)).String()
		var podMemory []memorystate.Block
		for _, b := range m.memory.OfPod(types.UID(uid)) {
			podMemory = append(podMemory, memorystate.Block(b))
		}
		out.PodsMemory[uid] = texts(podMemory)
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			out.CPUs[uid+"/"+c.Name] = m.cpus.Exclusive(types.UID(uid), c.Name).String()
			var blocks []memorystate.Block
			for _, b := range m.memory.Assigned(types.UID(uid), c.Name) {
				blocks = append(blocks, memorystate.Block(b))
			}
			out.Memory[uid+"/"+c.Name] = texts(blocks)
		}
	}
	return out
}

// texts describes blocks, in an order of its own: kubelet's is that of a map.
func texts(blocks []memorystate.Block) string {
	var out []string
	for _, b := range blocks {
		out = append(out, fmt.Sprintf("%s %d of %v", b.Type, b.Size, b.NUMAAffinity))
	}
	slices.SortFunc(out, cmp.Compare)
	return strings.Join(out, ", ")
}

func describe(s settings) string {
	return fmt.Sprintf("topology %s/%s %v, CPUs %v, reserved %s %v, memory %s, gates %v, %d nodes of %d cores", s.topology, s.scope,
		s.topologyOptions, s.cpuOptions, s.reservedCPUs, s.reserved.Cpu(), s.memory, s.gates, len(s.machine.Nodes), len(s.machine.Nodes[0].Cores))
}

func describePod(p *corev1.Pod) string {
	var out []string
	if r := p.Spec.Resources; r != nil {
		out = append(out, fmt.Sprintf("pod %v %v", r.Requests.Cpu(), r.Requests.Memory()))
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		out = append(out, fmt.Sprintf("%s restart=%v requests %v limits %v", c.Name, c.RestartPolicy != nil, c.Resources.Requests,
			c.Resources.Limits))
	}
	return strings.Join(out, "\n")
}
