// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// claim is one of the version that has the devices, each "name", "name!" for administration, or "name*" to share 1 of its memory.
func claim(name string, version int, names ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name),
		ResourceVersion: strconv.Itoa(version)}}
	for _, n := range names {
		if c.Status.Allocation == nil {
			c.Status.Allocation = &resourcev1.AllocationResult{}
		}
		r := resourcev1.DeviceRequestAllocationResult{Driver: "d", Pool: "p", Device: n}
		yes, share := true, types.UID("share-"+name)
		switch last := len(n) - 1; n[last] {
		case '!':
			r.Device, r.AdminAccess = n[:last], &yes
		case '*':
			r.Device, r.ShareID = n[:last], &share
			r.ConsumedCapacity = map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse("1")}
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, r)
	}
	return c
}

// state writes down what is taken.
func state(t *testing.T, c *Claims) (out []string) {
	t.Helper()
	s, err := c.GatherAllocatedState()
	if err != nil {
		t.Fatal(err)
	}
	for id := range s.AllocatedDevices {
		out = append(out, id.Device.String())
	}
	for id := range s.AllocatedSharedDeviceIDs {
		out = append(out, id.Device.String()+"/"+id.ShareID.String())
	}
	for id, used := range s.AggregatedCapacity {
		for name, q := range used {
			out = append(out, fmt.Sprintf("%s %s %s", id.Device, name, q))
		}
	}
	slices.Sort(out)
	return out
}

// TestWhatIsTaken goes through the lives of claims; after each step some devices are taken, and hearers have heard.
func TestWhatIsTaken(t *testing.T) {
	c := NewClaims()
	var heard []string
	c.Hear(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { heard = append(heard, "add "+obj.(*resourcev1.ResourceClaim).Name) },
		UpdateFunc: func(old, obj any) {
			heard = append(heard, fmt.Sprintf("%s %t→%t", obj.(*resourcev1.ResourceClaim).Name,
				old.(*resourcev1.ResourceClaim).Status.Allocation != nil, obj.(*resourcev1.ResourceClaim).Status.Allocation != nil))
		},
		DeleteFunc: func(obj any) { heard = append(heard, "delete "+obj.(*resourcev1.ResourceClaim).Name) },
	})
	h := c.Handler()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	gone := cache.DeletedFinalStateUnknown{Key: "default/y", Obj: claim("y", 9)}
	for _, step := range []struct {
		what  string
		do    func()
		taken []string
		heard []string
	}{
		{"told", func() { h.OnAdd(claim("x", 1), true); h.OnAdd(claim("y", 2, "b"), true) }, []string{"b"}, []string{"add x", "add y"}},
		{"in flight", func() { ok(c.SignalClaimPendingAllocation("uid-x", claim("x", 1, "a", "s*", "z!"))) },
			[]string{"a", "b", "s memory 1", "s/share-x"}, nil},
		{"come to nothing", func() { c.MaybeRemoveClaimPendingAllocation("uid-x", false) }, []string{"b"}, []string{"x true→false"}},
		{"in flight again, for two", func() {
			ok(c.SignalClaimPendingAllocation("uid-x", claim("x", 1, "a", "s*")))
			ok(c.SignalClaimPendingAllocation("uid-x", claim("x", 1, "a", "s*")))
		}, []string{"a", "b", "s memory 1", "s/share-x"}, nil},
		{"one gives up", func() {
			if c.MaybeRemoveClaimPendingAllocation("uid-x", false) {
				t.Error("the other needs it still")
			}
		}, []string{"a", "b", "s memory 1", "s/share-x"}, nil},
		{"written, and in flight still: counted once", func() { ok(c.AssumeClaimAfterAPICall(claim("x", 4, "a", "s*"))) },
			[]string{"a", "b", "s memory 1", "s/share-x"}, []string{"x false→true"}},
		{"landed", func() { c.MaybeRemoveClaimPendingAllocation("uid-x", true) }, []string{"a", "b", "s memory 1", "s/share-x"}, nil},
		{"told of what was before", func() { h.OnUpdate(claim("x", 1), claim("x", 3)) }, []string{"a", "b", "s memory 1", "s/share-x"}, nil},
		{"told of what was written", func() { h.OnUpdate(claim("x", 3), claim("x", 4, "a", "s*")) },
			[]string{"a", "b", "s memory 1", "s/share-x"}, []string{"x true→true"}},
		{"assumed late", func() { ok(c.AssumeClaimAfterAPICall(claim("x", 4, "a"))) }, []string{"a", "b", "s memory 1", "s/share-x"}, nil},
		{"another has the device too", func() { h.OnAdd(claim("w", 5, "a"), false) }, []string{"a", "b", "s memory 1", "s/share-x"},
			[]string{"add w"}},
		{"released", func() { h.OnUpdate(claim("x", 4, "a", "s*"), claim("x", 6)) }, []string{"a", "b"}, []string{"x true→false"}},
		{"the other too", func() { h.OnDelete(claim("w", 5, "a")) }, []string{"b"}, []string{"delete w"}},
		{"assumed and taken back", func() { ok(c.AssumeClaimAfterAPICall(claim("x", 7, "a"))); c.AssumedClaimRestore("default", "x") },
			[]string{"b"}, []string{"x false→true", "x true→false"}},
		{"deleted while nobody looked", func() { h.OnDelete(gone) }, nil, []string{"delete y"}},
		{"a flight of a claim that goes", func() {
			ok(c.SignalClaimPendingAllocation("uid-x", claim("x", 6, "a")))
			h.OnDelete(claim("x", 6))
		}, []string{"a"}, []string{"delete x"}},
		{"ends", func() { c.MaybeRemoveClaimPendingAllocation("uid-x", false) }, nil, []string{"delete x"}},
	} {
		heard = nil
		step.do()
		if d := cmp.Diff(step.taken, state(t, c)); d != "" {
			t.Errorf("%s: taken (-want +got):\n%s", step.what, d)
		}
		if d := cmp.Diff(step.heard, heard); d != "" {
			t.Errorf("%s: heard (-want +got):\n%s", step.what, d)
		}
	}
	if len(c.told)+len(c.assumed)+len(c.flights)+len(c.taken.alone)+len(c.taken.shared)+len(c.taken.capacity) > 0 {
		t.Errorf("something is left: %+v", c)
	}
}

