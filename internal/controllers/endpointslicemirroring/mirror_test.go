// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package endpointslicemirroring

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice/util"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	metrics, counted := controllertest.Meters(t)
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{Metrics: metrics}, Controller())
	for _, name := range []string{
		"changes{operation=create}", "changes{operation=update}", "changes{operation=delete}", "endpoints_sync_duration",
		"addresses_skipped_per_sync",
		"endpoints_desired{} 0", "num_endpoint_slices{} 0", "desired_endpoint_slices{} 0",
	} {
		if !slices.ContainsFunc(controllertest.Counted(t, counted, "endpoint_slice_mirroring_controller_"),
			func(line string) bool { return strings.HasPrefix(line, name) }) {
			t.Errorf("%s is not told", name)
		}
	}
}

// TestCounts: what comes, changes and goes is counted, and what is left is booked until it is not mirrored any more.
func TestCounts(t *testing.T) {
	from := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "e"}, Subsets: []corev1.EndpointSubset{
		{Addresses: []corev1.EndpointAddress{{IP: "10.0.0.1"}, {IP: "10.0.0.2"}, {IP: "fd00::1"}}},
	}}
	there := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{}}
	for _, ip := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		ready := ip != "10.0.0.2"
		there.Endpoints = append(there.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	p := mirror(from, []*discoveryv1.EndpointSlice{there}, 2)
	// The limit is of a subset: the IPv6 address has no place.
	if p.added != 0 || p.updated != 1 || p.removed != 1 || p.sum != (amount{2, 1, 1}) {
		t.Errorf("added %d, updated %d, removed %d, in all %+v", p.added, p.updated, p.removed, p.sum)
	}
	if p = mirror(from, nil, 3); p.added != 3 || p.sum != (amount{3, 2, 2}) {
		t.Errorf("anew: added %d, in all %+v", p.added, p.sum)
	}
	m, err := newMeters(&controllers.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	key, other := types.NamespacedName{Name: "a"}, types.NamespacedName{Name: "b"}
	m.book(key, amount{3, 2, 2})
	m.book(other, amount{1, 1, 1})
	m.book(key, amount{5, 2, 2})
	if m.sum != (amount{6, 3, 3}) {
		t.Errorf("booked %+v", m.sum)
	}
	m.book(key, amount{})
	if m.sum != (amount{1, 1, 1}) || len(m.booked) != 1 {
		t.Errorf("after one is gone: %+v, %d", m.sum, len(m.booked))
	}
}

func TestBatch(t *testing.T) {
	controllertest.Run(t, "testdata/batch/*.txtar", controllers.Options{},
		controllertest.Configured(t, Controller(), "mirroring-endpointslice-updates-batch-period=5s"))
}

// What is left out is told of: addresses that are none, and those above the limit.
func TestEvents(t *testing.T) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "e"}}
	from := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "e"}, Subsets: []corev1.EndpointSubset{
		{Addresses: append(addresses(5, "10.0.%d.%d"), corev1.EndpointAddress{IP: "0.example.com"})},
	}}
	client := fake.NewClientset(service, from)
	factory := informers.NewSharedInformerFactory(client, 0)
	said := record.NewFakeRecorder(10)
	meters, err := newMeters(&controllers.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	c := &controller{
		meters: meters,
		client: client, recorder: said, services: factory.Core().V1().Services().Lister(), endpoints: factory.Core().V1().Endpoints().Lister(),
		slices: factory.Discovery().V1().EndpointSlices().Lister(), tracker: util.NewEndpointSliceTracker(), limit: 3,
	}
	if err := errors.Join(factory.Core().V1().Services().Informer().GetStore().Add(service),
		factory.Core().V1().Endpoints().Informer().GetStore().Add(from)); err != nil {
		t.Fatal(err)
	}
	if err := c.sync(t.Context(), types.NamespacedName{Namespace: "n", Name: "e"}); err != nil {
		t.Fatal(err)
	}
	close(said.Events)
	var got []string
	for e := range said.Events {
		got = append(got, e)
	}
	want := []string{
		"Warning InvalidIPAddress Skipped 1 invalid IP addresses when mirroring to EndpointSlices",
		"Warning TooManyAddressesToMirror A max of 3 addresses can be mirrored to EndpointSlices per Endpoints subset. 3 addresses were skipped",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func addresses(n int, format string) (all []corev1.EndpointAddress) {
	for i := range n {
		all = append(all, corev1.EndpointAddress{IP: fmt.Sprintf(format, i/250, i%250)})
	}
	return all
}

// The limit is of a subset, over both families and over ready and not ready addresses.
func TestLimit(t *testing.T) {
	from := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "e", UID: "u"}, Subsets: []corev1.EndpointSubset{{
		Addresses:         addresses(600, "10.0.%d.%d"),
		NotReadyAddresses: append(addresses(700, "fd00::%d:%d"), corev1.EndpointAddress{IP: "web.example.com"}),
		Ports:             []corev1.EndpointPort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
	}}}
	p := mirror(from, nil, 1000)
	count := map[discoveryv1.AddressType]int{}
	for _, s := range p.create {
		count[s.AddressType] += len(s.Endpoints)
	}
	if len(p.create) != 2 || count[discoveryv1.AddressTypeIPv4] != 600 || count[discoveryv1.AddressTypeIPv6] != 400 {
		t.Errorf("%d slices with %v addresses", len(p.create), count)
	}
	if p.skipped != 301 {
		t.Errorf("skipped %d addresses, want 301", p.skipped)
	}
}

// What is as it ought to be is kept; Endpoints that were made anew are another owner.
func TestKeep(t *testing.T) {
	from := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "e", UID: "u",
			Labels: map[string]string{"a": "b", discoveryv1.LabelServiceName: "other"}},
		Subsets: []corev1.EndpointSubset{{Addresses: addresses(2, "10.0.%d.%d")}},
	}
	have := mirror(from, nil, 1000).create
	have[0].Name = "e-1"
	if p := mirror(from, have, 1000); len(p.keep) != 1 || len(p.create)+len(p.update)+len(p.remove) > 0 {
		t.Errorf("the same: %+v", p)
	}
	again := from.DeepCopy()
	again.UID = "v"
	if p := mirror(again, have, 1000); len(p.update) != 1 || p.update[0].Name != "e-1" || p.update[0].OwnerReferences[0].UID != "v" {
		t.Errorf("made anew: %+v", p)
	}
	if p := mirror(from, append(have, have[0].DeepCopy()), 1000); len(p.keep) != 1 || len(p.remove) != 1 {
		t.Errorf("one too many: %+v", p)
	}
}

// Names are no longer than the API takes, less what it appends.
func TestPrefix(t *testing.T) {
	for n, dash := range map[int]bool{10: true, 252: true, 253: false} {
		if got := prefix(strings.Repeat("a", n)); strings.HasSuffix(got, "-") != dash {
			t.Errorf("%d letters: got %q", n, got)
		}
	}
}
