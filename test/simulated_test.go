// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// TestFirstHour does with a simulated node what a newcomer does with a real one: the examples, and kubectl's first verbs.
func TestFirstHour(t *testing.T) {
	p := up(t, t.TempDir(), "--node", "simulated")
	if !regexp.MustCompile(`^mortise: ready in \d+ ms, https://127\.0\.0\.1:\d+, kubeconfig \S+, node: simulated`).MatchString(p.readyLine) {
		t.Errorf("ready line %q", p.readyLine)
	}
	if info, err := os.Stat(p.kubeconfig); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig: %v %v, want mode 0600", info, err)
	}
	for _, line := range strings.Split(strings.TrimSpace(p.kubectl("apply", "-f", "../examples/")), "\n") {
		if !strings.HasSuffix(line, " created") {
			t.Errorf("apply says %q", line)
		}
	}
	if out := p.kubectl("apply", "-f", "../examples/crontab/"); out != "crontab.stable.example.com/my-new-cron-object created\n" {
		t.Errorf("apply of a custom resource says %q", out)
	}
	c := p.client()
	awaitPods(t, c, "app=web", 20*time.Second, allReady(3))
	awaitPods(t, c, "tier=frontend", 20*time.Second, allReady(3))
	awaitPods(t, c, "role=myrole", 20*time.Second, allReady(1))

	// What a Deployment counts, and events, are written after the pods are ready.
	if out := p.kubectl("rollout", "status", "deployment/web"); !strings.Contains(out, "successfully rolled out") {
		t.Errorf("rollout status says %q", out)
	}
	scheduled := fields.Set{"involvedObject.name": "static-web", "reason": "Scheduled"}.AsSelector()
	awaitEvent(t, c, "events", "default", scheduled, &corev1.Event{}, 20*time.Second,
		func(e watch.Event) bool { return e.Type != watch.Deleted })

	nodes, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: "mortise.dev/simulated=true"})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatalf("simulated nodes: %v, %v; want one", nodes, err)
	}
	for _, check := range []struct{ args, want string }{
		{"get ct", "my-new-cron-object"},
		{"get ct -o yaml", "image: my-awesome-cron-image"},
		{"explain crontab.spec", "The schedule, in cron's five fields."},
		{"explain pod.spec.containers", "List of containers belonging to the pod."},
		{"get deployment web", "3/3"},
		{"get pods -o wide", "Running"},
		{"describe pod static-web", "Successfully assigned default/static-web"},
		{"get endpointslices -l kubernetes.io/service-name=web", "80"},
		{"get all", "deployment.apps/web"},
		{"api-resources", "crontabs"},
		{"auth can-i create pods", "yes"},
		{"get events", "Scheduled"},
		{"get --raw /readyz", "ok"},
		{"cluster-info", "is running at"},
		{"apply -f ../examples/", "unchanged"},
	} {
		if out, err := p.tryKubectl(strings.Fields(check.args)...); err != nil || !strings.Contains(out, check.want) {
			t.Errorf("kubectl %s: want %q: %v\n%s", check.args, check.want, err, out)
		}
	}

	// A pod of the Deployment is replaced.
	pods, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	gone := pods.Items[0].Name
	p.kubectl("delete", "pod", gone)
	awaitPods(t, c, "app=web", 20*time.Second, func(pods []corev1.Pod) bool {
		for _, p := range pods {
			if p.Name == gone {
				return false
			}
		}
		return allReady(3)(pods)
	})

	p.kubectl("set", "image", "deployment/web", "web=mortise.local/web:2")
	if out := p.kubectl("rollout", "status", "deployment/web"); !strings.Contains(out, "successfully rolled out") {
		t.Errorf("rollout status says %q", out)
	}
	p.kubectl("rollout", "undo", "deployment/web")
	p.kubectl("rollout", "status", "deployment/web")
	p.kubectl("scale", "deployment/web", "--replicas=1")
	awaitPods(t, c, "app=web", 20*time.Second, allReady(1))

	// A finalizer-free namespace goes with all that is in it.
	p.kubectl("create", "namespace", "short")
	p.kubectl("-n", "short", "create", "configmap", "x", "--from-literal=a=b")
	p.kubectl("delete", "namespace", "short")
	if out, err := p.tryKubectl("-n", "short", "get", "configmap", "x"); err == nil {
		t.Errorf("configmap outlived its namespace: %s", out)
	}
	p.kubectl("delete", "-f", "../examples/")
	p.stop()
}

// allReady reports whether there are n pods and all are ready.
func allReady(n int) func([]corev1.Pod) bool {
	return func(pods []corev1.Pod) bool {
		for _, p := range pods {
			if !ready(p) {
				return false
			}
		}
		return len(pods) == n
	}
}

// TestKillAndComeBack ends the process as a power cut would, and wants all that was acknowledged back at the same
// resourceVersions, and a watch from before to go on.
func TestKillAndComeBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	p := up(t, dir, "--node", "none", "--controllers", "none")
	before := map[string]string{}
	create := p.client().CoreV1().ConfigMaps("default").Create
	var middle string
	for i := range 100 {
		makeConfigMap(t, create, i)
		if i == 49 {
			list, err := p.client().CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			middle = list.ResourceVersion
		}
	}
	list, err := p.client().CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Items {
		before[m.Name] = m.ResourceVersion + " " + string(m.UID)
	}
	p.kill()

	p = up(t, dir, "--node", "none", "--controllers", "none")
	list, err = p.client().CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != len(before) {
		t.Errorf("%d objects after the kill, want %d", len(list.Items), len(before))
	}
	for _, m := range list.Items {
		if got := m.ResourceVersion + " " + string(m.UID); got != before[m.Name] {
			t.Errorf("%s is %s, was %s", m.Name, got, before[m.Name])
		}
	}
	w, err := p.client().CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: middle})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	late := time.After(20 * time.Second)
	for i := 50; i < 100; i++ {
		select {
		case e := <-w.ResultChan():
			m, ok := e.Object.(*corev1.ConfigMap)
			if !ok || m.Data["i"] == "" || before[m.Name] == "" {
				t.Fatalf("event %d of the resumed watch: %#v", i, e)
			}
		case <-late:
			t.Fatalf("the watch from before the kill has delivered %d events of 50", i-50)
		}
	}
	p.stop()
}
