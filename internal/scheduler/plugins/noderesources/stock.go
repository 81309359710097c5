// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package noderesources

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
)

// stock counts the devices of a node, and how many of them are taken, of the classes behind scored extended resources (KEP-5004). All
// devices of a class count alike: tainted ones, overlapping partitions, those of incomplete pools. A shareable device is taken once any
// claim has a share. Devices allocated for admin access are not taken.
//
// It computes three results, each of which it keeps as long as it is valid: the class's devices in a slice, as long as both objects are the
// same; the nodes that reach them, as long as the slices are the same; and what is taken, for one cycle.
type stock struct {
	devices     fwk.SharedDRAManager
	names       []corev1.ResourceName // the extended ones among what is scored
	expressions func() *cel.Cache

	mu       sync.Mutex
	supplies map[corev1.ResourceName]*supply
}

// newStock returns nil if no DeviceClass can back any of the resources.
func newStock(devices fwk.SharedDRAManager, resources []configv1.ResourceSpec) *stock {
	s := &stock{
		devices: devices, supplies: map[corev1.ResourceName]*supply{},
		expressions: sync.OnceValue(func() *cel.Cache { return cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}) }),
	}
	for i := range resources {
		if name := corev1.ResourceName(resources[i].Name); nodeinfo.IsExtended(name) {
			s.names = append(s.names, name)
		}
	}
	if devices == nil || len(s.names) == 0 {
		return nil
	}
	return s
}

// concerns reports whether the pod requests a scored resource that a DeviceClass backs. Its scores then depend on more than the node.
func (s *stock) concerns(r *request) bool {
	return slices.ContainsFunc(s.names, func(name corev1.ResourceName) bool {
		return r.exact.Scalar[name] != 0 && s.devices.DeviceClassResolver().GetDeviceClass(name) != nil
	})
}

// on returns how many devices of the class behind a resource a node has, and how many are taken: none if there is no class, or if it is
// unknown for one of them whether the class selects it.
func (s *stock) on(ctx context.Context, r *request, name corev1.ResourceName, node *corev1.Node) (count, error) {
	v, err := s.view(ctx, r, name)
	if err != nil || v == nil {
		return count{}, err
	}
	return v.on(node), nil
}

// sight caches a cycle's results about devices. It is empty until the first node is scored by them.
type sight struct {
	mu    sync.Mutex
	taken *taken
	views map[corev1.ResourceName]*view // nil: there is no class
}

// view returns the cycle's view of the devices behind a resource.
func (s *stock) view(ctx context.Context, r *request, name corev1.ResourceName) (*view, error) {
	r.sight.mu.Lock()
	defer r.sight.mu.Unlock()
	if v, ok := r.sight.views[name]; ok {
		return v, nil
	}
	if r.sight.views == nil {
		r.sight.views = map[corev1.ResourceName]*view{}
	}
	all, err := s.supply(ctx, name)
	if err != nil {
		return nil, err
	}
	if all == nil {
		r.sight.views[name] = nil
		return nil, nil
	}
	if r.sight.taken == nil {
		state, err := s.devices.ResourceClaims().GatherAllocatedState()
		if err != nil {
			return nil, fmt.Errorf("gather allocated devices: %w", err)
		}
		r.sight.taken = takenBy(state)
	}
	v := viewOf(all, r.sight.taken)
	r.sight.views[name] = v
	return v, nil
}

// supply returns the devices of the class behind a resource; nil if there is no class.
func (s *stock) supply(ctx context.Context, name corev1.ResourceName) (*supply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	class := s.devices.DeviceClassResolver().GetDeviceClass(name)
	if class == nil {
		delete(s.supplies, name)
		return nil, nil
	}
	all, err := s.devices.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return nil, fmt.Errorf("list resource slices: %w", err)
	}
	old := s.supplies[name]
	if old != nil && old.class != class {
		old = nil
	}
	if old != nil && old.of(all) {
		return old, nil
	}
	current := &supply{class: class, slices: make(map[*resourcev1.ResourceSlice][]lot, len(all)), byNode: map[string][]lot{}}
	var selectors []cel.CompilationResult
	for _, c := range class.Spec.Selectors {
		if c.CEL != nil {
			selectors = append(selectors, s.expressions().GetOrCompile(c.CEL.Expression))
		}
	}
	for _, slice := range all {
		lots, ok := []lot(nil), false
		if old != nil {
			lots, ok = old.slices[slice]
		}
		if !ok {
			lots = lotsOf(ctx, slice, selectors)
		}
		current.add(slice, lots)
	}
	if ctx.Err() != nil { // the cancellation may be why an expression failed
		return nil, fmt.Errorf("find devices of class %s: %w", class.Name, context.Cause(ctx))
	}
	s.supplies[name] = current
	return current, nil
}

// supply is the devices of one class in one set of slices, by the nodes that reach them. It is immutable.
type supply struct {
	class      *resourcev1.DeviceClass
	slices     map[*resourcev1.ResourceSlice][]lot
	everywhere []lot
	byNode     map[string][]lot
	bySelector []lot
}

