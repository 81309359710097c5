// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// TestContainers is the newcomer's first hour on a real node: real containers through containerd, pod addresses from CNI,
// and a Mortise that is killed while they run.
func TestContainers(t *testing.T) {
	if !alone(t) {
		return
	}
	netlab.Outside(t) // the network that the node has its address of
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "data")
	prepare := exec.Command(path, "machine", "prepare", "--data-dir", dir)
	said, err := prepare.CombinedOutput()
	if err != nil {
		t.Fatalf("machine prepare: %v\n%s", err, said)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(path, "machine", "destroy", "--data-dir", dir).CombinedOutput(); err != nil {
			t.Errorf("machine destroy: %v\n%s", err, out)
		}
	})
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	socket := lines[len(lines)-1]
	audited, log := auditEverything(t)
	// How full this machine's disk is must decide neither whether pods run nor which images are kept.
	config := filepath.Join(filepath.Dir(dir), "kubelet.yaml")
	text := `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard: {memory.available: "50Mi"}
imageGCHighThresholdPercent: 100
`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append(audited, "--node", "cri", "--cri-socket", socket, "--kubelet-config", config, "--no-kubelet-links")
	p := up(t, dir, args...)
	if !strings.HasSuffix(p.readyLine, "node: containerd") {
		t.Errorf("ready line %q", p.readyLine)
	}

	// The examples, and what one does with pods.
	p.kubectl("apply", "-f", "../examples/")
	c := p.client()
	awaitPods(t, c, "app=web", 60*time.Second, allReady(3))
	awaitPods(t, c, "tier=frontend", 60*time.Second, allReady(3))
	awaitPods(t, c, "role=myrole", 60*time.Second, allReady(1))
	pod, err := c.CoreV1().Pods("default").Get(t.Context(), "static-web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if page := fetch(t, "http://"+pod.Status.PodIP+"/"); page == "" {
		t.Error("the pod's address answers an empty page")
	}
	if out := p.kubectl("exec", "static-web", "--", "sh", "-c", "echo $KUBERNETES_SERVICE_PORT; hostname"); !strings.Contains(out,
		"static-web") || !strings.Contains(out, "443") {
		t.Errorf("exec says %q", out)
	}
	if out := p.kubectl("exec", "static-web", "--", "ls", "/var/run/secrets/kubernetes.io/serviceaccount"); !strings.Contains(out, "token") ||
		!strings.Contains(out, "ca.crt") {
		t.Errorf("the service account's volume holds %q", out)
	}
	if out, err := p.tryKubectl("exec", "static-web", "--", "sh", "-c", "exit 7"); err == nil || !strings.Contains(out, "exit code 7") {
		t.Errorf("exec of exit 7: %v %q", err, out)
	}
	p.kubectl("run", "talker", "--image=mortise.local/busybox:1", "--restart=Never", "--", "sh", "-c", "echo one; echo two")
	p.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/talker", "--timeout=60s")
	if out := p.kubectl("logs", "talker"); out != "one\ntwo\n" {
		t.Errorf("logs say %q", out)
	}
	if out := p.kubectl("logs", "talker", "--tail=1"); out != "two\n" {
		t.Errorf("logs --tail=1 say %q", out)
	}
	if out := p.kubectl("describe", "pod", "static-web"); !strings.Contains(out, "Started") || !strings.Contains(out, "containerd://") {
		t.Errorf("describe says %q", out)
	}
	t.Run("port-forward", func(t *testing.T) { portForward(t, p) })
	for point, how := range counts {
		if how == onNodes && !countsCalls(ledgerRows(t, c), point) {
			t.Errorf("the ledger counts no calls of %s", point)
		}
	}

	// A process that is killed comes back in the same pod.
	killContainer(t, p, pod)
	awaitEvent(t, c, "pods", "default", fields.OneTermEqualSelector("metadata.name", "static-web"), &corev1.Pod{}, time.Minute,
		func(e watch.Event) bool {
			now, ok := e.Object.(*corev1.Pod)
			return ok && ready(*now) && now.UID == pod.UID && now.Status.ContainerStatuses[0].RestartCount == 1
		})

	// A pod that is deleted is replaced, and a new image rolls over without fewer than two ready.
	pods, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	p.kubectl("delete", "pod", pods.Items[0].Name)
	awaitPods(t, c, "app=web", 60*time.Second, allReady(3))
	fewest := make(chan int, 1)
	rolled := make(chan struct{})
	go func() { fewest <- fewestReady(t, p, rolled) }()
	p.kubectl("set", "image", "deployment/web", "web=mortise.local/web:2")
	p.kubectl("rollout", "status", "deployment/web", "--timeout=100s")
	close(rolled)
	if n := <-fewest; n < 2 {
		t.Errorf("while the image rolled over only %d pods were ready", n)
	}

	// Killed and started again: the same objects, the same containers, not restarted.
	awaitPods(t, c, "app=web", 60*time.Second, allReady(3))
	before := running(t, p)
	p.kill()
	p = up(t, dir, args...)
	awaitPods(t, p.client(), "app=web", 60*time.Second, allReady(3))
	after := running(t, p)
	for name, was := range before {
		if after[name] != was {
			t.Errorf("%s was %s before mortise was killed, is %s", name, was, after[name])
		}
	}
	p.kubectl("delete", "-f", "../examples/", "--timeout=90s")
	p.kubectl("delete", "pod", "talker", "--timeout=60s")
	p.stop()
	checkComponents(t, log)
}

