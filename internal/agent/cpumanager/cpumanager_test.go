// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cpumanager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/cpumanager/state"
	"github.com/mortise-dev/mortise/internal/agent/cputopology"
	"github.com/mortise-dev/mortise/internal/agent/resourcemetrics"
)

// fakeRuntime has containers, and the CPUs that they were moved to.
type fakeRuntime struct {
	mu         sync.Mutex
	containers []Container
	cpus       map[string]string
	failures   int
}

func (r *fakeRuntime) Containers(context.Context) ([]Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.containers), nil
}

// on returns the CPUs that a container was moved to.
func (r *fakeRuntime) on(id string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cpus[id]
}

// all returns the CPUs of all containers, in print.
func (r *fakeRuntime) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprint(r.cpus)
}

// change changes the runtime between two calls.
func (r *fakeRuntime) change(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

func (r *fakeRuntime) SetCPUs(_ context.Context, id, cpus string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures > 0 {
		r.failures--
		return errors.New("busy")
	}
	r.cpus[id] = cpus
	return nil
}

// config is the static policy on a machine with one socket of four cores, two threads each; CPU 0 is reserved.
func config(t *testing.T, dir string, change func(*Config)) (Config, *bytes.Buffer) {
	t.Helper()
	var node cputopology.Node
	for core := range 4 {
		node.Cores = append(node.Cores, cputopology.Core{Threads: []int{core, core + 4}, Uncore: cputopology.NoUncore})
	}
	places, err := cputopology.New(cputopology.Machine{Nodes: []cputopology.Node{node}})
	if err != nil {
		t.Fatal(err)
	}
	log := &bytes.Buffer{}
	c := Config{
		Policy: PolicyStatic, Topology: places, TopologyPolicy: "none", ReservedCPUs: cpuset.New(0), Reserved: resource.MustParse("1"),
		GateOn: func(string) bool { return false }, Dir: dir, Retry: 10 * time.Second, Runtime: &fakeRuntime{cpus: map[string]string{}},
		Metrics: resourcemetrics.New(), Clock: clock.RealClock{}, Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
	if change != nil {
		change(&c)
	}
	return c, log
}

func start(t *testing.T, dir string, change func(*Config)) (*Manager, string) {
	t.Helper()
	c, log := config(t, dir, change)
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m, log.String()
}

func guaranteed(uid, cpus string) *corev1.Pod {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpus), corev1.ResourceMemory: resource.MustParse("1Gi")}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "app", Resources: corev1.ResourceRequirements{Requests: list, Limits: list}},
	}}}
}

func admit(t *testing.T, m *Manager, pod *corev1.Pod) error {
	t.Helper()
	return m.Allocate(t.Context(), containermanager.Request{Operation: containermanager.Add, Pod: pod, Container: &pod.Spec.Containers[0]})
}

func cpusOf(t *testing.T, m *Manager, pod *corev1.Pod) containermanager.Options {
	t.Helper()
	var o containermanager.Options
	if err := m.AddOptions(t.Context(), pod, &pod.Spec.Containers[0], &o); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestExclusiveCPUsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	m, _ := start(t, dir, nil)
	alone, sharing := guaranteed("a", "2"), guaranteed("b", "1500m")
	for _, p := range []*corev1.Pod{alone, sharing} {
		if err := admit(t, m, p); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if o := cpusOf(t, m, alone); o.CPUs != "1,5" || !o.NoQuota {
			t.Errorf("options %+v", o)
		}
		var own, shared podresources.ContainerResources
		var all podresources.AllocatableResourcesResponse
		Describer{m}.Describe(alone, &alone.Spec.Containers[0], &own)
		Describer{m}.Describe(sharing, &sharing.Spec.Containers[0], &shared)
		Describer{m}.DescribeNode(&all)
		if got := fmt.Sprint(own.GetCpuIds(), shared.GetCpuIds(), len(all.GetCpuIds())); got != "[1 5] [] 7" {
			t.Errorf("the pod resources API has %s", got)
		}
		if o := cpusOf(t, m, sharing); o.CPUs != "0,2-4,6-7" || o.NoQuota {
			t.Errorf("options %+v", o)
		}
		m, _ = start(t, dir, nil)
	}
	if err := m.Release(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if got := m.Shared().String(); got != "0-7" {
		t.Errorf("shared CPUs %s", got)
	}
}

func TestAStateThatCannotBeWrittenDoesNotChange(t *testing.T) {
	dir := t.TempDir()
	m, _ := start(t, dir, nil)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := admit(t, m, guaranteed("a", "2")); err == nil {
		t.Error("no error")
	}
	if got := m.Shared().String(); got != "0-7" {
		t.Errorf("shared CPUs %s", got)
	}
}

// kubelet refuses each of these starts.
func TestMigration(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		cpus   string // of the pod, which had 1 and 5
		says   string
	}{
		"reserved": {func(c *Config) {
			c.ReservedCPUs, c.Reserved = cpuset.New(0, 1), resource.MustParse("2")
		}, "4-5", "moves from CPUs 1,5 to 4-5"},
		"strict": {func(c *Config) { c.PolicyOptions = map[string]string{"strict-cpu-reservation": "true"} }, "1,5", ""},
		"all are reserved": {func(c *Config) {
			c.ReservedCPUs, c.Reserved = cpuset.New(0, 1, 2, 3, 4, 6, 7), resource.MustParse("7")
		}, "", "it shares CPUs"},
		"fewer CPUs": {func(c *Config) {
			places, _ := cputopology.New(cputopology.Machine{Nodes: []cputopology.Node{{Cores: []cputopology.Core{
				{Threads: []int{0, 4}, Uncore: cputopology.NoUncore}, {Threads: []int{1}, Uncore: cputopology.NoUncore}}}}})
			c.Topology = places
		}, "1,4", "moves from CPUs 1,5 to 1,4"},
		"none": {func(c *Config) { c.Policy = PolicyNone }, "", "shares all CPUs from now on"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			m, _ := start(t, dir, nil)
			if err := admit(t, m, guaranteed("a", "2")); err != nil {
				t.Fatal(err)
			}
			m, log := start(t, dir, c.change)
			if got := m.Exclusive("a", "app").String(); got != c.cpus {
				t.Errorf("CPUs %q, want %q", got, c.cpus)
			}
			if !strings.Contains(log, c.says) || c.says == "" && log != "" {
				t.Errorf("log %q", log)
			}
		})
	}
}

func TestCorruptFileIsKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, state.FileName)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, log := start(t, dir, nil)
	if got := m.Shared().String(); got != "0-7" || !strings.Contains(log, "cannot be read") {
		t.Errorf("shared CPUs %s, log %q", got, log)
	}
	if text, err := os.ReadFile(path + ".corrupt"); err != nil || string(text) != "{" {
		t.Errorf("kept %q, error %v", text, err)
	}
}

func TestRejections(t *testing.T) {
	m, _ := start(t, t.TempDir(), func(c *Config) { c.PolicyOptions = map[string]string{"full-pcpus-only": "true"} })
	for cpus, want := range map[string]string{
		"3": "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2",
		"8": "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, requested CPUs = 8, CPUs per core = 2",
	} {
		reject := (*containermanager.Rejection)(nil)
		if err := admit(t, m, guaranteed("a", cpus)); !errors.As(err, &reject) || reject.Message != want || reject.Reason != "SMTAlignmentError" {
			t.Errorf("%s CPUs: error %v", cpus, err)
		}
	}
	m, _ = start(t, t.TempDir(), nil)
	const want = "not enough cpus available to satisfy request: requested=8, available=7"
	if err := admit(t, m, guaranteed("a", "8")); err == nil || err.Error() != want {
		t.Errorf("8 CPUs: error %v", err)
	}
}

func TestConfigurationErrors(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`unknown policy: "dynamic"`: func(c *Config) { c.Policy = "dynamic" },
		"[cpumanager] unable to determine reserved CPU resources for static policy": func(c *Config) { c.Reserved = resource.Quantity{} },
		`new static policy error: unknown CPU Manager Policy option: "x"`:           func(c *Config) { c.PolicyOptions = map[string]string{"x": ""} },
		`new static policy error: CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided`: func(c *Config) {
			c.PolicyOptions = map[string]string{"align-by-socket": "true"}
		},
		"new none policy error: None policy: received unsupported options=map[x:]": func(c *Config) {
			c.Policy, c.PolicyOptions = PolicyNone, map[string]string{"x": ""}
		},
	} {
		c, _ := config(t, t.TempDir(), change)
		if _, err := New(c); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func TestSharedCPUsFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &fakeRuntime{cpus: map[string]string{}, containers: []Container{{"1", "old", "app"}, {"2", "a", "app"}}}
		m, _ := start(t, t.TempDir(), func(c *Config) { c.Runtime = runtime })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Run(ctx) }()
		synctest.Wait()
		if runtime.on("1") != "0-7" {
			t.Errorf("CPUs after the start: %s", runtime.all())
		}
		runtime.change(func() { runtime.failures = 1 })
		if err := admit(t, m, guaranteed("a", "2")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if runtime.on("1") == "0,2-4,6-7" && runtime.on("2") == "1,5" {
			t.Error("the runtime did not fail")
		}
		time.Sleep(10 * time.Second) // of the bubble: the retry
		synctest.Wait()
		if runtime.on("1") != "0,2-4,6-7" || runtime.on("2") != "1,5" {
			t.Errorf("CPUs after an allocation: %s", runtime.all())
		}
		// A container that was being created while the shared CPUs changed.
		late := guaranteed("late", "500m")
		cpusOf(t, m, late)
		if err := m.Release(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		runtime.change(func() { runtime.containers = append(runtime.containers, Container{"3", "late", "app"}) })
		m.ResourceStatus(late, "app")
		synctest.Wait()
		if runtime.on("3") != "0-7" || runtime.on("1") != "0-7" {
			t.Errorf("CPUs of a late container: %s", runtime.all())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// With the policy none, the containers of a former static policy get all CPUs before its file goes.
func TestNoneWidensContainers(t *testing.T) {
	dir := t.TempDir()
	m, _ := start(t, dir, nil)
	if err := admit(t, m, guaranteed("a", "2")); err != nil {
		t.Fatal(err)
	}
	runtime := &fakeRuntime{cpus: map[string]string{}, containers: []Container{{"1", "a", "app"}}}
	m, _ = start(t, dir, func(c *Config) { c.Policy, c.Runtime = PolicyNone, runtime })
	if err := m.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, state.FileName))
	if err != nil || runtime.on("1") != "0-7" || !strings.Contains(string(text), `"policyName":"none"`) {
		t.Errorf("CPUs %s, file %s, error %v", runtime.all(), text, err)
	}
}
