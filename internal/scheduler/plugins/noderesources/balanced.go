// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package noderesources

import (
	"context"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/config"
)

// BalancedName is the second plug-in's name.
const BalancedName = "NodeResourcesBalancedAllocation"

// NewBalanced returns NodeResourcesBalancedAllocation; without arguments, over cpu and memory.
func NewBalanced(_ context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	a, err := config.ArgsFor[*configv1.NodeResourcesBalancedAllocationArgs](BalancedName, args)
	if err != nil {
		return nil, err
	}
	if usual(a.Resources) {
		return balanced{}, nil
	}
	b := balanced{&weighed{resources: a.Resources, stock: newStock(h.SharedDRAManager(), a.Resources)}}
	if b.stock != nil {
		return balancedByDevices{b}, nil
	}
	return b, nil
}

type balanced struct {
	*weighed // nil: cpu and memory
}

// indifferent reports whether the pod requests none of the balanced resources.
func (b balanced) indifferent(r *request) bool {
	if b.weighed == nil {
		return r.cpu == 0 && r.memory == 0
	}
	for i := range b.resources {
		if amount(r.exact, corev1.ResourceName(b.resources[i].Name)) != 0 {
			return false
		}
	}
	return true
}

func (balanced) Name() string { return BalancedName }

// NodeLocal promises that scores may be cached.
func (balanced) NodeLocal() {}

// SignPod signs the requests.
func (balanced) SignPod(ctx context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return fit{}.SignPod(ctx, pod)
}

// PreScore skips pods without requests: they change no balance.
func (b balanced) PreScore(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if b.indifferent(readRequest(state, pod)) {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score compares the deviation of the shares in use with the pod and without.
func (b balanced) Score(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	r := readRequest(state, pod)
	if b.indifferent(r) {
		return 0, nil
	}
	if b.weighed != nil {
		all, err := b.shares(ctx, r, node)
		if err != nil {
			return 0, fwk.AsStatus(err)
		}
		with := evennessOf(all, func(x share) int64 { return x.with })
		without := evennessOf(all, func(x share) int64 { return x.without })
		return fwk.MaxNodeScore/2 + (fwk.MaxNodeScore/2+with-without)/2, nil
	}
	has, used := node.GetAllocatable(), node.GetRequested()
	with := evenness(used.GetMilliCPU()+r.cpu, has.GetMilliCPU(), used.GetMemory()+r.memory, has.GetMemory())
	without := evenness(used.GetMilliCPU(), has.GetMilliCPU(), used.GetMemory(), has.GetMemory())
	return fwk.MaxNodeScore/2 + (fwk.MaxNodeScore/2+with-without)/2, nil
}

// evenness returns 100 if both shares are equal, 50 if one is full and the other empty.
func evenness(cpu, hasCPU, memory, hasMemory int64) int64 {
	deviation := 0.0
	if hasCPU != 0 && hasMemory != 0 {
		deviation = math.Abs(fraction(cpu, hasCPU)-fraction(memory, hasMemory)) / 2
	}
	return int64((1 - deviation) * float64(fwk.MaxNodeScore))
}

func fraction(used, has int64) float64 { return min(float64(used)/float64(has), 1) }

// ScoreExtensions returns nil: the score is in range already.
func (balanced) ScoreExtensions() fwk.ScoreExtensions { return nil }
