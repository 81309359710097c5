// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"
)

// joined starts `mortise node` in a process of its own, and waits until it is ready. The process is ended with the test.
func joined(t *testing.T, dataDir string, args ...string) *program {
	t.Helper()
	return joinedIn(t, nil, dataDir, args...)
}

// joinedIn is joined by a command that runs others.
func joinedIn(t *testing.T, where []string, dataDir string, args ...string) *program {
	t.Helper()
	p := begin(t, where, filepath.Join(dataDir, "node", "kubelet.conf"),
		append([]string{"node", "--data-dir", dataDir, "--log-level", "info"}, args...)...)
	p.comesUp()
	return p
}

// mortise runs a verb and returns what it printed, without the end of the last line; of one that fails, its errors too.
func (p *program) mortise(args ...string) (string, error) {
	var out, other bytes.Buffer
	cmd := exec.CommandContext(p.t.Context(), p.binary, args...)
	cmd.Stdout, cmd.Stderr = &out, &other
	err := cmd.Run()
	if err != nil {
		out.Write(other.Bytes()) // what is wrong; else it is logs
	}
	return strings.TrimRight(out.String(), "\n"), err
}

func awaitNode(t *testing.T, c kubernetes.Interface, name string, status corev1.ConditionStatus) {
	t.Helper()
	awaitEvent(t, c, "nodes", "", fields.OneTermEqualSelector("metadata.name", name), &corev1.Node{}, 90*time.Second,
		func(e watch.Event) bool {
			n, ok := e.Object.(*corev1.Node)
			if !ok {
				return false
			}
			for _, condition := range n.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == status {
					return n.Spec.PodCIDR != ""
				}
			}
			return false
		})
}

