// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
	"github.com/mortise-dev/mortise/internal/machine"
	"github.com/mortise-dev/mortise/internal/machine/images"
)

// patience is how long anything may take on a machine that is slow and busy.
const patience = 2 * time.Minute

// nodeAddress is the node's, on the cable to the client outside.
const nodeAddress = "192.168.50.1"

// realNode is a cluster of one real node, alone in its namespaces.
type realNode struct {
	*program
	t       *testing.T
	path    string // of the binary
	c       kubernetes.Interface
	dir     string // of data
	socket  string // of the runtime
	config  string // file of its KubeletConfiguration
	args    []string
	outside *netlab.Host
	host    *host           // that it is on; nil: this one
	pods    map[string]bool // UIDs of all that there ever were
}

// TestNode has one node, with containers of its own containerd, through everything that users, networks and machines do to it. After
// each part nothing may be left of it.
func TestNode(t *testing.T) {
	if !alone(t) {
		return
	}
	n := startNode(t)
	// The first pod makes what stays: the bridge, the network's chains.
	first := webPod("first", nil)
	first.Spec.Containers[0].Ports[0].HostPort = 18080
	n.create(t, first)
	n.ready(t, "first")
	n.deleteAll(t)
	before := n.census(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, *realNode)
	}{
		{"services", services},
		{"resizes", resizes},
		{"declared features", declared},
		{"admission", admits},
		{"lives", lives},
		{"volumes", volumes},
		{"figures", figured},
		{"bandwidth", held},
		{"images", pulls},
		{"projected", projected},
		{"kills", kills},
		{"hostile pods", hostilePods},
		{"failures", failures},
		{"doctor", doctor},
	} {
		if !t.Run(part.name, func(t *testing.T) {
			part.run(t, n)
			n.deleteAll(t)
			n.leavesNothing(t, before)
		}) {
			return
		}
	}
	n.stop()
}

// startNode starts containerd and a server with its node, whose own files are on a small file system. The server listens where machines
// of the network reach it.
func startNode(t *testing.T) *realNode {
	t.Helper()
	return startNodeWith(t, "--listen", nodeAddress+":0")
}

// startNodeWith is startNode with flags in place of that address.
func startNodeWith(t *testing.T, flags ...string) *realNode {
	t.Helper()
	return startNodeFrom(t, built(t), flags...)
}

