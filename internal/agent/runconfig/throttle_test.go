// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package runconfig

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestThrottle(t *testing.T) {
	if os.Getpagesize() != 4096 {
		t.Skipf("SKIPPED: the figures are those of pages of 4096 bytes, not of %d", os.Getpagesize())
	}
	shared := &corev1.ResourceRequirements{Limits: list("memory", "1Gi")}
	for name, c := range map[string]struct {
		factor    float64
		container corev1.Container
		whole     *corev1.ResourceRequirements
		want      string
	}{
		"between request and limit":   {0.9, bounded(list("memory", "100Mi"), list("memory", "200Mi")), nil, "199229440"},
		"down to a whole page":        {0.5, bounded(list("memory", "1"), list("memory", "10000")), nil, "4096"},
		"no request":                  {0.5, bounded(nil, list("memory", "200Mi")), nil, "104857600"},
		"no limit":                    {0.5, bounded(list("memory", "1Gi"), nil), nil, "2684354560"},
		"neither":                     {0.25, corev1.Container{Name: "c"}, nil, "1073741824"},
		"all that it may have":        {0.9, bounded(list("memory", "1Gi"), list("memory", "1Gi")), nil, ""},
		"more than all pods have":     {0.9, bounded(list("memory", "5Gi"), nil), nil, ""},
		"bounded by the pod":          {0.9, corev1.Container{Name: "c"}, shared, ""},
		"its own limit, in such one":  {0.5, bounded(nil, list("memory", "200Mi")), shared, "104857600"},
		"nobody asked for throttling": {0, bounded(list("memory", "100Mi"), list("memory", "200Mi")), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := Node{Throttle: Throttle{Factor: c.factor, Allocatable: 4 << 30}, Swap: Swap{Bound: true, Unified: true}}
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c.container}, Resources: c.whole}}
			got := n.Resources(pod, &pod.Spec.Containers[0]).Unified
			if got["memory.high"] != c.want || got["memory.swap.max"] != "0" {
				t.Errorf("%v, want memory.high %s", got, c.want)
			}
		})
	}
}
