// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// inBubble runs nodes on a fake clock while body acts, and wants them to stop cleanly.
func inBubble(t *testing.T, o Options, body func(t *testing.T, c kubernetes.Interface, f *fleet)) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.NewClientset()
		if o.Client == nil {
			o.Client = c
		}
		f, err := newFleet(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.run(ctx) }()
		synctest.Wait()
		body(t, o.Client, f)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// pass lets time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func pod(name string, change func(p *corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{NodeName: "simulated-0", RestartPolicy: corev1.RestartPolicyAlways,
			Containers: []corev1.Container{{Name: "c", Image: "i:1"}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

func create(t *testing.T, c kubernetes.Interface, p *corev1.Pod) {
	t.Helper()
	if _, err := c.CoreV1().Pods(p.Namespace).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

func read(t *testing.T, c kubernetes.Interface, name string) *corev1.Pod {
	t.Helper()
	p, err := c.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sum is a pod's status in one line.
func sum(p *corev1.Pod) string {
	parts := []string{string(p.Status.Phase)}
	if p.Status.Reason != "" {
		parts = append(parts, p.Status.Reason)
	}
	for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		state := "?"
		switch {
		case s.State.Running != nil:
			state = "running"
		case s.State.Terminated != nil:
			state = fmt.Sprintf("exit %d", s.State.Terminated.ExitCode)
		case s.State.Waiting != nil:
			state = s.State.Waiting.Reason
		}
		parts = append(parts, fmt.Sprintf("%s:%s:%d:%t", s.Name, state, s.RestartCount, s.Ready))
	}
	return strings.Join(parts, " ")
}

func TestNodes(t *testing.T) {
	inBubble(t, Options{Nodes: 3, NamePrefix: "n"}, func(t *testing.T, c kubernetes.Interface, f *fleet) {
		nodes, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: Label + "=true"})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range nodes.Items {
			got = append(got, n.Name+" "+n.Spec.PodCIDR+" "+n.Status.NodeInfo.ContainerRuntimeVersion[:12])
		}
		want := []string{"n-0 10.244.0.0/24 simulated://", "n-1 10.244.1.0/24 simulated://", "n-2 10.244.2.0/24 simulated://"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		renewed := func() time.Time {
			l, err := c.CoordinationV1().Leases(leaseNamespace).Get(t.Context(), "n-1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return l.Spec.RenewTime.Time
		}
		first := renewed()
		pass(20 * time.Second)
		if d := renewed().Sub(first); d < 10*time.Second {
			t.Errorf("lease renewed %v after registration, want 10 s at least", d)
		}
		pass(6 * time.Minute)
		n, err := c.CoreV1().Nodes().Get(t.Context(), "n-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !n.Status.Conditions[3].LastHeartbeatTime.After(first) {
			t.Error("conditions are not reported")
		}
	})
}

func TestNodeComesBack(t *testing.T) {
	c := fake.NewClientset()
	old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "simulated-0", Labels: map[string]string{"mine": "yes"}},
		Spec: corev1.NodeSpec{PodCIDR: "10.9.9.0/24", Unschedulable: true},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: "KernelDeadlock", Status: corev1.ConditionFalse},
				{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"}},
		}}
	if _, err := c.CoreV1().Nodes().Create(t.Context(), old, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	had := pod("had", func(p *corev1.Pod) {
		p.UID, p.Status.PodIP = "uid-had", "10.9.9.2"
		now := metav1.Now()
		p.Status.StartTime = &now
	})
	if _, err := c.CoreV1().Pods("default").Create(t.Context(), had, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	inBubble(t, Options{Client: c}, func(t *testing.T, c kubernetes.Interface, f *fleet) {
		n, err := c.CoreV1().Nodes().Get(t.Context(), "simulated-0", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if n.Labels["mine"] != "yes" || n.Labels[Label] != "true" || !n.Spec.Unschedulable || len(n.Status.Conditions) != 5 {
			t.Errorf("node %+v", n)
		}
		want := []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "127.128.0.1"}, {Type: corev1.NodeHostName, Address: "simulated-0"},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
		}
		if diff := cmp.Diff(want, n.Status.Addresses); diff != "" {
			t.Error(diff)
		}
		create(t, c, pod("p", nil))
		if ip := read(t, c, "p").Status.PodIP; ip != "10.9.9.3" {
			t.Errorf("new pod has %s, want 10.9.9.3", ip)
		}
		if ip := read(t, c, "had").Status.PodIP; ip != "10.9.9.2" {
			t.Errorf("old pod has %s now, had 10.9.9.2", ip)
		}
	})
}

func TestPodRuns(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c kubernetes.Interface, f *fleet) {
		create(t, c, pod("p", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "i"}}
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{}
		}))
		p := read(t, c, "p")
		if got, want := sum(p), "Running first:exit 0:0:true c:running:0:true"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if p.Status.PodIP != "10.244.0.2" || p.Status.HostIP != "127.128.0.1" ||
			!strings.HasPrefix(p.Status.ContainerStatuses[0].ContainerID, "simulated://") {
			t.Errorf("status %+v", p.Status)
		}
		for _, cond := range p.Status.Conditions {
			if cond.Status != corev1.ConditionTrue {
				t.Errorf("condition %+v", cond)
			}
		}
		// A pod of another node is not ours.
		create(t, c, pod("other", func(p *corev1.Pod) { p.UID, p.Spec.NodeName = "o", "elsewhere" }))
		if got := sum(read(t, c, "other")); got != "" {
			t.Errorf("pod of another node: %s", got)
		}
		p.Spec.Containers[0].Image = "i:2"
		if _, err := c.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got, want := sum(read(t, c, "p")), "Running first:exit 0:0:true c:running:1:true"; got != want {
			t.Errorf("after a change of image: %s, want %s", got, want)
		}
		now := metav1.Now()
		p = read(t, c, "p")
		p.DeletionTimestamp = &now
		if _, err := c.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := c.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{}); err == nil {
			t.Error("deleted pod is still there")
		}
		if n := len(f.nodes.get("simulated-0").pool.used); n != 0 {
			t.Errorf("%d addresses are not given back", n)
		}
	})
}

