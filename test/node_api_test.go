// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestPodsReachTheAPI: on a cluster that is started with its defaults, which listens on loopback, a client in a pod reaches the API server
// by the cluster IP and by name, with what client-go reads of its service account, and the API of its node. So does a pod of the host's
// network. A neighbour on the machine's network does not reach the API server, although it has a route to the address.
func TestPodsReachTheAPI(t *testing.T) {
	if !alone(t) {
		return
	}
	n := startNodeWith(t)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "pods-are-administrators"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "default"}},
	}
	if _, err := n.c.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.clientsInPods(t)
	slice, err := n.c.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	at := podAddress(t, slice.Endpoints[0].Addresses[0])
	to := net.JoinHostPort(at, strconv.Itoa(int(*slice.Ports[0].Port)))
	if err := speaksTLS(t.Context(), to); err != nil {
		t.Errorf("the machine itself does not reach the API server: %v", err)
	}
	n.outside.Do(func() error {
		if err := speaksTLS(t.Context(), to); err == nil {
			t.Errorf("a neighbour reaches the API server at %s", to)
		}
		return nil
	})

	// A restart with other pods running, and one after kill -9: the address is the same, and pods reach it again.
	n.kill()
	n.up(t)
	n.clientsInPods(t)
	n.deleteAll(t)
	n.stop()
	if _, err := netlink.LinkByName("mortise-api"); err == nil {
		t.Error("the device with the address is left behind")
	}
}

// podAddress is an address that a pod may call.
func podAddress(t *testing.T, text string) string {
	t.Helper()
	if ip := net.ParseIP(text); ip == nil || ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() {
		t.Fatalf("endpoint %s: no pod reaches it", text)
	}
	return text
}

// speaksTLS connects, and shakes hands.
func speaksTLS(ctx context.Context, to string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // who it is does not matter here
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return err
	}
	return c.Close()
}

// clientsInPods runs the client in a pod of the pod network and in one of the host's.
func (n *realNode) clientsInPods(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, onHost := range []bool{false, true} {
		pod := idlePod("client-" + strconv.FormatBool(onHost))
		pod.Spec.HostNetwork = onHost
		if onHost {
			pod.Spec.DNSPolicy = corev1.DNSClusterFirstWithHostNet
		}
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		c := &pod.Spec.Containers[0]
		c.Command = []string{"/client"}
		c.Env = []corev1.EnvVar{
			{Name: aloneTest, Value: "pod"},
			{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
		}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "client", MountPath: "/client", ReadOnly: true}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "client",
			VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: self}}}}
		n.create(t, pod)
		done := n.pod(t, pod.Name, func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		})
		log, err := n.c.CoreV1().Pods("default").GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := []string{
			"https://10.96.0.1:443: 1 node", "https://kubernetes.default.svc: 1 node", "https://kubernetes.default.svc.cluster.local:443: 1 node",
			"node's API: 200 OK", "watched",
		}
		var got []string
		for lines := bufio.NewScanner(strings.NewReader(string(log))); lines.Scan(); {
			got = append(got, lines.Text())
		}
		if done.Status.Phase != corev1.PodSucceeded || !slices.Equal(got, want) {
			t.Errorf("host network %v: the client in the pod is %s, and prints\n%s", onHost, done.Status.Phase, log)
		}
	}
	n.deleteAll(t)
}

// podRuns is the variable that selects what this test's program does in a pod; empty: it is the client.
const podRuns = "MORTISE_TEST_POD"

// runInPod is this test's program again, in a pod.
func runInPod() int {
	run := callFromPod
	switch os.Getenv(podRuns) {
	case "operator":
		run = operateInPod
	case "ingress":
		run = ingressInPod
	}
	if err := run(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func callFromPod() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	var c *kubernetes.Clientset
	for _, host := range []string{config.Host, "https://kubernetes.default.svc", "https://kubernetes.default.svc.cluster.local:443"} {
		config.Host = host
		if c, err = kubernetes.NewForConfig(config); err != nil {
			return err
		}
		nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("%s: %w", host, err)
		}
		fmt.Printf("%s: %d node\n", host, len(nodes.Items))
	}
	if err := callNode(ctx, c, config); err != nil {
		return fmt.Errorf("node's API: %w", err)
	}
	w, err := c.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer w.Stop()
	if _, ok := <-w.ResultChan(); !ok {
		return errors.New("the watch ends without an event")
	}
	fmt.Println("watched")
	return nil
}

// callNode asks the node's API for its metrics as a scraper in the cluster does: at the node's address, with the cluster's authority and a
// service account's token.
func callNode(ctx context.Context, c kubernetes.Interface, config *rest.Config) error {
	node, err := c.CoreV1().Nodes().Get(ctx, os.Getenv("NODE_NAME"), metav1.GetOptions{})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
	if i < 0 {
		return fmt.Errorf("node %s has no internal address", node.Name)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	at := net.JoinHostPort(node.Status.Addresses[i].Address, strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)))
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+at+"/metrics/resource", nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	fmt.Println("node's API:", answer.Status)
	return nil
}
