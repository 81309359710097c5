// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/hardware"
)

// reservePages has the kernel keep so many huge pages of 2 MiB more, until the test is over. It reports whether it did.
func reservePages(t *testing.T, count int64) bool {
	t.Helper()
	const path = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	before, ok := hardware.Number(path)
	if !ok || os.WriteFile(path, []byte(strconv.FormatInt(before+count, 10)), 0o600) != nil {
		return false
	}
	t.Cleanup(func() {
		if err := os.WriteFile(path, []byte(strconv.FormatInt(before, 10)), 0o600); err != nil {
			t.Error(err)
		}
	})
	now, _ := hardware.Number(path)
	return now >= before+count
}

// hugePagesEndToEnd runs a pod that has huge pages, as memory and as files.
func hugePagesEndToEnd(t *testing.T, c *cluster) {
	asks := corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi"), "memory": resource.MustParse("64Mi")}
	c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "huge"}, Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{{Name: "pages",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumHugePages}}}},
		Containers: []corev1.Container{{
			Name: "c", Command: sh("mount | grep ' /pages ' | cut -d' ' -f5; truncate -s 4M /pages/f && echo made; sleep 1000"),
			Resources:    corev1.ResourceRequirements{Requests: asks, Limits: asks},
			VolumeMounts: []corev1.VolumeMount{{Name: "pages", MountPath: "/pages"}},
		}},
	}})
	c.await("huge", "ready", isReady)
	c.awaitLog("huge", "c", "hugetlbfs\nmade\n")
	c.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "huger"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Command: sh("sleep 1000"),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"hugepages-2Mi": resource.MustParse("1Ti"), "memory": resource.MustParse("64Mi")},
			Limits:   corev1.ResourceList{"hugepages-2Mi": resource.MustParse("1Ti")},
		},
	}}}})
	c.await("huger", "refused", func(p *corev1.Pod) bool { return p != nil && p.Status.Reason == "OutOfhugepages-2Mi" })
}