// running says for each pod of the Deployment and the ReplicaSet which container runs in it, since when, and how often it
// was restarted.
func running(t *testing.T, p *program) map[string]string {
	t.Helper()
	pods, err := p.client().CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "pod-template-hash"})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, pod := range pods.Items {
		s := pod.Status.ContainerStatuses[0]
		if s.State.Running == nil {
			t.Fatalf("%s is not running: %+v", pod.Name, s.State)
		}
		out[pod.Name] = fmt.Sprintf("%s %s %s %d", pod.UID, s.ContainerID, s.State.Running.StartedAt, s.RestartCount)
	}
	return out
}

// fewestReady watches the Deployment until done and returns the smallest number of ready replicas that it showed.
func fewestReady(t *testing.T, p *program, done <-chan struct{}) int {
	w, err := p.client().AppsV1().Deployments("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=web"})
	if err != nil {
		t.Errorf("watch deployment: %v", err)
		return 0
	}
	defer w.Stop()
	fewest := 99
	for {
		select {
		case <-done:
			return fewest
		case e, ok := <-w.ResultChan():
			if !ok {
				return fewest
			}
			pods, err := p.client().CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil {
				t.Errorf("list pods at %s: %v", e.Type, err)
				return 0
			}
			n := 0
			for _, pod := range pods.Items {
				if ready(pod) {
					n++
				}
			}
			fewest = min(fewest, n)
		}
	}
}

// killContainer sends SIGKILL to the first process of the pod's container, found by its cgroup.
func killContainer(t *testing.T, p *program, pod *corev1.Pod) {
	t.Helper()
	fresh, err := p.client().CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimPrefix(fresh.Status.ContainerStatuses[0].ContainerID, "containerd://")
	processes, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range processes {
		text, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(text), id) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			t.Fatal(err)
		}
		process, err := os.FindProcess(pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := process.Kill(); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no process is in a cgroup of container %s", id)
}

// portForward forwards a free local port to static-web's port 80 and fetches its page.
func portForward(t *testing.T, p *program) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), path, "kubectl", "--kubeconfig", p.kubeconfig, "port-forward", "--address", "127.0.0.1",
		"pod/static-web", ":80")
	c.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.Process.Kill()
		c.Wait()
	}()
	line := make([]byte, 200)
	n, err := out.Read(line)
	if err != nil {
		t.Fatalf("read what port-forward says: %v", err)
	}
	said := string(line[:n])
	rest, ok := strings.CutPrefix(said, "Forwarding from ")
	address, _, found := strings.Cut(rest, " ")
	if !ok || !found {
		t.Fatalf("port-forward says %q", said)
	}
	if page := fetch(t, "http://"+address+"/"); page == "" {
		t.Error("the forwarded port answers an empty page")
	}
}

// fetch reads a page.
func fetch(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Timeout: 20 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	page, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: status %d, %v", url, response.StatusCode, err)
	}
	return string(page)
}
