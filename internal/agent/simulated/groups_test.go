// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func TestGroups(t *testing.T) {
	long := time.Minute
	o := Options{Groups: []Group{
		{
			NamePrefix: "w", Count: 3, Capacity: corev1.ResourceList{"cpu": resource.MustParse("4"), "example.com/gpu": resource.MustParse("2")},
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("3500m"), "memory": resource.MustParse("999Ti")},
			Labels:      map[string]string{"pool": "x", Label: "no"}, Annotations: map[string]string{"a": "b"}, Zones: []string{"y", "z"},
			Region: "r",
			Taints: []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}},
		},
		{NamePrefix: "v", Phases: Phases{Completes: &long}},
	}}
	inBubble(t, o, func(t *testing.T, c kubernetes.Interface, f *fleet) {
		nodes, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: Label + "=true"})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range nodes.Items {
			gpu := n.Status.Allocatable["example.com/gpu"]
			got = append(got, fmt.Sprint(n.Name, " ", n.Spec.PodCIDR, " ", n.Labels[corev1.LabelTopologyZone], n.Labels[corev1.LabelTopologyRegion],
				n.Labels["pool"], n.Annotations["a"],
				" ", n.Status.Capacity.Cpu(), " ", n.Status.Allocatable.Cpu(), " ", n.Status.Allocatable.Memory(), " ", gpu.Value(), " ",
				len(n.Spec.Taints)))
		}
		want := []string{
			"v-0 10.244.3.0/24  32 32 256Gi 0 0", "w-0 10.244.0.0/24 yrxb 4 3500m 256Gi 2 1",
			"w-1 10.244.1.0/24 zrxb 4 3500m 256Gi 2 1", "w-2 10.244.2.0/24 yrxb 4 3500m 256Gi 2 1",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		// What is allocatable is what pods are refused for.
		create(t, c, pod("big", func(p *corev1.Pod) {
			p.Spec.NodeName = "w-1"
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("3800m")}
		}))
		if got := sum(read(t, c, "big")); got != "Failed OutOfcpu" {
			t.Errorf("a pod that is too big is %s", got)
		}
	})
}

func TestPhases(t *testing.T) {
	completes := 30 * time.Second
	o := Options{Phases: Phases{Starts: 10 * time.Second, Ready: 5 * time.Second, Completes: &completes}}
	inBubble(t, o, func(t *testing.T, c kubernetes.Interface, f *fleet) {
		job := func(p *corev1.Pod) {
			yes := true
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "j", UID: "j", Controller: &yes}}
		}
		create(t, c, pod("server", nil))
		create(t, c, pod("job", job))
		create(t, c, pod("own", func(p *corev1.Pod) {
			job(p)
			p.Annotations = map[string]string{AnnotationRunFor: "2s"}
		}))
		for _, step := range []struct {
			after            time.Duration
			server, job, own string
		}{
			{0, "Pending c:ContainerCreating:0:false", "Pending c:ContainerCreating:0:false", "Pending c:ContainerCreating:0:false"},
			{9 * time.Second, "Pending c:ContainerCreating:0:false", "Pending c:ContainerCreating:0:false", "Pending c:ContainerCreating:0:false"},
			{time.Second, "Running c:running:0:false", "Running c:running:0:false", "Running c:running:0:false"},
			{2 * time.Second, "Running c:running:0:false", "Running c:running:0:false", "Succeeded c:exit 0:0:false"},
			{3 * time.Second, "Running c:running:0:true", "Running c:running:0:true", "Succeeded c:exit 0:0:false"},
			{24 * time.Second, "Running c:running:0:true", "Running c:running:0:true", "Succeeded c:exit 0:0:false"},
			{time.Second, "Running c:running:0:true", "Succeeded c:exit 0:0:false", "Succeeded c:exit 0:0:false"},
		} {
			pass(step.after)
			for name, want := range map[string]string{"server": step.server, "job": step.job, "own": step.own} {
				if got := sum(read(t, c, name)); got != want {
					t.Errorf("after another %s pod %s is %q, want %q", step.after, name, got, want)
				}
			}
		}
		// One that is deleted before it has begun never begins.
		create(t, c, pod("brief", nil))
		p := read(t, c, "brief")
		now, grace := metav1.Now(), int64(30)
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
		if status, _ := f.status(p, addressOf(0), "10.0.0.1", o.Phases); status.Phase == corev1.PodRunning {
			t.Errorf("a pod that is deleted before it begins is %+v", status)
		}
	})
}

// TestGuests: nodes that somebody else made are served while they have the label.
func TestGuests(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c kubernetes.Interface, f *fleet) {
		nodes := c.CoreV1().Nodes()
		guest := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "g", Labels: map[string]string{Guest: "true", "disk": "ssd"}}}
		guest.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("2")}
		if _, err := nodes.Create(t.Context(), guest, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "not-mine"}}
		if _, err := nodes.Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		n, err := nodes.Get(t.Context(), "g", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ready := false
		for _, x := range n.Status.Conditions {
			ready = ready || x.Type == corev1.NodeReady && x.Status == corev1.ConditionTrue
		}
		if !ready || n.Labels[Label] != "true" || n.Labels["disk"] != "ssd" || n.Status.Allocatable.Cpu().Value() != 2 ||
			n.Status.Allocatable.Pods().Value() != 110 {
			t.Errorf("the guest is %+v", n)
		}
		if _, err := c.CoordinationV1().Leases(leaseNamespace).Get(t.Context(), "g", metav1.GetOptions{}); err != nil {
			t.Errorf("lease of the guest: %v", err)
		}
		create(t, c, pod("p", func(p *corev1.Pod) { p.Spec.NodeName = "g" }))
		create(t, c, pod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "not-mine" }))
		if got := read(t, c, "p"); sum(got) != "Running c:running:0:true" || got.Status.PodIP != "198.18.0.2" {
			t.Errorf("a pod of the guest is %s, address %s", sum(got), got.Status.PodIP)
		}
		if got := read(t, c, "elsewhere"); got.Status.Phase != "" {
			t.Errorf("a pod of a node that is nobody's is %s", sum(got))
		}
		if err := nodes.Delete(t.Context(), "g", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if f.nodes.get("g") != nil {
			t.Error("a guest that is gone is still served")
		}
		create(t, c, pod("late", func(p *corev1.Pod) { p.Spec.NodeName = "g" }))
		if got := read(t, c, "late"); got.Status.Phase != "" {
			t.Errorf("a pod of a guest that is gone is %s", sum(got))
		}
		pass(time.Minute)
		// Deleted and made again, it comes again.
		if _, err := nodes.Create(t.Context(), guest, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := read(t, c, "late"); sum(got) != "Running c:running:0:true" {
			t.Errorf("after its node has come again the pod is %s", sum(got))
		}
	})
}
