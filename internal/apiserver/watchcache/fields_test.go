// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/internal/kinds/core"
)

func BenchmarkFieldSet(b *testing.B) {
	k := &watchcache.Kind{Descriptor: core.Pod(nil)}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}}
	b.ReportAllocs()
	for b.Loop() {
		k.FieldSet(pod)
	}
}
