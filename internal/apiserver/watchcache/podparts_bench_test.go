// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"hash/maphash"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkSharePodParts is what sharing the parts of a pod costs beside decoding it.
func BenchmarkSharePodParts(b *testing.B) {
	s := &podParts{seed: maphash.MakeSeed()}
	value, err := web("a").Marshal()
	if err != nil {
		b.Fatal(err)
	}
	pod := web("a")
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			pod = &corev1.Pod{}
			if err := pod.Unmarshal(value); err != nil {
				b.Fatal(err)
			}
		}
	})
	decodedFieldSets.share(pod)
	b.Run("share", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			own := *pod
			s.share(&own)
		}
	})
}
