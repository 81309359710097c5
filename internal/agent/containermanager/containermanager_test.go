// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containermanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// manager writes down its calls.
type manager struct {
	name  string
	calls *[]string
	err   error
}

func (m manager) note(text string) error {
	*m.calls = append(*m.calls, m.name+" "+text)
	return m.err
}

func (m manager) Allocate(_ context.Context, r Request) error {
	return m.note(fmt.Sprintf("%s %s %v", r.Operation, r.Container.Name, r.Affinity.Nodes))
}
func (m manager) Prepare(context.Context, *corev1.Pod) error { return m.note("prepare") }
func (m manager) Release(_ context.Context, pod types.UID) error {
	return m.note("release " + string(pod))
}
func (m manager) TopologyHints(Request) map[string][]TopologyHint { return nil }
func (m manager) AddOptions(_ context.Context, _ *corev1.Pod, _ *corev1.Container, to *Options) error {
	to.CPUs = m.name
	return m.note("options")
}

func (m manager) row() Row {
	return Row{Name: m.name, Hints: m, Allocator: m, Preparer: m, Options: m, Releaser: m}
}

func pod() *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init"}}, Containers: []corev1.Container{{Name: "c"}},
	}}
	p.UID = "p"
	return p
}

// All managers serve a container before the next one. The last manager releases first, and an error of one manager stops no other.
func TestOrder(t *testing.T) {
	var calls []string
	one, two := manager{name: "one", calls: &calls}, manager{name: "two", calls: &calls}
	m := New(nil, one.row(), two.row())
	options, err := m.Options(t.Context(), pod(), &corev1.Container{Name: "c"})
	if err := errors.Join(err, m.Admit(t.Context(), pod()), m.Prepare(t.Context(), pod()), m.Resize(t.Context(), pod())); err != nil {
		t.Fatal(err)
	}
	config := &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{}}}
	if options.Apply(config); config.Linux.Resources.CpusetCpus != "two" {
		t.Errorf("configured %v", config)
	}
	one.err, two.err = errors.New("broken"), errors.New("broken")
	if err := New(nil, one.row(), two.row()).Release(t.Context(), "p"); err == nil || err.Error() != "two: broken\none: broken" {
		t.Errorf("%v", err)
	}
	want := []string{
		"one options", "two options", "one add init 0", "two add init 0", "one add c 0", "two add c 0", "one prepare", "two prepare",
		"one resize init 0", "two resize init 0", "one resize c 0", "two resize c 0", "two release p", "one release p",
	}
	if !slices.Equal(calls, want) {
		t.Errorf("calls %q", calls)
	}
}

// policy decides for one NUMA node.
type policy struct{ scope string }

func (p policy) Scope() string { return p.scope }

func (policy) Merge(hints []map[string][]TopologyHint) (TopologyHint, bool) {
	return TopologyHint{Nodes: NUMAMask(1), Preferred: true}, len(hints) == 1
}

// The policy's decision reaches the managers, and its refusal the pod.
func TestTopology(t *testing.T) {
	for _, scope := range []string{ContainerScope, PodScope} {
		var calls []string
		one := manager{name: "one", calls: &calls}
		err := New(policy{scope}, one.row()).Admit(t.Context(), pod())
		if err != nil || !slices.Equal(calls, []string{"one add init 2", "one add c 2"}) {
			t.Errorf("%s: %v, %q", scope, err, calls)
		}
		reject := (*Rejection)(nil)
		err = New(policy{scope}, one.row(), one.row()).Admit(t.Context(), pod())
		if !errors.As(err, &reject) || reject.Reason != TopologyAffinityError {
			t.Errorf("%s: %v", scope, err)
		}
	}
}

// A manager's own rejection and hold reach the pod as they are; any other error is kubelet's.
func TestErrors(t *testing.T) {
	var calls []string
	hold := &Hold{Plugin: "x", Message: "waiting", Until: time.Unix(1, 0)}
	reject := &Rejection{"SMTAlignmentError", "no"}
	for _, want := range []error{hold, reject} {
		m := manager{name: "one", calls: &calls, err: fmt.Errorf("wrapped: %w", want)}
		if got := New(nil, m.row()).Admit(t.Context(), pod()); got != want {
			t.Errorf("%v, not %v", got, want)
		}
	}
	m := manager{name: "one", calls: &calls, err: errors.New("x")}
	got := (*Rejection)(nil)
	err := New(nil, m.row()).Admit(t.Context(), pod())
	if !errors.As(err, &got) || *got != (Rejection{UnexpectedAdmissionError, "Allocate failed due to x, which is unexpected"}) {
		t.Errorf("%v", err)
	}
}

// A node without managers allocates nothing.
func TestEmptyTable(t *testing.T) {
	m, p := New(nil), pod()
	if n := testing.AllocsPerRun(100, func() {
		_ = m.Admit(context.Background(), p)
		_ = m.Prepare(context.Background(), p)
		_ = m.ResourceStatus(p, "c")
		_ = m.Release(context.Background(), p.UID)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
