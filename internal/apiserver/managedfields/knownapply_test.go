// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields_test

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/mortise-dev/mortise/internal/apiserver/managedfields"
	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/internal/kinds/kindstest"
	"github.com/mortise-dev/mortise/resource"
)

// TestKnownApplies applies random configurations of every kind with changing values, amid updates of others. It compares the objects and
// errors of a manager that remembers with those of one that computes all field sets.
func TestKnownApplies(t *testing.T) {
	remembers, forgets := managedfields.New(nil), managedfields.New(nil)
	known, fresh := 0, 0
	for _, d := range kinds.All(kinds.Options{}) {
		v := d.Hub()
		for seed := range int64(2) {
			random := rand.New(rand.NewSource(seed))
			obj := v.New()
			kindstest.Fill(obj, rand.NewSource(seed))
			content := tree(t, obj)
			config := &unstructured.Unstructured{Object: thinned(content, random, 0.3).(map[string]any)}
			delete(config.Object, "status")
			config.Object["metadata"] = map[string]any{"name": "n", "labels": map[string]any{"a": "b", "c": "d"}}
			config.SetGroupVersionKind(d.GroupVersionKind(v.Name))
			var live resource.Object
			for round := range 8 {
				manager, force := "m", round%3 > 0
				switch round {
				case 4:
					config.Object["metadata"].(map[string]any)["annotations"] = map[string]any{"x": "y"}
				case 6:
					if random.Intn(2) == 0 {
						manager = "other"
					}
				}
				if round > 0 {
					config.Object = varied(config.Object, random, "").(map[string]any)
				}
				c := managedfields.Configuration{Object: config, Manager: manager, Force: force}
				forgets.Forget()
				if remembers.Knows(d, v.Name, live, c) {
					if known++; live == nil {
						fresh++
					}
				}
				got, err := remembers.Apply(d, v.Name, "", live, c)
				forgets.Forget()
				want, werr := forgets.Apply(d, v.Name, "", live, c)
				if fmt.Sprint(err) != fmt.Sprint(werr) {
					t.Fatalf("%s, seed %d, round %d: error %v, want %v", d.Resource, seed, round, err, werr)
				}
				if err != nil {
					continue
				}
				if diff := cmp.Diff(said(want), said(got)); diff != "" {
					t.Fatalf("%s, seed %d, round %d: %s", d.Resource, seed, round, diff)
				}
				if diff := cmp.Diff(timeless(t, want), timeless(t, got)); diff != "" {
					t.Fatalf("%s, seed %d, round %d: %s", d.Resource, seed, round, diff)
				}
				if live = got; round == 2 {
					changed := live.DeepCopyObject().(resource.Object)
					changed.SetAnnotations(map[string]string{"of": "another"})
					if live, err = remembers.Update(d, v.Name, "", live, changed, "updater"); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	t.Logf("%d applies needed no field sets, %d of them of new objects", known, fresh)
	if known < 100 || known == fresh {
		t.Errorf("%d applies needed no field sets, %d of them of new objects", known, fresh)
	}
}

// tree is an object as decoded JSON.
func tree(t *testing.T, obj any) map[string]any {
	t.Helper()
	text, err := utiljson.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := utiljson.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func timeless(t *testing.T, obj resource.Object) map[string]any {
	t.Helper()
	obj = obj.DeepCopyObject().(resource.Object)
	obj.SetManagedFields(nil)
	return tree(t, obj)
}

// thinned leaves a share of the members out, and all nulls.
func thinned(v any, random *rand.Rand, share float64) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, m := range v {
			if m != nil && random.Float64() >= share {
				out[k] = thinned(m, random, share/4)
			}
		}
		return out
	case []any:
		out := []any{}
		for _, e := range v {
			if e != nil {
				out = append(out, thinned(e, random, 0))
			}
		}
		return out
	}
	return v
}

// varied has other values of some texts and numbers. What names a kind stays.
func varied(v any, random *rand.Rand, name string) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, m := range v {
			out[k] = varied(m, random, k)
		}
		return out
	case []any:
		out := []any{}
		for _, e := range v {
			out = append(out, varied(e, random, "listed"))
		}
		return out
	case string:
		switch {
		case random.Intn(4) > 0 || strings.Contains(strings.ToLower(name), "time"):
		case name == "kind", name == "apiVersion", name == "name", name == "listed":
		default:
			return v + "x"
		}
	case int64:
		if random.Intn(4) == 0 {
			return v/2 + 1
		}
	}
	return v
}

// BenchmarkApply changes a value of a ConfigMap by server-side apply.
func BenchmarkApply(b *testing.B) {
	for name, forget := range map[string]bool{"known": false, "unknown": true} {
		b.Run(name, func(b *testing.B) {
			m, d := managedfields.New(nil), named(b, "", "configmaps")
			var live resource.Object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Data: map[string]string{"k": "v"}}
			live, err := m.Update(d, "v1", "", nil, live, "creator")
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for i := range b.N {
				u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
					"metadata": map[string]any{"name": "n"}, "data": map[string]any{"k": fmt.Sprint(i)}}}
				if forget {
					m.Forget()
				}
				if live, err = m.Apply(d, "v1", "", live, managedfields.Configuration{Object: u, Manager: "applier", Force: true}); err != nil {
					b.Fatal(err)
				}
			}
			if i := len(said(live)); i != 2 {
				b.Log(said(live))
			}
		})
	}
}