// TestJoin: a machine with a token becomes a node, in a process of its own; what is wrong is refused with words that help; a
// node that has joined needs no token any more, may do no more than a node, and replaces its certificate.
func TestJoin(t *testing.T) {
	server := up(t, t.TempDir(), "--node", "none")
	c := server.client()
	line, err := server.mortise("token", "create", "--kubeconfig", server.kubeconfig, "--print-join-command", "--description", "for a test")
	if err != nil {
		t.Fatalf("token create: %v\n%s", err, line)
	}
	join := strings.Fields(line)
	if len(join) != 8 || join[1] != "node" || join[2] != "--join" || join[4] != "--token" || join[6] != "--ca-cert-hash" {
		t.Fatalf("the command to join is %q", line)
	}
	url, token, hash := join[3], join[5], join[7]
	if out, err := server.mortise("token", "list", "--kubeconfig", server.kubeconfig); err != nil || !strings.Contains(out, token) ||
		!strings.Contains(out, "for a test") {
		t.Errorf("token list: %v\n%s", err, out)
	}

	expired, err := server.mortise("token", "create", "aaaaaa.0123456789abcdef", "--kubeconfig", server.kubeconfig, "--ttl", "0")
	if err != nil || expired != "aaaaaa.0123456789abcdef" {
		t.Fatalf("token create: %v %q", err, expired)
	}
	if out, err := server.mortise("token", "delete", "aaaaaa", "--kubeconfig", server.kubeconfig); err != nil {
		t.Fatalf("token delete: %v\n%s", err, out)
	}
	authority := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(authority, server.config.CAData, 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := token[:7] + strings.Repeat("0", 16)
	for name, r := range map[string]struct {
		args []string
		want string
	}{
		"another secret":             {[]string{"--join", url, "--token", wrong, "--ca-cert-hash", hash}, "its secret differs"},
		"another secret, by CA file": {[]string{"--join", url, "--token", wrong, "--ca-file", authority}, "the token is unknown to"},
		"a token that was deleted":   {[]string{"--join", url, "--token", expired, "--ca-cert-hash", hash}, "is unknown to the cluster"},
		"another authority": {[]string{"--join", url, "--token", token, "--ca-cert-hash", "sha256:" + strings.Repeat("0", 64)},
			"not the one of --ca-cert-hash"},
		"a server that is not there": {[]string{"--join", "https://127.0.0.1:1", "--token", token, "--ca-cert-hash", hash}, "connection refused"},
		"no token":                   {[]string{"--join", url}, "set --token; `mortise token create`"},
		"nothing at all":             {nil, "this machine is not a node yet"},
	} {
		out, err := server.mortise(append([]string{"node", "--data-dir", filepath.Join(t.TempDir(), "d"), "--node", "simulated", "--name",
			"stranger"}, r.args...)...)
		if err == nil || !strings.Contains(out, r.want) || strings.Contains(out, token[7:]) {
			t.Errorf("%s: %v, %q; want %q", name, err, out, r.want)
		}
	}
	if all, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil || len(all.Items) > 0 {
		t.Errorf("%d nodes, %v; want none", len(all.Items), err)
	}

	dir := filepath.Join(t.TempDir(), "node")
	node := joined(t, dir, "--join", url, "--token", token, "--ca-cert-hash", hash, "--name", "far", "--node", "simulated")
	awaitNode(t, c, "far", corev1.ConditionTrue)
	server.kubectl("run", "web", "--image=web")
	server.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
	if out := server.kubectl("get", "pod", "web", "-o", "jsonpath={.spec.nodeName} {.status.podIP}"); !strings.HasPrefix(out, "far 10.244.") {
		t.Errorf("the pod is at %q", out)
	}
	if out := server.kubectl("logs", "web"); !strings.Contains(out, "on node far") {
		t.Errorf("logs say %q", out)
	}
	for _, top := range []struct{ of, name, want string }{ // what the server reads at the node's /metrics/resource
		{"node", "far", `^far +1\dm `}, {"pod", "web", `^web +\dm +1Mi`},
	} {
		if out := server.kubectl("top", top.of, top.name, "--no-headers"); !regexp.MustCompile(top.want).MatchString(out) {
			t.Errorf("top of the %s: %q", top.of, out)
		}
	}
	out, err := server.mortise("node", "--data-dir", filepath.Join(t.TempDir(), "d"), "--node", "simulated", "--name", "far", "--join", url,
		"--token", token, "--ca-cert-hash", hash)
	if err == nil || !strings.Contains(out, "node far exists and is ready") {
		t.Errorf("a second node of that name: %v, %q", err, out)
	}
	out, err = server.mortise("node", "--data-dir", dir+"2", "--node", "simulated", "--join", url, "--token", token, "--name", "x/y")
	if err == nil {
		t.Errorf("a node of the name x/y: %q", out)
	}

	// It is a node, and no more than one.
	asNode := nodeClient(t, node)
	if _, err := asNode.CoreV1().Nodes().Get(t.Context(), "far", metav1.GetOptions{}); err != nil {
		t.Errorf("the node reads itself: %v", err)
	}
	for what, list := range map[string]func(metav1.ListOptions) error{ // what its proxy, DNS and routes follow
		"nodes": func(o metav1.ListOptions) error { _, err := asNode.CoreV1().Nodes().List(t.Context(), o); return err },
		"services": func(o metav1.ListOptions) error {
			_, err := asNode.CoreV1().Services("").List(t.Context(), o)
			return err
		},
		"namespaces": func(o metav1.ListOptions) error {
			_, err := asNode.CoreV1().Namespaces().List(t.Context(), o)
			return err
		},
		"slices": func(o metav1.ListOptions) error {
			_, err := asNode.DiscoveryV1().EndpointSlices("").List(t.Context(), o)
			return err
		},
		"ranges": func(o metav1.ListOptions) error {
			_, err := asNode.NetworkingV1().ServiceCIDRs().List(t.Context(), o)
			return err
		},
	} {
		if err := list(metav1.ListOptions{}); err != nil {
			t.Errorf("the node lists %s: %v", what, err)
		}
	}
	if _, err := asNode.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{}); err != nil {
		t.Errorf("the node finds the cluster DNS: %v", err)
	}
	if _, err := asNode.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the node lists secrets: %v", err)
	}
	if _, err := asNode.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the node makes another: %v", err)
	}

	node.stop()

	// Without a token, with what lies on disk.
	node = joined(t, dir, "--node", "simulated")
	if !strings.Contains(node.readyLine, "node: far, simulated") {
		t.Errorf("ready line %q", node.readyLine)
	}
	server.kubectl("delete", "pod", "web", "--timeout=60s")
	node.stop()
	for name, r := range map[string]struct {
		args []string
		want string
	}{
		"another name":    {[]string{"--name", "near"}, "is the node far already"},
		"another cluster": {[]string{"--join", "https://127.0.0.1:1"}, "is a node of " + url + " already"},
	} {
		out, err := server.mortise(append([]string{"node", "--data-dir", dir, "--node", "simulated"}, r.args...)...)
		if err == nil || !strings.Contains(out, r.want) {
			t.Errorf("%s: %v, %q; want %q", name, err, out, r.want)
		}
	}
	server.stop()
}