func job(p *corev1.Pod) {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "j", Controller: &yes}}
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
}

func TestPodEnds(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(p *corev1.Pod)
		at     map[time.Duration]string
	}{
		{"job", job, map[time.Duration]string{0: "Running c:running:0:true", 2 * time.Second: "Succeeded c:exit 0:0:false"}},
		{"bare", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever },
			map[time.Duration]string{2 * time.Minute: "Running c:running:0:true"}},
		{"always", func(p *corev1.Pod) { p.Annotations = map[string]string{AnnotationRunFor: "1s"} },
			map[time.Duration]string{2 * time.Minute: "Running c:running:0:true"}},
		{"annotated", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Annotations = map[string]string{AnnotationRunFor: "1m", AnnotationExitCode: "3"}
		}, map[time.Duration]string{30 * time.Second: "Running c:running:0:true", 61 * time.Second: "Failed c:exit 3:0:false"}},
		{"on failure", func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
			p.Annotations = map[string]string{AnnotationRunFor: "10s", AnnotationExitCode: "1"}
		}, map[time.Duration]string{10500 * time.Millisecond: "Running c:exit 1:0:false", 12 * time.Second: "Running c:running:1:true"}},
		{"deadline", func(p *corev1.Pod) {
			five := int64(5)
			p.Spec.ActiveDeadlineSeconds = &five
		}, map[time.Duration]string{4 * time.Second: "Running c:running:0:true", 6 * time.Second: "Failed DeadlineExceeded c:exit 137:0:false"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for at, want := range c.at {
				inBubble(t, Options{}, func(t *testing.T, client kubernetes.Interface, f *fleet) {
					create(t, client, pod("p", c.change))
					pass(at)
					if got := sum(read(t, client, "p")); got != want {
						t.Errorf("after %v: %s, want %s", at, got, want)
					}
				})
			}
		})
	}
}

// TestPodLeftByACrash: a pod whose grace is over and that is still there, since the server ended before it was taken away, is
// deleted by its node, whether it ran or not; one that finalizers hold is left to them, and one that was marked just now to whoever did.
func TestPodLeftByACrash(t *testing.T) {
	marked := func(ago time.Duration, finalizers ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			at, zero := metav1.NewTime(time.Now().Add(-ago)), int64(0)
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds, p.Finalizers = &at, &zero, finalizers
		}
	}
	ran := func(p *corev1.Pod) {
		marked(time.Hour)(p)
		start := metav1.NewTime(time.Now().Add(-2 * time.Hour))
		p.Status.StartTime = &start
	}
	inBubble(t, Options{}, func(t *testing.T, c kubernetes.Interface, _ *fleet) {
		create(t, c, pod("waited", marked(time.Hour)))
		create(t, c, pod("ran", ran))
		create(t, c, pod("held", marked(time.Hour, "example.com/keep")))
		create(t, c, pod("fresh", marked(0)))
		names := func() string {
			pods, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var out []string
			for _, p := range pods.Items {
				out = append(out, p.Name)
			}
			return strings.Join(out, " ")
		}
		if got := names(); got != "fresh held" {
			t.Errorf("pods %s are left at first", got)
		}
		pass(3 * time.Second)
		if got := names(); got != "held" {
			t.Errorf("pods %s are left", got)
		}
	})
}

func TestLogs(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, c kubernetes.Interface, f *fleet) {
		create(t, c, pod("p", job))
		v := view{f, f.nodes.get("simulated-0")}
		if len(v.Pods()) != 1 || v.Pod("default", "nosuch") != nil {
			t.Error("wrong pods")
		}
		target := podspec.Target{Namespace: "default", Pod: "p", Container: "c"}
		var b bytes.Buffer
		ended := make(chan error, 1)
		go func() {
			ended <- v.ContainerLogs(t.Context(), target, &corev1.PodLogOptions{Follow: true, Timestamps: true}, &b, nil)
		}()
		pass(2 * time.Second) // the Job's pod ends, and so does its log
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if want := "2000-01-01T00:00:00Z c: simulated container of pod default/p on node simulated-0: it has no process\n"; b.String() != want {
			t.Errorf("log %q, want %q", &b, want)
		}
		if err := v.ContainerLogs(t.Context(), target, &corev1.PodLogOptions{Previous: true}, &b, nil); err == nil ||
			err.Error() != `previous terminated container "c" in pod "p" not found` {
			t.Errorf("previous: %v", err)
		}
		if _, err := v.Exec(t.Context(), target, nil, podspec.Streams{}); err == nil {
			t.Error("exec in a simulated pod")
		}
	})
}

func TestManyNodes(t *testing.T) {
	const nodes, pods = 100, 200
	inBubble(t, Options{Nodes: nodes}, func(t *testing.T, c kubernetes.Interface, f *fleet) {
		for i := range pods {
			create(t, c, pod(fmt.Sprint("p", i), func(p *corev1.Pod) { p.Spec.NodeName = fmt.Sprint("simulated-", i%nodes) }))
		}
		list, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		running := 0
		for i := range list.Items {
			if list.Items[i].Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if running != pods {
			t.Errorf("%d pods run, want %d", running, pods)
		}
	})
}
