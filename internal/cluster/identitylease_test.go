// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
)

// TestIdentityLeases: a server renews its own Lease and deletes those of servers that are gone, and no others.
func TestIdentityLeases(t *testing.T) {
	_, a := started(t, Settings{Controllers: []string{"none"}})
	own, err := serverID()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	api := a.self().ownClient().CoordinationV1().Leases(metav1.NamespaceSystem)
	create := func(name string, labels map[string]string, renewed time.Time) {
		spec := coordinationv1.LeaseSpec{HolderIdentity: ptr.To(name), LeaseDurationSeconds: ptr.To[int32](3600)}
		if !renewed.IsZero() {
			spec.RenewTime = ptr.To(metav1.NewMicroTime(renewed))
		}
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: spec}
		if _, err := api.Create(t.Context(), l, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	server := map[string]string{bootstrap.IdentityLabel: bootstrap.IdentityValue}
	create("apiserver-gone", server, now.Add(-2*time.Hour))
	create("apiserver-never", server, time.Time{})
	create("apiserver-there", server, now.Add(-50*time.Minute))
	create("something-else", nil, now.Add(-2*time.Hour))

	l := &identityLease{backend: a.server.Backend(), name: own, log: a.settings.Logger}
	later := now.Add(5 * time.Minute)
	if err := l.renew(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	if err := l.collect(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	all, err := api.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range all.Items {
		names = append(names, l.Name)
		if l.Name == own && !l.Spec.RenewTime.Time.Equal(later.Truncate(time.Microsecond)) {
			t.Errorf("the own Lease was renewed at %v, want %v", l.Spec.RenewTime, later)
		}
	}
	if err := api.Delete(t.Context(), own, metav1.DeleteOptions{}); err != nil { // as a server whose clock is ahead does
		t.Fatal(err)
	}
	restored := 0
	l.restore = func(context.Context) error {
		restored++
		create(own, server, now)
		return nil
	}
	for range 2 {
		if err := l.renew(t.Context(), later); err != nil || restored != 1 {
			t.Errorf("a Lease that is gone: made %d times, %v", restored, err)
		}
	}
	slices.Sort(names)
	if want := []string{own, "apiserver-there", "something-else"}; !slices.Equal(names, slices.Sorted(slices.Values(want))) {
		t.Errorf("%q are left, want %q", names, want)
	}
}
