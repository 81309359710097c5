// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields_test

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/mortise-dev/mortise/internal/apiserver/managedfields"
	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/internal/kinds/kindstest"
	"github.com/mortise-dev/mortise/resource"
)

// TestLikeCreations creates random objects of every version of every kind, each followed by some slightly different
// ones. It compares the entries of a manager with a cache with those of a manager without.
func TestLikeCreations(t *testing.T) {
	remembers, forgets := managedfields.New(nil), managedfields.New(nil)
	tried, again := 0, 0
	for _, d := range kinds.All(kinds.Options{}) {
		for i := range d.Versions {
			v := &d.Versions[i]
			for seed := range int64(24) {
				random := rand.New(rand.NewSource(seed))
				obj := v.New()
				kindstest.Fill(obj, rand.NewSource(seed))
				for round := range 8 {
					if round > 0 {
						change(reflect.ValueOf(obj).Elem(), random, 1/float64(int(1)<<(2+round/2)))
					}
					obj.SetManagedFields(nil)
					one := hub(t, v, obj)
					other := one.DeepCopyObject().(resource.Object)
					forgets.Forget()
					before := remembers.Known()
					if _, err := remembers.Update(d, v.Name, "", nil, one, "m"); err != nil {
						t.Fatal(err)
					}
					if _, err := forgets.Update(d, v.Name, "", nil, other, "m"); err != nil {
						t.Fatal(err)
					}
					tried++
					if len(said(one)) > 0 && remembers.Known() == before {
						again++
					}
					if d := cmp.Diff(said(other), said(one)); d != "" {
						t.Fatalf("%s %s, seed %d, round %d: %s", d, v.Name, seed, round, d)
					}
				}
			}
		}
	}
	if again == 0 {
		t.Error("no object was like another")
	}
	t.Logf("%d objects, %d of them like ones before", tried, again)
}

