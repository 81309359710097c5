// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package noderesources

import (
	"context"
	"math"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
)

// usual reports whether these are cpu and memory, equally weighted.
func usual(resources []configv1.ResourceSpec) bool {
	return len(resources) == 2 && resources[0] == configv1.ResourceSpec{Name: "cpu", Weight: 1} &&
		resources[1] == configv1.ResourceSpec{Name: "memory", Weight: 1}
}

// asked returns the pod's request for a resource; used the requests on the node. With defaults, containers without requests for cpu and
// memory count as if they had some.
func (r *request) asked(name corev1.ResourceName, defaults bool) int64 {
	switch {
	case defaults && name == corev1.ResourceCPU:
		return r.scoreCPU
	case defaults && name == corev1.ResourceMemory:
		return r.scoreM
	}
	return amount(r.exact, name)
}

func used(node fwk.NodeInfo, name corev1.ResourceName, defaults bool) int64 {
	if defaults {
		switch name {
		case corev1.ResourceCPU:
			return node.GetNonZeroRequested().GetMilliCPU()
		case corev1.ResourceMemory:
			return node.GetNonZeroRequested().GetMemory()
		}
	}
	return of(node.GetRequested(), name)
}

// of returns the amount of a resource.
func of(r fwk.Resource, name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.GetMilliCPU()
	case corev1.ResourceMemory:
		return r.GetMemory()
	case corev1.ResourceEphemeralStorage:
		return r.GetEphemeralStorage()
	}
	return r.GetScalarResources()[name]
}

// share is a resource of a node: the requests with the pod, those without it, and the capacity.
type share struct {
	with, without, has int64
	weight             int64
}

// weighed is the set of resources that a plug-in scores.
type weighed struct {
	resources []configv1.ResourceSpec
	defaults  bool   // count default requests for containers without requests for cpu and memory
	stock     *stock // nil: count only resources of the nodes themselves
}

// shares returns the shares of the node's resources. An extended resource counts only for pods that request it; a DeviceClass may back one
// that the node lacks.
func (w *weighed) shares(ctx context.Context, r *request, node fwk.NodeInfo) ([]share, error) {
	out := make([]share, 0, len(w.resources))
	for i := range w.resources {
		name := corev1.ResourceName(w.resources[i].Name)
		asked := r.asked(name, w.defaults)
		if asked == 0 && nodeinfo.IsScalar(name) {
			continue
		}
		has, before := of(node.GetAllocatable(), name), used(node, name, w.defaults)
		if has == 0 && w.stock != nil && nodeinfo.IsExtended(name) {
			c, err := w.stock.on(ctx, r, name, node.Node())
			if err != nil {
				return nil, err
			}
			has, before = c.has, c.taken
		}
		if has != 0 {
			out = append(out, share{with: before + asked, without: before, has: has, weight: w.resources[i].Weight})
		}
	}
	return out, nil
}

// strategy scores a node by its shares.
type strategy func([]share) int64

func strategyOf(s *configv1.ScoringStrategy) strategy {
	switch s.Type {
	case configv1.MostAllocated:
		return mean(func(x share) int64 { return min(x.with, x.has) * fwk.MaxNodeScore / x.has })
	case configv1.RequestedToCapacityRatio:
		return ratio(s.RequestedToCapacityRatio.Shape)
	}
	return mean(func(x share) int64 {
		if x.with > x.has {
			return 0
		}
		return (x.has - x.with) * fwk.MaxNodeScore / x.has
	})
}

// mean returns the weighted mean of the shares' scores.
func mean(score func(share) int64) strategy {
	return func(all []share) int64 {
		var sum, weight int64
		for _, x := range all {
			sum, weight = sum+score(x)*x.weight, weight+x.weight
		}
		if weight == 0 {
			return 0
		}
		return sum / weight
	}
}

// ratio scores utilization by the lines between the points of a shape. Shares with a score of 0 do not count.
func ratio(shape []configv1.UtilizationShapePoint) strategy {
	const most = 10 // of a point's score
	value := func(p int64) int64 {
		at := func(i int) (utilization, score int64) {
			return int64(shape[i].Utilization), int64(shape[i].Score) * (fwk.MaxNodeScore / most)
		}
		for i := range shape {
			u, s := at(i)
			if p > u {
				continue
			}
			if i == 0 {
				return s
			}
			u0, s0 := at(i - 1)
			return s0 + (s-s0)*(p-u0)/(u-u0)
		}
		_, s := at(len(shape) - 1)
		return s
	}
	return func(all []share) int64 {
		var sum, weight int64
		for _, x := range all {
			p := int64(100)
			if x.with <= x.has {
				p = x.with * 100 / x.has
			}
			if s := value(p); s > 0 {
				sum, weight = sum+s*x.weight, weight+x.weight
			}
		}
		if weight == 0 {
			return 0
		}
		return int64(math.Round(float64(sum) / float64(weight)))
	}
}

// evennessOf returns 100 if all shares are equal, and less the more they deviate.
func evennessOf(all []share, part func(share) int64) int64 {
	fractions, sum := make([]float64, len(all)), 0.0
	for i, x := range all {
		fractions[i] = fraction(part(x), x.has)
		sum += fractions[i]
	}
	deviation := 0.0
	switch n := float64(len(all)); {
	case len(all) == 2:
		deviation = math.Abs((fractions[0] - fractions[1]) / 2)
	case len(all) > 2:
		squares := 0.0
		for _, f := range fractions {
			squares += (f - sum/n) * (f - sum/n)
		}
		deviation = math.Sqrt(squares / n)
	}
	return int64((1 - deviation) * float64(fwk.MaxNodeScore))
}
