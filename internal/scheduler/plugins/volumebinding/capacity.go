// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// room reports whether a driver has capacity for the claim's volume within reach of a node, and which CSIStorageCapacity has it (KEP-1472).
// A driver that does not report capacity has it.
func (p *plugin) room(class *storagev1.StorageClass, claim *corev1.PersistentVolumeClaim,
	node *corev1.Node) (of *storagev1.CSIStorageCapacity, enough bool, err error) {
	size, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return nil, true, nil
	}
	driver, err := p.drivers.Get(class.Provisioner)
	switch {
	case apierrors.IsNotFound(err):
		return nil, true, nil
	case err != nil:
		return nil, false, fmt.Errorf("get driver: %w", err)
	case driver.Spec.StorageCapacity == nil || !*driver.Spec.StorageCapacity:
		return nil, true, nil
	}
	all, err := p.capacities.List(labels.Everything())
	if err != nil {
		return nil, false, fmt.Errorf("list capacities: %w", err)
	}
	for _, c := range all {
		if c.StorageClassName != class.Name || c.NodeTopology == nil {
			continue
		}
		if most := largest(c); most == nil || most.Value() < size.Value() {
			continue
		}
		if reach, err := metav1.LabelSelectorAsSelector(c.NodeTopology); err == nil && reach.Matches(labels.Set(node.Labels)) {
			return c, true, nil
		}
	}
	return nil, false, nil
}

// largest returns the largest possible volume; nil: unknown.
func largest(c *storagev1.CSIStorageCapacity) *resource.Quantity {
	if c.MaximumVolumeSize != nil {
		return c.MaximumVolumeSize
	}
	return c.Capacity
}

// defaultShape prefers nodes with much capacity left.
func defaultShape() []configv1.UtilizationShapePoint {
	return []configv1.UtilizationShapePoint{{Utilization: 0, Score: 10}, {Utilization: 100, Score: 0}}
}

// PreScore skips pods without waiting claims: they score 0 everywhere.
func (*plugin) PreScore(_ context.Context, cycle fwk.CycleState, _ *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	s, err := read(cycle)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if len(s.waiting) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score is how much of the volumes, or of the drivers' capacity, the claims use, by class, on average.
func (p *plugin) Score(_ context.Context, cycle fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	s, err := read(cycle)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	there := s.on[info.Node().Name]
	if there == nil {
		return 0, nil
	}
	type use struct{ asked, has int64 }
	classes := map[string]use{}
	for _, b := range there.bindings {
		u := classes[b.pv.Spec.StorageClassName]
		asked, has := b.claim.Spec.Resources.Requests[corev1.ResourceStorage], b.pv.Spec.Capacity[corev1.ResourceStorage]
		classes[b.pv.Spec.StorageClassName] = use{u.asked + asked.Value(), u.has + has.Value()}
	}
	if len(there.bindings) == 0 {
		for _, m := range there.made {
			if m.capacity == nil {
				continue
			}
			asked := m.claim.Spec.Resources.Requests[corev1.ResourceStorage]
			u := use{asked: classes[*m.claim.Spec.StorageClassName].asked + asked.Value()}
			if m.capacity.Capacity != nil {
				u.has = m.capacity.Capacity.Value() // the whole capacity counts as one volume
			}
			classes[*m.claim.Spec.StorageClassName] = u
		}
	}
	if len(classes) == 0 {
		return 0, nil
	}
	var sum int64
	for _, u := range classes {
		if u.has == 0 || u.asked > u.has {
			sum += p.worth(100)
		} else {
			sum += p.worth(u.asked * 100 / u.has)
		}
	}
	return int64(math.Round(float64(sum) / float64(len(classes)))), nil
}

// ScoreExtensions returns nil: scores are not normalised.
func (*plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }

// worth returns the score of a percentage used, by the lines between the points of the shape.
func (p *plugin) worth(percent int64) int64 {
	const scale = fwk.MaxNodeScore / 10 // a shape's scores are at most 10
	for i, point := range p.shape {
		at, score := int64(point.Utilization), int64(point.Score)*scale
		switch {
		case percent > at:
		case i == 0:
			return score
		default:
			from, was := int64(p.shape[i-1].Utilization), int64(p.shape[i-1].Score)*scale
			return was + (score-was)*(percent-from)/(at-from)
		}
	}
	return int64(p.shape[len(p.shape)-1].Score) * scale
}
