// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package endpointslicemirroring

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/endpointslice/util"
	netutils "k8s.io/utils/net"

	"github.com/mortise-dev/mortise/internal/controllers/endpoints"
)

// plan is what to do with the slices of some Endpoints.
type plan struct {
	create, update, remove, keep []*discoveryv1.EndpointSlice

	// invalid counts invalid addresses; skipped counts those and the addresses above the limit.
	invalid, skipped int

	added, updated, removed int    // endpoints
	sum                     amount // the result
}

// amount is the number of mirrored endpoints and of slices, and the smallest number of slices that would hold them.
type amount struct{ endpoints, slices, ideal int }

// group is the content of one slice: the addresses of a family for the same ports.
type group struct {
	family discoveryv1.AddressType
	ports  util.PortMapKey
}

type content struct {
	ports     []discoveryv1.EndpointPort
	endpoints []*discoveryv1.Endpoint // in order
	set       util.EndpointSet        // the same, for lookup
}

func (c *content) add(e *discoveryv1.Endpoint) {
	if c.set.Has(e) {
		at := slices.Index(c.endpoints, c.set.Get(e))
		c.endpoints[at] = e
	} else {
		c.endpoints = append(c.endpoints, e)
	}
	c.set.Insert(e)
}

// mirror compares Endpoints with the slices that mirror them. It mirrors no more than limit addresses of a subset, the ready ones first.
func mirror(from *corev1.Endpoints, have []*discoveryv1.EndpointSlice, limit int) plan {
	var p plan
	want := map[group]*content{}
	for _, subset := range endpoints.Repack(from.Subsets) {
		ports := portsOf(subset.Ports)
		key := util.NewPortMapKey(ports)
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			if want[group{family, key}] == nil {
				want[group{family, key}] = &content{ports: ports, set: util.EndpointSet{}}
			}
		}
		placed := 0
		place := func(addresses []corev1.EndpointAddress, ready bool) {
			for i := range addresses {
				if placed >= limit {
					return
				}
				if e, family := endpointOf(&addresses[i], ready); e == nil {
					p.invalid++
				} else {
					want[group{family, key}].add(e)
					placed++
				}
			}
		}
		place(subset.Addresses, true)
		place(subset.NotReadyAddresses, false)
		p.skipped += len(subset.Addresses) + len(subset.NotReadyAddresses) - placed
	}

	existing := map[group][]*discoveryv1.EndpointSlice{}
	for _, s := range have {
		g := group{s.AddressType, util.NewPortMapKey(slices.Clone(s.Ports))}
		existing[g] = append(existing[g], s)
	}
	for _, g := range slices.SortedFunc(maps.Keys(want), inOrder) {
		p.settle(from, g, want[g], existing[g])
		n := len(want[g].endpoints)
		p.sum.endpoints += n
		p.sum.slices += min(n, 1)
		p.sum.ideal += (n + limit - 1) / limit
	}
	for _, g := range slices.SortedFunc(maps.Keys(existing), inOrder) {
		if want[g] == nil {
			p.remove = append(p.remove, existing[g]...)
		}
	}
	p.recycle()
	return p
}

func inOrder(a, b group) int {
	return cmp.Or(cmp.Compare(a.family, b.family), cmp.Compare(a.ports, b.ports))
}

// settle plans one group, which may have slices already.
func (p *plan) settle(from *corev1.Endpoints, g group, want *content, have []*discoveryv1.EndpointSlice) {
	if len(want.endpoints) == 0 {
		p.remove = append(p.remove, have...)
		for _, s := range have {
			p.removed += len(s.Endpoints)
		}
		return
	}
	slice := compose(from, g.family, want)
	p.count(have, want.set)
	if len(have) == 0 {
		p.create = append(p.create, slice)
		return
	}
	p.remove = append(p.remove, have[1:]...)
	if same(have[0], slice, want.set) {
		p.keep = append(p.keep, have[0])
		return
	}
	slice.Name, slice.GenerateName = have[0].Name, ""
	p.update = append(p.update, slice)
}

