// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"bytes"
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/kinds/kindstest"
	"github.com/mortise-dev/mortise/resource"
)

// randomObjects are how many of each version of each kind are tried.
const randomObjects = 8

type message interface {
	Marshal() ([]byte, error)
	Unmarshal(data []byte) error
}

// TestRandomRoundTrips takes random objects of every version of every kind through each encoding and back, through storage,
// and through the kind's other versions.
func TestRandomRoundTrips(t *testing.T) {
	for _, d := range All(Options{}) {
		t.Run(d.GroupResource().String(), func(t *testing.T) {
			for i := range d.Versions {
				v := &d.Versions[i]
				for seed := range int64(randomObjects) {
					obj := v.New()
					kindstest.Fill(obj, rand.NewSource(seed))
					obj.GetObjectKind().SetGroupVersionKind(d.GroupVersionKind(v.Name))
					trip(t, d, v, obj)
					if t.Failed() {
						t.Fatalf("%s of seed %d", v.Name, seed)
					}
				}
			}
		})
	}
}

func trip(t *testing.T, d *resource.Descriptor, v *resource.Version, obj resource.Object) {
	t.Helper()
	want := text(t, obj)
	same := func(how string, got resource.Object, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", how, err)
			return
		}
		got.GetObjectKind().SetGroupVersionKind(d.GroupVersionKind(v.Name))
		if d := cmp.Diff(parsed(t, want), parsed(t, text(t, got))); d != "" {
			t.Errorf("%s: %s", how, d)
		}
	}
	again := v.New()
	same("JSON", again, json.Unmarshal([]byte(want), again))

	inYAML, err := yaml.JSONToYAML([]byte(want))
	if err != nil {
		t.Fatal(err)
	}
	again = v.New()
	same("YAML", again, yaml.Unmarshal(inYAML, again))

	inCBOR, err := direct.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	again = v.New()
	same("CBOR", again, direct.Unmarshal(inCBOR, again))

	if m, ok := obj.(message); ok && v.Protobuf {
		data, err := m.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		again = v.New()
		if err := again.(message).Unmarshal(data); err != nil {
			t.Fatal(err)
		}
		again.GetObjectKind().SetGroupVersionKind(d.GroupVersionKind(v.Name))
		if !apiequality.Semantic.DeepEqual(obj, again) { // it does not tell empty from absent
			t.Errorf("protobuf: %s", cmp.Diff(want, text(t, again)))
		}
	}
	if v.FromHub != nil {
		hub := byHub(t, v, obj)
		again = byHub(t, v, hub) // the first time fills in what the hub has and this version has not
		if d := cmp.Diff(parsed(t, text(t, hub)), parsed(t, text(t, again))); d != "" {
			t.Errorf("by way of the hub: %s", d)
		}
		if obj, err = v.ToHub(again); err != nil {
			t.Fatal(err)
		}
	}
	if d.Create != nil || d.Codec == nil {
		return
	}
	// what is stored is as it was once it has been read, however often that is done
	stored, err := d.Codec.Encode(obj)
	if err != nil {
		t.Fatal(err)
	}
	read, err := d.Codec.Decode(stored)
	if err != nil {
		t.Fatal(err)
	}
	if stored, err = d.Codec.Encode(read); err != nil {
		t.Fatal(err)
	}
	reread, err := d.Codec.Decode(stored)
	if err != nil {
		t.Fatal(err)
	}
	twice, err := d.Codec.Encode(reread)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(stored, twice) {
		t.Errorf("stored and read twice: %s", cmp.Diff(text(t, read), text(t, reread)))
	}
}

// byHub converts an object to the hub and back.
func byHub(t *testing.T, v *resource.Version, obj resource.Object) resource.Object {
	t.Helper()
	hub, err := v.ToHub(obj.DeepCopyObject().(resource.Object))
	if err != nil {
		t.Fatal(err)
	}
	back, err := v.FromHub(hub.DeepCopyObject().(resource.Object))
	if err != nil {
		t.Fatal(err)
	}
	return back
}

// parsed is JSON whose keys have no order.
func parsed(t *testing.T, text string) any {
	t.Helper()
	var x any
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		t.Fatal(err)
	}
	return x
}