// startNodeFrom is startNodeWith for another binary than the one that the tests build.
func startNodeFrom(t *testing.T, path string, flags ...string) *realNode {
	t.Helper()
	n := &realNode{t: t, path: path, dir: filepath.Join(t.TempDir(), "data"), outside: netlab.Outside(t), pods: map[string]bool{}}
	// A data directory is Mortise's before others put something there.
	upFrom(t, path, n.dir, "--node", "none").stop()
	n.mountSmall(t)
	n.prepare(t)
	t.Cleanup(func() {
		if err := machine.Destroy(context.Background(), n.dir); err != nil {
			t.Error(err)
		}
		n.host.removeCgroups(t)
	})
	n.args = append([]string{"--node", "cri", "--cri-socket", n.socket}, flags...)
	if path == built(t) { // the release before may not have it
		n.args = append(n.args, "--no-kubelet-links")
	}
	n.config = filepath.Join(filepath.Dir(n.dir), "kubelet.yaml")
	n.write(t, n.config, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupRoot: `+n.host.cgroups()+`
evictionHard: {nodefs.available: "25%"}
imageGCHighThresholdPercent: 100
evictionPressureTransitionPeriod: 1s
shutdownGracePeriod: 0s
`)
	n.args = append(n.args, "--kubelet-config", n.config)
	n.up(t)
	return n
}

// up starts the server, and waits until it has a node that is ready.
func (n *realNode) up(t *testing.T) {
	t.Helper()
	n.program = upFrom(n.t, n.path, n.dir, n.args...)
	n.c = n.client()
	awaitEvent(t, n.c, "nodes", "", fields.Everything(), &corev1.Node{}, patience, func(e watch.Event) bool {
		node, ok := e.Object.(*corev1.Node)
		return ok && len(node.Spec.Taints) == 0 && conditionOf(node, corev1.NodeReady) == corev1.ConditionTrue
	})
}

func conditionOf(node *corev1.Node, kind corev1.NodeConditionType) corev1.ConditionStatus {
	for _, c := range node.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

// prepare starts containerd where none runs, and loads images that it does not have.
func (n *realNode) prepare(t *testing.T) {
	t.Helper()
	socket, err := machine.Prepare(t.Context(), machine.Options{DataDir: n.dir, Private: true, NoInstall: true, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	n.socket = socket
}

func (n *realNode) write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// container is the usual one: a shell that runs the script, and ends when it is asked to.
func container(name, script string) corev1.Container {
	return corev1.Container{
		Name: name, Image: images.Busybox, ImagePullPolicy: corev1.PullNever,
		Command: []string{"sh", "-c", "trap 'exit 0' TERM\n(" + script + ") & wait $!"},
	}
}

// idlePod waits until it is deleted.
func idlePod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{container("c", "while :; do sleep 3600; done")},
			TerminationGracePeriodSeconds: new(int64(1)),
		},
	}
}

// webPod says at /cgi-bin/who, on port 8080, what its name is and whom it sees.
func webPod(name string, labels map[string]string) *corev1.Pod {
	p := idlePod(name)
	p.Labels = labels
	p.Spec.Containers[0] = container("c", `
		mkdir -p /www/cgi-bin
		printf '#!/bin/sh\nprintf "Content-Type: text/plain\\n\\n"\necho $(hostname) $REMOTE_ADDR\n' > /www/cgi-bin/who
		chmod +x /www/cgi-bin/who
		exec httpd -f -p 8080 -h /www`)
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
	p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}},
		PeriodSeconds: 1, FailureThreshold: 30,
	}
	return p
}

// create makes objects.
func (n *realNode) create(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		if _, err := n.c.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func (n *realNode) createService(t *testing.T, name string, spec corev1.ServiceSpec) *corev1.Service {
	t.Helper()
	made, err := n.c.CoreV1().Services("default").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// pod waits until a pod is as wanted.
func (n *realNode) pod(t *testing.T, name string, is func(*corev1.Pod) bool) (pod *corev1.Pod) {
	t.Helper()
	awaitEvent(t, n.c, "pods", "default", fields.OneTermEqualSelector("metadata.name", name), &corev1.Pod{}, patience,
		func(e watch.Event) bool {
			var ok bool
			pod, ok = e.Object.(*corev1.Pod)
			return ok && e.Type != watch.Deleted && is(pod)
		})
	return pod
}

func (n *realNode) ready(t *testing.T, names ...string) (last *corev1.Pod) {
	t.Helper()
	for _, name := range names {
		last = n.pod(t, name, func(p *corev1.Pod) bool { return ready(*p) })
	}
	return last
}

// hasEvent waits until a pod has an event of the reason whose message contains the words.
func (n *realNode) hasEvent(t *testing.T, pod, reason, words string) string {
	t.Helper()
	message := ""
	awaitEvent(t, n.c, "events", "default", fields.SelectorFromSet(fields.Set{"involvedObject.name": pod, "reason": reason}), &corev1.Event{},
		patience, func(e watch.Event) bool {
			event, ok := e.Object.(*corev1.Event)
			if ok {
				message = event.Message
			}
			return ok && strings.Contains(message, words)
		})
	return message
}

// inside runs a script in a pod's first container, and returns what it prints.
func (n *realNode) inside(t *testing.T, pod, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var errs bytes.Buffer
	c := n.kubectlCommand(ctx, "exec", pod, "--", "sh", "-c", script)
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		t.Fatalf("in pod %s: %s: %v\n%s%s", pod, script, err, out, errs.String())
	}
	return string(out)
}

// deleteAll deletes the Services and pods of the test, and waits until they are gone.
func (n *realNode) deleteAll(t *testing.T) {
	t.Helper()
	services, err := n.c.CoreV1().Services("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range services.Items {
		if s.Name == "kubernetes" {
			continue
		}
		if err := n.c.CoreV1().Services("default").Delete(t.Context(), s.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.c.CoreV1().Pods("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitPods(t, n.c, "", patience, func(pods []corev1.Pod) bool { return len(pods) == 0 })
}

// ctr runs containerd's own tool on the node's containerd.
func (n *realNode) ctr(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ctr", append([]string{"-a", n.socket, "-n", "k8s.io"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ctr %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// text is an object as people read it.
func text(o any) string {
	out, err := yaml.Marshal(o)
	if err != nil {
		return fmt.Sprintf("%+v", o)
	}
	return string(out)
}
