// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields_test

import (
	"math/rand"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/managedfields"
	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/internal/kinds/kindstest"
	"github.com/mortise-dev/mortise/resource"
)

// TestSoleManagers updates random objects of every kind, mostly by the manager that created them. It compares the entries of a manager
// that knows field sets with those of one that computes each.
func TestSoleManagers(t *testing.T) {
	remembers, forgets := managedfields.New(nil), managedfields.New(nil)
	quick := 0
	for _, d := range kinds.All(kinds.Options{}) {
		for i := range d.Versions {
			v := &d.Versions[i]
			for seed := range int64(3) {
				random := rand.New(rand.NewSource(seed))
				obj := v.New()
				kindstest.Fill(obj, rand.NewSource(seed))
				obj.SetManagedFields(nil)
				live := hub(t, v, obj)
				if _, err := remembers.Update(d, v.Name, "", nil, live, "m"); err != nil {
					t.Fatal(err)
				}
				for round := range 12 {
					manager := "m"
					if round == 10 {
						manager = "other"
					}
					change(reflect.ValueOf(obj).Elem(), random, []float64{0, 0.01, 0.1}[round%3])
					obj.SetManagedFields(nil)
					one := hub(t, v, obj)
					if random.Intn(2) == 0 {
						one.SetManagedFields(live.GetManagedFields())
					}
					other := one.DeepCopyObject().(resource.Object)
					forgets.Forget()
					before := remembers.Known()
					if _, err := remembers.Update(d, v.Name, "", live, one, manager); err != nil {
						t.Fatal(err)
					}
					if _, err := forgets.Update(d, v.Name, "", live, other, manager); err != nil {
						t.Fatal(err)
					}
					if remembers.Known() == before && len(said(one)) == 1 {
						quick++
					}
					if diff := cmp.Diff(said(other), said(one)); diff != "" {
						t.Fatalf("%s %s, seed %d, round %d: %s", d.Resource, v.Name, seed, round, diff)
					}
					live = one
				}
			}
		}
	}
	if quick == 0 {
		t.Error("no update used what is known of a likeness")
	}
	t.Logf("%d updates with one entry and nothing new to know", quick)
}

// An update that changes nothing leaves the time as it is; another one of the same fields sets it.
func TestTimeOfSoleManager(t *testing.T) {
	m, maps := managedfields.New(nil), named(t, "", "configmaps")
	object := func(value string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": value}}
	}
	live := object("0")
	if _, err := m.Update(maps, "v1", "", nil, live, "m"); err != nil {
		t.Fatal(err)
	}
	long := metav1.NewTime(time.Unix(7, 0))
	sent := live.DeepCopy().ManagedFields
	sent[0].Time = &metav1.Time{Time: long.Time}
	live.ManagedFields[0].Time = &long
	live.UID, live.ResourceVersion = "u", "7"
	long.Time = long.Add(time.Millisecond) // objects in memory have times that are more exact than what clients read and send
	for round := range 2 {
		same, changed := object("0"), object("1")
		changed.ManagedFields = sent
		for _, obj := range []*corev1.ConfigMap{same, changed} {
			if _, err := m.Update(maps, "v1", "", live, obj, "m"); err != nil {
				t.Fatal(err)
			}
		}
		if at := same.ManagedFields[0].Time; !at.Equal(&long) {
			t.Errorf("round %d: an update of nothing has the time %v", round, at)
		}
		if at := changed.ManagedFields[0].Time; at.Equal(&long) {
			t.Errorf("round %d: an update has the time of the one before", round)
		}
		if same.UID != "" || same.ResourceVersion != "" {
			t.Errorf("round %d: metadata was changed to %v", round, same.ObjectMeta)
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	m, maps := managedfields.New(nil), named(b, "", "configmaps")
	live := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "0"}}
	if _, err := m.Update(maps, "v1", "", nil, live, "m"); err != nil {
		b.Fatal(err)
	}
	for _, manager := range []string{"m", "another"} {
		b.Run(manager, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "1"}}
				if _, err := m.Update(maps, "v1", "", live, obj, manager); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
