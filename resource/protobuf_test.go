// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// podCodec stores pods.
func podCodec() Codec {
	return ProtobufCodec(corev1.SchemeGroupVersion.WithKind("Pod"), func() Object { return &corev1.Pod{} })
}

// TestProtobufAsUpstream compares our envelope with that of Kubernetes' own serializer, byte for byte.
func TestProtobufAsUpstream(t *testing.T) {
	s := runtime.NewScheme()
	if err := corev1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "a", string(bytes.Repeat([]byte("long-name."), 40))} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		ours, err := podCodec().Encode(pod)
		if err != nil {
			t.Fatal(err)
		}
		pod.APIVersion, pod.Kind = "v1", "Pod"
		var theirs bytes.Buffer
		if err := protobuf.NewSerializer(s, s).Encode(pod, &theirs); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(ours, theirs.Bytes()) {
			t.Errorf("%d bytes of name: ours %q, theirs %q", len(name), ours, theirs.Bytes())
		}
		back, err := podCodec().Decode(theirs.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if back.GetName() != name || back.GetObjectKind().GroupVersionKind().Kind != "Pod" {
			t.Errorf("read back %q of kind %v", back.GetName(), back.GetObjectKind())
		}
	}
}

// TestProtobufDamaged reads envelopes that are none.
func TestProtobufDamaged(t *testing.T) {
	data, err := podCodec().Encode(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "name"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]byte{nil, []byte("{}"), data[:5], data[:len(data)-5], append(append([]byte{}, data...), 0xff)} {
		if _, err := podCodec().Decode(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// FuzzProtobuf reads anything without harm, and what it reads it writes again.
func FuzzProtobuf(f *testing.F) {
	data, err := podCodec().Encode(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "name"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("k8s\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		obj, err := podCodec().Decode(data)
		if err != nil {
			return
		}
		if _, err := podCodec().Encode(obj); err != nil {
			t.Errorf("read but not written: %v", err)
		}
	})
}

// TestStoredAsJSON: an object that kube-apiserver stored as JSON is read, one of another kind or version is not.
func TestStoredAsJSON(t *testing.T) {
	c := ProtobufCodec(corev1.SchemeGroupVersion.WithKind("ConfigMap"), func() Object { return &corev1.ConfigMap{} })
	obj, err := c.Decode([]byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"b":"c"}}` + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	if m := obj.(*corev1.ConfigMap); m.Name != "a" || m.Data["b"] != "c" || m.Kind != "ConfigMap" {
		t.Errorf("read %+v", m)
	}
	for _, data := range []string{`{`, `{}`, `{"kind":"Secret","apiVersion":"v1"}`, `{"kind":"ConfigMap","apiVersion":"v2"}`} {
		if obj, err := c.Decode([]byte(data)); err == nil {
			t.Errorf("%s: read as %+v", data, obj)
		}
	}
}

// TestStoredKind: the codec says which kind is stored, which may be of another group; without its word it is the descriptor's.
func TestStoredKind(t *testing.T) {
	served := &Descriptor{Group: "events.k8s.io", Kind: "Event", Storage: "v1"}
	if got, want := served.HubGroupVersionKind().String(), "events.k8s.io/v1, Kind=Event"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	served.Codec = ProtobufCodec(corev1.SchemeGroupVersion.WithKind("Event"), func() Object { return &corev1.Event{} })
	if got, want := served.HubGroupVersionKind().String(), "/v1, Kind=Event"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