// hub converts a version's object, which it does not change, to the hub.
func hub(t *testing.T, v *resource.Version, obj resource.Object) resource.Object {
	t.Helper()
	obj = obj.DeepCopyObject().(resource.Object)
	if v.ToHub == nil {
		return obj
	}
	out, err := v.ToHub(obj)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// said returns an object's entries without the time.
func said(obj resource.Object) []string {
	var out []string
	for _, e := range obj.GetManagedFields() {
		out = append(out, fmt.Sprintf("%q %s %s %s %q %t %s", e.Manager, e.Operation, e.APIVersion, e.FieldsType, e.Subresource, e.Time != nil,
			e.FieldsV1.GetRawString()))
	}
	return out
}

// change changes a share of the values in v: to other values, to nil, to empty ones, or in their number.
func change(v reflect.Value, random *rand.Rand, share float64) {
	now := random.Float64() < share && v.CanSet()
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if now {
			v.SetZero()
		} else if !v.IsNil() && v.Kind() == reflect.Pointer {
			change(v.Elem(), random, share)
		}
	case reflect.Struct:
		switch x := v.Addr().Interface().(type) {
		case *metav1.Time:
			if now {
				*x = []metav1.Time{{}, {Time: time.Time{}.In(time.FixedZone("far", 3600))}, {Time: time.Unix(7, 0)}}[random.Intn(3)]
			}
			return
		case *intstr.IntOrString:
			if now {
				*x = []intstr.IntOrString{{}, {StrVal: "s"}, intstr.FromInt32(7), intstr.FromString(""), intstr.FromString("s")}[random.Intn(5)]
			}
			return
		case *apiresource.Quantity:
			if now {
				*x = []apiresource.Quantity{{}, apiresource.MustParse("0"), apiresource.MustParse("0Gi"), apiresource.MustParse("7m")}[random.Intn(4)]
			}
			return
		case json.Marshaler: // its text must stay valid
			if now {
				v.SetZero()
			}
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				change(v.Field(i), random, share)
			}
		}
	case reflect.Slice:
		if _, ok := v.Addr().Interface().(json.Marshaler); ok {
			return
		}
		switch {
		case !now:
		case v.Len() > 0 && random.Intn(2) == 0:
			v.Set(reflect.Append(v, v.Index(random.Intn(v.Len())))) // a duplicate until it is changed
		case v.Len() > 0 && random.Intn(2) == 0:
			v.Set(v.Slice(0, v.Len()-1))
		case random.Intn(2) == 0:
			v.SetZero()
		default:
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		for i := range v.Len() {
			change(v.Index(i), random, share)
		}
	case reflect.Map:
		if now {
			v.Set([]reflect.Value{reflect.Zero(v.Type()), reflect.MakeMap(v.Type())}[random.Intn(2)])
		}
		for _, k := range v.MapKeys() {
			switch e := reflect.New(v.Type().Elem()).Elem(); {
			case random.Float64() < share:
				v.SetMapIndex(k, reflect.Value{})
			default:
				e.Set(v.MapIndex(k))
				change(e, random, share)
				v.SetMapIndex(k, e)
			}
		}
	case reflect.String:
		if now {
			v.SetString([]string{"", "x", "y"}[random.Intn(3)])
		}
	case reflect.Bool:
		if now {
			v.SetBool(!v.Bool())
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if now {
			v.SetInt(int64(random.Intn(3)))
		}
	}
}

func named(t testing.TB, group, name string) *resource.Descriptor {
	t.Helper()
	for _, d := range kinds.All(kinds.Options{}) {
		if d.Group == group && d.Resource == name {
			return d
		}
	}
	t.Fatalf("no %s in group %q", name, group)
	return nil
}

// The fields of an object like an earlier one are not computed again; those of one that differs in more than values
// are.
func TestWhatIsLike(t *testing.T) {
	m := managedfields.New(nil)
	write := func(d *resource.Descriptor, obj resource.Object) {
		t.Helper()
		if _, err := m.Update(d, "v1", "", nil, obj, "m"); err != nil {
			t.Fatal(err)
		}
	}
	pods, maps := named(t, "", "pods"), named(t, "", "configmaps")
	pod := func(name, image string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "c", Image: image, Args: []string{name},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": apiresource.MustParse("1")}}}}}}
	}
	other := pod("d", "three")
	other.Spec.Containers[0].Name = "other"
	for i, step := range []struct {
		d     *resource.Descriptor
		obj   resource.Object
		known int
	}{
		{pods, pod("a", "one"), 1},
		{pods, pod("b", "two"), 1},
		{pods, pod("c", ""), 2},
		{pods, other, 3},
		{maps, &corev1.ConfigMap{Data: map[string]string{"a": "1"}}, 4},
		{maps, &corev1.ConfigMap{Data: map[string]string{"a": "2"}}, 4},
		{maps, &corev1.ConfigMap{Data: map[string]string{"b": "2"}}, 5},
	} {
		if write(step.d, step.obj); m.Known() != step.known {
			t.Errorf("step %d: the fields of %d sorts are known, not of %d", i, m.Known(), step.known)
		}
	}
}

func benchmarkCreate(b *testing.B, d *resource.Descriptor, obj resource.Object, like bool) {
	m := managedfields.New(nil)
	b.ReportAllocs()
	for b.Loop() {
		if !like {
			m.Forget()
		}
		obj.SetManagedFields(nil)
		if _, err := m.Update(d, "v1", "", nil, obj, "x"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u", Labels: map[string]string{"color": "blue"}}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": apiresource.MustParse("100m"),
			"memory": apiresource.MustParse("500Mi")}}}}
	pod.Spec.RestartPolicy, pod.Spec.DNSPolicy, pod.Spec.SchedulerName = corev1.RestartPolicyAlways, corev1.DNSClusterFirst,
		corev1.DefaultSchedulerName
	event := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "n"}, EventTime: metav1.NowMicro(),
		ReportingController: "default-scheduler", ReportingInstance: "default-scheduler-host",
		Action: "Binding", Reason: "Scheduled", Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: "n", Name: "p", UID: "u",
			APIVersion: "v1", ResourceVersion: "7"},
		Note: "Successfully assigned n/p to node-1", Type: "Normal"}
	events := named(b, "events.k8s.io", "events")
	written, err := events.Versions[0].ToHub(event)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		d    *resource.Descriptor
		obj  resource.Object
	}{{"pod", named(b, "", "pods"), pod}, {"event", events, written}} {
		b.Run(c.name+"/like", func(b *testing.B) { benchmarkCreate(b, c.d, c.obj, true) })
		b.Run(c.name+"/new", func(b *testing.B) { benchmarkCreate(b, c.d, c.obj, false) })
	}
}
