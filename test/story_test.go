// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// firsts are what people do first with a cluster, and the tests that do the same, as PACKAGE TEST. Those of TestStory share one cluster.
var firsts = []struct {
	what string
	kept []string
}{
	{"the examples, with simulated nodes", []string{"test TestFirstHour", "test TestGuidesRun"}},
	{"the examples, with real containers", []string{"test TestContainers"}},
	{"a client in a pod", []string{"test TestPodsReachTheAPI"}},
	{"an operator in a pod", []string{"test TestStory/operator in a pod", "test TestOperator"}},
	{"an ingress controller", []string{"test/ingress TestSkipper", "test TestStory/ingress controller", "test/helm TestCharts/ingress-nginx"}},
	{"a Helm chart", []string{"test/helm TestCharts", "test/helm TestWorkshop"}},
	{"a StatefulSet with storage", []string{"test TestStory/StatefulSet with storage"}},
	{"a private registry", []string{"test TestStory/private registry by a mirror", "test TestNode/images"}},
	{"two nodes", []string{"test TestSeveralNodes", "test TestJoin"}},
	{"an upgrade", []string{"test TestReleases", "test TestNodeOfRelease", "test TestPackage", "test TestUpgrade"}},
	{"a backup", []string{"test TestStory/backup", "internal/apiserver TestBackup"}},
	{"an end", []string{"test TestStory/reset", "test TestPackage"}},
}

// TestFirstsAreKept: there is each test that the table names.
func TestFirstsAreKept(t *testing.T) {
	for _, f := range firsts {
		for _, kept := range f.kept {
			dir, name, _ := strings.Cut(kept, " ")
			name, part, _ := strings.Cut(name, "/")
			files, err := filepath.Glob(filepath.Join("..", dir, "*_test.go"))
			if err != nil || len(files) == 0 {
				t.Fatalf("%s: no tests in %s: %v", f.what, dir, err)
			}
			var all strings.Builder
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				all.Write(text)
			}
			if !regexp.MustCompile(`(?m)^func `+name+`\(`).MatchString(all.String()) || !strings.Contains(all.String(), `"`+part) {
				t.Errorf("%s: there is no test %s", f.what, kept)
			}
		}
	}
}

// TestStory does on one cluster, with the settings that make up has, what people do first with real containers.
func TestStory(t *testing.T) {
	if !alone(t) {
		return
	}
	n := startNodeWith(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, *realNode)
	}{
		{"operator in a pod", operatorInPod},
		{"ingress controller", throughIngress},
		{"StatefulSet with storage", statefulStorage},
		{"private registry by a mirror", mirroredRegistry},
		{"backup", backedUp},
		{"reset", resets},
	} {
		if !t.Run(part.name, func(t *testing.T) {
			part.run(t, n)
			n.deleteAll(t)
		}) {
			return
		}
	}
	n.stop()
}

// apply applies a manifest.
func (n *realNode) apply(t *testing.T, manifest string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifest.yaml")
	n.write(t, file, strings.ReplaceAll(manifest, "IMAGE", "mortise.local/busybox:1"))
	n.kubectl("apply", "-f", file)
}

const databaseManifest = `
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: IMAGE
        command: [sh, -c, "[ -e /data/name ] || hostname > /data/name; echo started >> /data/starts; trap 'exit 0' TERM; sleep 3600 & wait"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Mi}}}
`

// statefulStorage has a StatefulSet whose pods have claims of the default StorageClass: a pod that is made again, or that was scaled away,
// finds the data of its name.
func statefulStorage(t *testing.T, n *realNode) {
	n.apply(t, databaseManifest)
	n.kubectl("rollout", "status", "statefulset/db", "--timeout=100s")
	find := func(pod string, starts int) {
		t.Helper()
		n.kubectl("rollout", "status", "statefulset/db", "--timeout=100s")
		if got, want := n.inside(t, pod, "cat /data/name; wc -l </data/starts"), fmt.Sprintf("%s\n%d\n", pod, starts); got != want {
			t.Errorf("the data of %s are %q, want %q", pod, got, want)
		}
	}
	find("db-0", 1)
	find("db-1", 1)
	if out := n.inside(t, "db-0", "nslookup -type=a db-1.db."+zone); !strings.Contains(out, n.ready(t, "db-1").Status.PodIP) {
		t.Errorf("a pod is not found by its name: %s", out)
	}
	n.kubectl("delete", "pod", "db-1", "--timeout=60s")
	find("db-1", 2)
	n.kubectl("scale", "statefulset/db", "--replicas=1")
	n.kubectl("wait", "pod/db-1", "--for=delete", "--timeout=60s")
	n.kubectl("scale", "statefulset/db", "--replicas=2")
	find("db-1", 3)
	find("db-0", 1)
	n.kubectl("delete", "statefulset/db", "--cascade=foreground", "--timeout=60s")
	n.kubectl("delete", "pvc", "--all", "--timeout=60s")
	n.kubectl("wait", "pv", "--all", "--for=delete", "--timeout=60s")
}