// count counts the endpoints that are added, changed and removed.
func (p *plan) count(have []*discoveryv1.EndpointSlice, want util.EndpointSet) {
	there := 0
	if len(have) > 0 {
		for i := range have[0].Endpoints {
			e := have[0].Endpoints[i].DeepCopy() // looking it up sorts its addresses
			switch found := want.Get(e); {
			case found == nil:
				p.removed++
			case !util.EndpointsEqualBeyondHash(found, e):
				p.updated++
				there++
			default:
				there++
			}
		}
	}
	p.added += want.Len() - there
}

// same reports whether a slice is up to date.
func same(have, want *discoveryv1.EndpointSlice, set util.EndpointSet) bool {
	if len(have.Endpoints) != set.Len() || !equality.Semantic.DeepEqual(have.Labels, want.Labels) ||
		!equality.Semantic.DeepEqual(have.Annotations, want.Annotations) {
		return false
	}
	for i := range have.Endpoints {
		e := have.Endpoints[i].DeepCopy() // looking it up sorts its addresses
		if found := set.Get(e); found == nil || !util.EndpointsEqualBeyondHash(found, e) {
			return false
		}
	}
	// Endpoints that were deleted and created anew are another owner.
	return !slices.ContainsFunc(have.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Kind == "Endpoints" && r.Name == want.OwnerReferences[0].Name && r.UID != want.OwnerReferences[0].UID
	})
}

// recycle reuses slices that would be deleted for slices of the same family that would be created.
func (p *plan) recycle() {
	create := p.create
	p.create = nil
	for _, s := range create {
		at := slices.IndexFunc(p.remove, func(r *discoveryv1.EndpointSlice) bool { return r.AddressType == s.AddressType })
		if at < 0 {
			p.create = append(p.create, s)
			continue
		}
		s.Name = p.remove[at].Name
		p.update = append(p.update, s)
		p.remove = slices.Delete(p.remove, at, at+1)
	}
}

func compose(from *corev1.Endpoints, family discoveryv1.AddressType, want *content) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: from.Namespace, GenerateName: prefix(from.Name),
			Labels: map[string]string{}, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(from, corev1.SchemeGroupVersion.WithKind("Endpoints"))},
		},
		AddressType: family,
		Ports:       want.ports,
		Endpoints:   []discoveryv1.Endpoint{},
	}
	maps.Copy(slice.Labels, from.Labels)
	slice.Labels[discoveryv1.LabelServiceName], slice.Labels[discoveryv1.LabelManagedBy] = from.Name, manager
	maps.Copy(slice.Annotations, from.Annotations)
	delete(slice.Annotations, corev1.EndpointsLastChangeTriggerTime)
	delete(slice.Annotations, corev1.LastAppliedConfigAnnotation)
	for _, e := range want.endpoints {
		slice.Endpoints = append(slice.Endpoints, *e)
	}
	return slice
}

// prefix returns what the names of a service's slices begin with: the service's name, and a dash where that leaves a valid name.
func prefix(service string) string {
	if len(service)+1 > validation.DNS1123SubdomainMaxLength {
		return service
	}
	return service + "-"
}

func portsOf(ports []corev1.EndpointPort) []discoveryv1.EndpointPort {
	result := []discoveryv1.EndpointPort{}
	for _, p := range ports {
		result = append(result, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol})
	}
	return result
}

// endpointOf converts an address to an endpoint and its family; nil if it is no valid address. It corrects forms that Endpoints allow and
// slices do not (leading zeros).
func endpointOf(a *corev1.EndpointAddress, ready bool) (*discoveryv1.Endpoint, discoveryv1.AddressType) {
	ip := netutils.ParseIPSloppy(a.IP)
	if ip == nil {
		return nil, ""
	}
	e := &discoveryv1.Endpoint{
		Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef: a.TargetRef, NodeName: a.NodeName,
	}
	if a.Hostname != "" {
		e.Hostname = &a.Hostname
	}
	if ip.To4() == nil {
		return e, discoveryv1.AddressTypeIPv6
	}
	return e, discoveryv1.AddressTypeIPv4
}