// of reports whether the supply is that of these slices.
func (s *supply) of(all []*resourcev1.ResourceSlice) bool {
	return len(all) == len(s.slices) && !slices.ContainsFunc(all, func(x *resourcev1.ResourceSlice) bool {
		_, ok := s.slices[x]
		return !ok
	})
}

func (s *supply) add(slice *resourcev1.ResourceSlice, lots []lot) {
	s.slices[slice] = lots
	for _, l := range lots {
		switch {
		case l.node != "":
			s.byNode[l.node] = append(s.byNode[l.node], l)
		case l.selector != nil:
			s.bySelector = append(s.bySelector, l)
		default:
			s.everywhere = append(s.everywhere, l)
		}
	}
}

// lot is a number of devices of a slice that the same nodes reach: one node, some, or all.
type lot struct {
	node     string
	selector *nodeaffinity.NodeSelector
	ids      []structured.DeviceID
	unknown  bool // for some of them it is unknown whether the class selects them
}

// lotsOf returns the class's devices of a slice.
func lotsOf(ctx context.Context, slice *resourcev1.ResourceSlice, selectors []cel.CompilationResult) (out []lot) {
	spec := &slice.Spec
	put := func(l lot, devices []resourcev1.Device) {
		for i := range devices {
			is, err := matches(ctx, spec.Driver, &devices[i], selectors)
			l.unknown = l.unknown || err != nil
			if is {
				l.ids = append(l.ids, structured.MakeDeviceID(spec.Driver, spec.Pool.Name, devices[i].Name))
			}
		}
		if l.unknown || len(l.ids) > 0 {
			out = append(out, l)
		}
	}
	if spec.PerDeviceNodeSelection == nil || !*spec.PerDeviceNodeSelection {
		if l, ok := reach(spec.AllNodes, spec.NodeName, spec.NodeSelector); ok {
			put(l, spec.Devices)
		}
		return out
	}
	for i := range spec.Devices {
		d := &spec.Devices[i]
		if l, ok := reach(d.AllNodes, d.NodeName, d.NodeSelector); ok {
			put(l, spec.Devices[i:i+1])
		}
	}
	return out
}

// reach returns a lot without devices; false if no node reaches them.
func reach(all *bool, node *string, selector *corev1.NodeSelector) (lot, bool) {
	switch {
	case all != nil && *all:
		return lot{}, true
	case node != nil && *node != "":
		return lot{node: *node}, true
	case selector != nil:
		parsed, err := nodeaffinity.NewNodeSelector(selector)
		if err != nil {
			return lot{unknown: true}, true
		}
		return lot{selector: parsed}, true
	}
	return lot{}, false
}

// matches reports whether a class selects a device. As in kube-scheduler, the expressions do not see here whether the device may be shared.
func matches(ctx context.Context, driver string, d *resourcev1.Device, selectors []cel.CompilationResult) (bool, error) {
	for i := range selectors {
		if selectors[i].Error != nil {
			return false, selectors[i].Error
		}
		is, _, err := selectors[i].DeviceMatches(ctx, cel.Device{Driver: driver, Attributes: d.Attributes, Capacity: d.Capacity})
		if err != nil || !is {
			return false, err
		}
	}
	return true, nil
}

// taken is the devices that claims have.
type taken struct {
	*structured.AllocatedState
	shared sets.Set[structured.DeviceID]
}

func takenBy(state *structured.AllocatedState) *taken {
	t := &taken{AllocatedState: state, shared: sets.New[structured.DeviceID]()}
	for id := range state.AllocatedSharedDeviceIDs {
		t.shared.Insert(id.GetDeviceID())
	}
	return t
}

func (t *taken) has(id structured.DeviceID) bool {
	if t.AllocatedDevices.Has(id) || t.shared.Has(id) {
		return true
	}
	_, some := t.AggregatedCapacity[id]
	return some
}

func (t *taken) count(l *lot) count {
	c := count{has: int64(len(l.ids)), unknown: l.unknown}
	for _, id := range l.ids {
		if t.has(id) {
			c.taken++
		}
	}
	return c
}

// count is the number of devices, and how many of them are taken.
type count struct {
	has, taken int64
	unknown    bool
}

func (c *count) add(x count) {
	c.has, c.taken, c.unknown = c.has+x.has, c.taken+x.taken, c.unknown || x.unknown
}

// view is a supply and how much of it is taken in one cycle. It counts devices that several nodes reach beforehand.
type view struct {
	supply     *supply
	taken      *taken
	everywhere count
	bySelector []count // of the supply's lots
}

func viewOf(s *supply, t *taken) *view {
	v := &view{supply: s, taken: t, bySelector: make([]count, len(s.bySelector))}
	for i := range s.everywhere {
		v.everywhere.add(t.count(&s.everywhere[i]))
	}
	for i := range s.bySelector {
		v.bySelector[i] = t.count(&s.bySelector[i])
	}
	return v
}

func (v *view) on(node *corev1.Node) count {
	sum := v.everywhere
	own := v.supply.byNode[node.Name]
	for i := range own {
		sum.add(v.taken.count(&own[i]))
	}
	for i := range v.bySelector {
		if v.supply.bySelector[i].selector.Match(node) {
			sum.add(v.bySelector[i])
		}
	}
	if sum.unknown {
		return count{}
	}
	return sum
}
