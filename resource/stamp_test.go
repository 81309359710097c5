// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStamp compares a stamped value with the message of the object that it decodes to, for metadata of sizes at which
// lengths take another byte.
func TestStamp(t *testing.T) {
	for _, size := range []int{0, 1, 60, 70, 100, 16300, 16400} {
		for _, revision := range []string{"1", "123456", "9223372036854775807"} {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: "ns", UID: "u", Labels: map[string]string{"l": strings.Repeat("x", size)}},
				Spec:       corev1.PodSpec{NodeName: "node"},
			}
			value, err := podCodec().Encode(pod)
			if err != nil {
				t.Fatal(err)
			}
			s, ok := Stamp(value, []byte(revision))
			if !ok {
				t.Fatalf("%d bytes of labels: no stamp", size)
			}
			pod.ResourceVersion = revision
			want, err := pod.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			got := s.Append([]byte("before"))
			if !bytes.Equal(got, append([]byte("before"), want...)) || s.Size() != len(want) {
				t.Errorf("%d bytes of labels, revision %s: %q of size %d, want %q", size, revision, got, s.Size(), want)
			}
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "5"}}
	stamped, err := podCodec().Encode(pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][]byte{nil, []byte("{}"), []byte("k8s\x00"), stamped, append([]byte{}, stamped[:20]...)} {
		if _, ok := Stamp(bad, []byte("1")); ok {
			t.Errorf("%q was stamped", bad)
		}
	}
}

// FuzzStamp stamps anything without harm; what it stamps decodes to the same object with the revision, if at all.
func FuzzStamp(f *testing.F) {
	data, err := podCodec().Encode(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "name"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("k8s\x00\x12\x03\x0a\x0142"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, ok := Stamp(data, []byte("42"))
		if !ok {
			return
		}
		b := s.Append(nil)
		if len(b) != s.Size() {
			t.Fatalf("%d bytes, of size %d", len(b), s.Size())
		}
		if _, err := podCodec().Decode(data); err != nil {
			return
		}
		var pod corev1.Pod
		if err := pod.Unmarshal(b); err != nil {
			t.Fatalf("stamped but not read: %v", err)
		}
	})
}