func TestClaimsThatAreNotThere(t *testing.T) {
	c := NewClaims()
	if _, err := c.Get("default", "x"); !errors.Is(err, ErrNotFound) || err.Error() != `could not find ResourceClaim "default/x"` {
		t.Errorf("get: %v", err)
	}
	if err := c.AssumeClaimAfterAPICall(claim("x", 1)); !errors.Is(err, ErrNotFound) {
		t.Errorf("assume: %v", err)
	}
	if err := c.SignalClaimPendingAllocation("uid-x", claim("x", 1, "a")); !errors.Is(err, ErrNotFound) {
		t.Errorf("signal: %v", err)
	}
	if c.MaybeRemoveClaimPendingAllocation("uid-x", true) {
		t.Error("there was nothing to remove")
	}
	changed := c.Changed()
	c.Handler().OnAdd(claim("x", 1), false)
	<-changed
	other := claim("x", 2)
	other.UID = "another"
	if err := c.AssumeClaimAfterAPICall(other); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("assume of another of its name: %v", err)
	}
	if err := c.SignalClaimPendingAllocation("uid-x", claim("x", 1, "a")); err != nil {
		t.Error(err)
	}
	if a := c.GetPendingAllocation("uid-x"); a == nil || a.Devices.Results[0].Device != "a" {
		t.Errorf("in flight is %+v", a)
	}
}

// TestDevicesStayTakenOnTheirWay: while claims go from flight to assumption to what is told, nobody sees their device free.
func TestDevicesStayTakenOnTheirWay(t *testing.T) {
	c := NewClaims()
	h := c.Handler()
	const n = 200
	for i := range n {
		h.OnAdd(claim(fmt.Sprint(i), 1), true)
		if err := c.SignalClaimPendingAllocation(types.UID(fmt.Sprintf("uid-%d", i)), claim(fmt.Sprint(i), 1, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			if got := len(state(t, c)); got != n {
				t.Errorf("%d devices are taken, want %d", got, n)
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for i := range n {
		written := claim(fmt.Sprint(i), 2, fmt.Sprint(i))
		if err := c.AssumeClaimAfterAPICall(written); err != nil {
			t.Error(err)
		}
		c.MaybeRemoveClaimPendingAllocation(written.UID, true)
		h.OnUpdate(claim(fmt.Sprint(i), 1), written)
	}
	close(done)
	looking.Wait()
}