// mirroredRegistry pulls an image of a private registry from its mirror, which the machine's administrator has set up, with the credentials
// of the registry.
func mirroredRegistry(t *testing.T, n *realNode) {
	const registry = "registry.example.com"
	dir := filepath.Join(n.dir, "containerd", "certs.d", registry)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	n.write(t, filepath.Join(dir, "hosts.toml"), fmt.Sprintf("[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", privateRegistry(t)))
	image := registry + "/private/tool:1"
	t.Cleanup(func() {
		if out, err := exec.Command("ctr", "-a", n.socket, "-n", "k8s.io", "images", "rm", image).CombinedOutput(); err != nil {
			t.Errorf("remove image: %v\n%s", err, out)
		}
	})
	n.kubectl("create", "secret", "docker-registry", "private", "--docker-server", registry, "--docker-username", "robot",
		"--docker-password", "secret")
	pod := idlePod("tool")
	pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = image, corev1.PullAlways
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "private"}}
	n.create(t, pod)
	n.ready(t, "tool")
	n.hasEvent(t, "tool", "Pulled", `Successfully pulled image "`+image+`"`)
}

const backupManifest = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: blue}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: lost}
spec:
  selector: {matchLabels: {app: lost}}
  template:
    metadata: {labels: {app: lost}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: c, image: IMAGE, command: [sh, -c, "trap 'exit 0' TERM; sleep 3600 & wait"]}
`

// backedUp backs up the store of a running server, loses objects, and restores them in the same data directory. A pod that ran all the time
// goes on.
func backedUp(t *testing.T, n *realNode) {
	n.apply(t, backupManifest)
	n.create(t, idlePod("kept"))
	n.kubectl("rollout", "status", "deployment/lost", "--timeout=100s")
	kept := n.ready(t, "kept")
	file := filepath.Join(t.TempDir(), "cluster.backup")
	if out, err := n.mortise("store", "backup", file, "--kubeconfig", n.kubeconfig); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.kubectl("delete", "deployment", "lost", "--cascade=foreground", "--timeout=60s")
	n.kubectl("patch", "configmap", "settings", "--type=merge", "-p", `{"data":{"color":"green"}}`)
	n.create(t, idlePod("later"))
	n.ready(t, "later")
	n.stop()

	try(t, os.Rename(filepath.Join(n.dir, "store"), filepath.Join(n.dir, "store.lost")))
	if out, err := n.mortise("store", "restore", file, "--data-dir", n.dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n.up(t)
	n.kubectl("rollout", "status", "deployment/lost", "--timeout=100s")
	n.kubectl("wait", "pod", "-l", "app=lost", "--for=condition=Ready", "--timeout=100s")
	same(t, kept, n.ready(t, "kept"))
	settings, err := n.c.CoreV1().ConfigMaps("default").Get(t.Context(), "settings", metav1.GetOptions{})
	if err != nil || settings.Data["color"] != "blue" {
		t.Errorf("restored %v: %v", settings.Data, err)
	}
	// What was made after the backup is nobody's: its containers end.
	if _, err := n.c.CoreV1().Pods("default").Get(t.Context(), "later", metav1.GetOptions{}); err == nil {
		t.Error("the backup has a pod that was made after it")
	}
	n.kubectl("delete", "deployment/lost", "configmap/settings", "--cascade=foreground", "--timeout=60s")
}

// resets removes what the node has made on the machine while a pod runs: nothing of it is left but the objects, and the next start makes
// the pod again.
func resets(t *testing.T, n *realNode) {
	n.create(t, idlePod("left"))
	before := n.ready(t, "left")
	n.stop()
	out, err := n.mortise("reset", "--yes", "--data-dir", n.dir)
	if err != nil || !strings.Contains(out, "removed network rules and interfaces") || !strings.Contains(out, "_left_"+string(before.UID)) {
		t.Errorf("reset: %v\n%s", err, out)
	}
	links, err := netlink.LinkList()
	try(t, err)
	for _, l := range links {
		if name := l.Attrs().Name; name != "lo" && name != "client" { // the cable to the client outside
			t.Errorf("interface %s is left", name)
		}
	}
	if rules, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").CombinedOutput(); err != nil || len(rules) > 0 {
		t.Errorf("of the packet filter is left: %v\n%s", err, rules)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/comm")
	try(t, err)
	for _, file := range processes {
		if name, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(name), "containerd") {
			t.Errorf("the process %s is left: %s", filepath.Dir(file), name)
		}
	}
	for _, dir := range []string{"/var/log/pods", "/var/lib/cni/networks", filepath.Join(n.dir, "kubelet", "pods")} {
		if left, err := os.ReadDir(dir); err == nil && len(left) > 0 {
			t.Errorf("%s has %v", dir, left)
		}
	}
	n.mountSmall(t) // the reset has unmounted it, and how full the machine's disk is must not decide
	n.prepare(t)
	n.up(t)
	n.pod(t, "left", func(p *corev1.Pod) bool {
		return ready(*p) && p.UID == before.UID && p.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID
	})
}