// nodeClient is a client by what the node has on disk.
func nodeClient(t *testing.T, node *program) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", node.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		t.Fatal(err)
	}
	config.CertFile, config.KeyFile = "", ""
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestNodeCertificateRotates: a node goes on when the certificate that it came in with is over, since it has another by then; the key
// is another too, and the node can be started again with them.
func TestNodeCertificateRotates(t *testing.T) {
	server := up(t, t.TempDir(), "--node", "none", "--cluster-signing-duration", "20s")
	c := server.client()
	line, err := server.mortise("token", "create", "--kubeconfig", server.kubeconfig, "--print-join-command")
	if err != nil {
		t.Fatalf("token create: %v\n%s", err, line)
	}
	dir := filepath.Join(t.TempDir(), "node")
	node := joined(t, dir, append(strings.Fields(line)[2:], "--name", "far", "--node", "simulated")...)
	files, err := filepath.Glob(filepath.Join(dir, "node", "pki", "kubelet-client-2*.pem"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no certificate is on disk: %v", err)
	}
	pair, err := tls.LoadX509KeyPair(files[0], files[0])
	if err != nil {
		t.Fatal(err)
	}
	end := pair.Leaf.NotAfter
	if life := time.Until(end); life > 20*time.Second {
		t.Fatalf("the first certificate is good for %s", life)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	leases := cache.NewListWatchFromClient(c.CoordinationV1().RESTClient(), "leases", "kube-node-lease",
		fields.OneTermEqualSelector("metadata.name", "far"))
	if _, err := watchtools.UntilWithSync(ctx, leases, &coordinationv1.Lease{}, nil, func(e watch.Event) (bool, error) {
		l, ok := e.Object.(*coordinationv1.Lease)
		return ok && l.Spec.RenewTime != nil && l.Spec.RenewTime.After(end.Add(time.Second)), nil
	}); err != nil {
		t.Fatalf("no heartbeat after the end of the first certificate: %v", err)
	}
	current := filepath.Join(filepath.Dir(node.kubeconfig), "pki", "kubelet-client-current.pem")
	now, err := tls.LoadX509KeyPair(current, current)
	if err != nil {
		t.Fatal(err)
	}
	if now.Leaf.SerialNumber.Cmp(pair.Leaf.SerialNumber) == 0 || now.Leaf.Subject.CommonName != "system:node:far" ||
		slices.Equal(now.Leaf.RawSubjectPublicKeyInfo, pair.Leaf.RawSubjectPublicKeyInfo) {
		t.Errorf("the certificate on disk is the first one still, or its key is, or it is of %s", now.Leaf.Subject)
	}
	node.stop()

	// Away for longer than the certificate lasts: a token is needed, and enough.
	ended := time.NewTimer(time.Until(now.Leaf.NotAfter) + time.Second)
	<-ended.C
	out, err := server.mortise("node", "--data-dir", dir, "--node", "simulated")
	if err == nil || !strings.Contains(out, "set --token to join again") {
		t.Errorf("with a certificate that has ended: %v, %q", err, out)
	}
	if err := c.CoreV1().Nodes().Delete(t.Context(), "far", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	node = joined(t, dir, append(strings.Fields(line)[2:], "--node", "simulated")...)
	awaitNode(t, c, "far", corev1.ConditionTrue)
	node.stop()
	server.stop()
}

// TestNodeServingCertificate: with serverTLSBootstrap a node has its serving certificate of the cluster, once somebody has approved it.
// A server that verifies nodes' certificates gets logs then, and not before.
func TestNodeServingCertificate(t *testing.T) {
	data, dir := t.TempDir(), filepath.Join(t.TempDir(), "node")
	up(t, data, "--node", "none").stop() // it makes the authority
	server := up(t, data, "--node", "none", "--kubelet-certificate-authority", filepath.Join(data, "pki", "ca.crt"))
	c := server.client()
	line, err := server.mortise("token", "create", "--kubeconfig", server.kubeconfig, "--print-join-command")
	if err != nil {
		t.Fatalf("token create: %v\n%s", err, line)
	}
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(config, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nserverTLSBootstrap: true\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	node := joined(t, dir, append(strings.Fields(line)[2:], "--name", "far", "--node", "simulated", "--kubelet-config", config)...)
	awaitNode(t, c, "far", corev1.ConditionTrue)
	server.kubectl("run", "web", "--image=web")
	server.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=60s")

	// request waits until a request for a serving certificate is as wanted.
	request := func(is func(*certificatesv1.CertificateSigningRequest) bool) (found *certificatesv1.CertificateSigningRequest) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		all := cache.NewListWatchFromClient(c.CertificatesV1().RESTClient(), "certificatesigningrequests", "",
			fields.OneTermEqualSelector("spec.signerName", certificatesv1.KubeletServingSignerName))
		if _, err := watchtools.UntilWithSync(ctx, all, &certificatesv1.CertificateSigningRequest{}, nil, func(e watch.Event) (ok bool, _ error) {
			found, ok = e.Object.(*certificatesv1.CertificateSigningRequest)
			return ok && is(found), nil
		}); err != nil {
			t.Fatalf("no such request for a serving certificate: %v", err)
		}
		return found
	}
	asked := request(func(*certificatesv1.CertificateSigningRequest) bool { return true })
	if asked.Spec.Username != "system:node:far" || len(asked.Status.Conditions) > 0 ||
		!slices.Equal(asked.Spec.Usages, []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}) {
		t.Errorf("the request is of %s, for %v, with %v", asked.Spec.Username, asked.Spec.Usages, asked.Status.Conditions)
	}
	if out, err := server.tryKubectl("logs", "web"); err == nil || !strings.Contains(out, "tls") {
		t.Errorf("logs before the certificate is approved: %v, %q", err, out)
	}
	server.kubectl("certificate", "approve", asked.Name)
	issued := request(func(r *certificatesv1.CertificateSigningRequest) bool { return len(r.Status.Certificate) > 0 })
	// The node takes its certificate without an event that a test could wait for, so it is asked again.
	tick, limit := time.NewTicker(100*time.Millisecond), time.After(60*time.Second)
	defer tick.Stop()
	for out, err := server.tryKubectl("logs", "web"); err != nil || !strings.Contains(out, "on node far"); out,
		err = server.tryKubectl("logs", "web") {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("logs say %q, %v", out, err)
		}
	}
	block, _ := pem.Decode(issued.Status.Certificate)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if certificate.Subject.CommonName != "system:node:far" || !slices.Contains(certificate.DNSNames, "far") ||
		len(certificate.IPAddresses) != 1 || !certificate.IPAddresses[0].IsLoopback() {
		t.Errorf("the certificate is of %s, for %q and %v", certificate.Subject, certificate.DNSNames, certificate.IPAddresses)
	}
	node.stop()
	// It has it still when it is started again.
	node = joined(t, dir, "--node", "simulated", "--kubelet-config", config)
	awaitNode(t, c, "far", corev1.ConditionTrue)
	server.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
	if out := server.kubectl("logs", "web"); !strings.Contains(out, "on node far") {
		t.Errorf("logs after a restart say %q", out)
	}
	node.stop()
	server.stop()
}
