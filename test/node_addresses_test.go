// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// TestNodeAddressesChange: the address of a node that has joined is replaced, IPv6 comes to it, and its link flaps. The Node shows where
// it is, and never nothing; the server, which verifies nodes' certificates, goes on to read logs; pods of other nodes and clients
// outside go on to reach its pods.
func TestNodeAddressesChange(t *testing.T) {
	if !alone(t) {
		return
	}
	l := newLAN(t, "switch", "192.168.70.")
	pods := map[string]bool{}
	server := l.newHost("one", 1).newNode(pods)
	authority := filepath.Join(server.dir, "pki", "ca.crt")
	up(t, server.dir, "--node", "none", "--listen", l.prefix+"254:0").stop() // it makes the authority
	server.serve("--kubelet-certificate-authority", authority)
	awaitNode(t, server.c, "one", corev1.ConditionTrue)
	far := l.newHost("two", 2)
	far.moves(t, "", far.six+"/64")
	second := far.newNode(pods)
	second.configure(t, "serverTLSBootstrap: true\n")
	second.joins(server)
	awaitNode(t, server.c, "two", corev1.ConditionTrue)
	c := &severalNodes{server, []*realNode{server, second}}
	c.awaitAddresses(t, "two", l.prefix+"2")
	c.approve(t, 1)

	outer := c.createServices(t)
	c.createPods(t)
	shared := idlePod("shared")
	shared.Spec.HostNetwork, shared.Spec.NodeSelector = true, map[string]string{corev1.LabelHostname: "two"}
	c.create(t, shared)
	c.ready(t, "shared")
	reached := func(t *testing.T, at string, six bool) {
		t.Helper()
		c.untilLogs(t, "call-two")
		if out := c.inside(t, "call-two", "echo there"); out != "there\n" {
			t.Errorf("a command in a pod says %q", out)
		}
		web := c.ready(t, "web-two")
		if web.Status.HostIP != at {
			t.Errorf("pod %s is at %s, want %s", web.Name, web.Status.HostIP, at)
		}
		called := []string{web.Status.PodIP}
		if six { // its node is the gateway to it, in both families
			called = append(called, c.six(t, web))
		}
		for _, ip := range called {
			c.inside(t, "call-one", c.untilAllAnswer(net.JoinHostPort(ip, "8080"), []string{"web-two"}))
		}
		c.inside(t, "call-two", c.untilAllAnswer(net.JoinHostPort(c.ready(t, "web-one").Status.PodIP, "8080"), []string{"web-one"}))
		if page := askOutside(t, net.JoinHostPort(at, strconv.Itoa(int(outer.Spec.Ports[0].NodePort)))); !strings.HasPrefix(page, "web-") {
			t.Errorf("its node port says %q", page)
		}
	}
	began := time.Now()
	phase := func(what string) {
		t.Logf("%5.1f s: %s", time.Since(began).Seconds(), what)
	}
	t.Run("another lease", func(t *testing.T) {
		began = time.Now()
		far.moves(t, l.prefix+"22/24", far.address+"/24")
		c.awaitAddresses(t, "two", l.prefix+"22")
		phase("the Node shows it")
		// it takes 10 s to see that connections from the old one are dead, and TCP by itself a quarter of an hour
		if took := time.Since(began); took > time.Minute {
			t.Errorf("the Node shows the new address after %s", took)
		}
		c.approve(t, 2)
		phase("the node has asked for another certificate")
		reached(t, l.prefix+"22", false)
		phase("all is reached")
	})
	t.Run("IPv6 comes", func(t *testing.T) {
		began = time.Now()
		far.moves(t, l.six+"22/64", "")
		c.awaitAddresses(t, "two", l.prefix+"22", l.six+"22")
		phase("the Node shows it")
		c.approve(t, 3)
		reached(t, l.prefix+"22", true)
		phase("all is reached")
	})
	t.Run("a pod in its network", func(t *testing.T) {
		p := c.pod(t, "shared", func(p *corev1.Pod) bool { return len(p.Status.HostIPs) == 2 && p.Status.HostIP == l.prefix+"22" })
		if want := []corev1.PodIP{{IP: l.prefix + "2"}, {IP: l.six + "22"}}; !slices.Equal(p.Status.PodIPs, want) {
			t.Errorf("it has the addresses %v, want %v", p.Status.PodIPs, want)
		}
	})
	t.Run("its link flaps", func(t *testing.T) {
		began = time.Now()
		shown := c.watchAddresses(t, "two")
		try(t, far.within(func() error {
			eth, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetDown(eth)
		}))
		<-time.After(3 * time.Second) // that is long for the node
		try(t, far.within(func() error {
			eth, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(eth)
		}))
		far.moves(t, l.six+"22/64", "")
		phase("the link is back")
		reached(t, l.prefix+"22", true)
		phase("all is reached")
		for _, has := range shown() {
			if has != l.prefix+"22 "+l.six+"22" {
				t.Errorf("meanwhile the Node had the addresses %q", has)
			}
		}
	})
	c.deleteAll(t)
	second.stop()
	server.stop()
}

// TestServersOwnNodeMoves: a server that listens on all addresses has a node in its own process, whose address is replaced. Its
// certificate is of the new one then.
func TestServersOwnNodeMoves(t *testing.T) {
	if !alone(t) {
		return
	}
	l := newLAN(t, "switch", "192.168.72.")
	h := l.newHost("one", 1)
	n := h.newNode(map[string]bool{})
	up(t, n.dir, "--node", "none", "--listen", l.prefix+"254:0").stop() // it makes the authority
	n.program = launchIn(t, h.where(), n.dir, append(n.args, "--listen", "0.0.0.0:0", "--kubelet-certificate-authority",
		filepath.Join(n.dir, "pki", "ca.crt"))...)
	n.comesUp()
	n.c = n.client()
	kubectl := func(args ...string) string {
		return h.run(append([]string{n.binary, "kubectl", "--kubeconfig", n.kubeconfig}, args...)...)
	}
	addresses := func(want string) {
		t.Helper()
		kubectl("wait", "node/one", "--timeout=60s", "--for=jsonpath={.status.addresses[?(@.type==\"InternalIP\")].address}="+want)
	}
	kubectl("wait", "node/one", "--timeout=90s", "--for=create")
	kubectl("wait", "node/one", "--timeout=90s", "--for=condition=Ready")
	addresses(l.prefix + "1")
	p := idlePod("p")
	p.APIVersion, p.Kind = "v1", "Pod"
	p.Spec.Containers[0] = container("c", "echo here; while :; do sleep 3600; done")
	file := filepath.Join(t.TempDir(), "pod.yaml")
	n.write(t, file, text(p))
	kubectl("create", "-f", file)
	kubectl("wait", "pod/p", "--timeout=90s", "--for=condition=Ready")
	h.moves(t, l.prefix+"33/24", h.address+"/24")
	addresses(l.prefix + "33")
	if out := kubectl("logs", "p"); out != "here\n" {
		t.Errorf("logs say %q", out)
	}
	if out := kubectl("get", "pod", "p", "-o", "jsonpath={.status.hostIP}"); out != l.prefix+"33" {
		t.Errorf("the pod is at %q", out)
	}
	kubectl("delete", "pod", "p", "--timeout=60s")
	n.stop()
}

// configure adds to the node's kubelet configuration.
func (n *realNode) configure(t *testing.T, more string) {
	t.Helper()
	path := filepath.Join(filepath.Dir(n.dir), "kubelet.yaml")
	before, err := os.ReadFile(path)
	try(t, err)
	n.write(t, path, string(before)+more)
}

// moves takes an address from the host and gives it another, as a DHCP client does; either may be empty. The ways to the world go with the
// address, and come with it.
func (h *host) moves(t *testing.T, to, from string) {
	t.Helper()
	try(t, h.within(func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if from != "" {
			a, err := netlink.ParseAddr(from)
			if err == nil {
				err = netlink.AddrDel(eth, a)
			}
			if err != nil {
				return err
			}
		}
		if to == "" {
			return nil
		}
		a, err := netlink.ParseAddr(to)
		if err == nil {
			err = netlink.AddrAdd(eth, a) // tentative at first, if it is of IPv6
		}
		for dst, via := range map[string]string{"0.0.0.0/0": h.lan.prefix + "254", "::/0": h.lan.six + "254"} {
			_, world, _ := net.ParseCIDR(dst)
			if e := netlink.RouteAdd(&netlink.Route{Dst: world, Gw: net.ParseIP(via), LinkIndex: eth.Attrs().Index}); e != nil &&
				!slices.Contains(unreachable, e) {
				err = errors.Join(err, e)
			}
		}
		return err
	}))
}

// unreachable are the errors of a way that is there, or that the host has no address for.
var unreachable = []error{unix.EEXIST, unix.ENETUNREACH, unix.EHOSTUNREACH}

func internalIPs(n *corev1.Node) string {
	var has []string
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			has = append(has, a.Address)
		}
	}
	return strings.Join(has, " ")
}

// awaitAddresses waits until a Node has those addresses, and no others.
func (c *severalNodes) awaitAddresses(t *testing.T, name string, want ...string) {
	t.Helper()
	has := ""
	defer func() {
		if t.Failed() {
			t.Logf("node %s has the addresses %q", name, has)
		}
	}()
	awaitEvent(t, c.c, "nodes", "", fields.OneTermEqualSelector("metadata.name", name), &corev1.Node{}, patience, func(e watch.Event) bool {
		node, ok := e.Object.(*corev1.Node)
		if ok {
			has = internalIPs(node)
		}
		return ok && has == strings.Join(want, " ")
	})
}

// watchAddresses notes all that a Node shows, until what it returns is called, which returns them.
func (c *severalNodes) watchAddresses(t *testing.T, name string) func() []string {
	t.Helper()
	w, err := c.c.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name",
		name).String()})
	try(t, err)
	all := make(chan []string)
	go func() {
		var shown []string
		for e := range w.ResultChan() {
			if n, ok := e.Object.(*corev1.Node); ok {
				shown = append(shown, internalIPs(n))
			}
		}
		all <- shown
	}()
	return func() []string {
		w.Stop()
		return <-all
	}
}

// approve waits until nodes have asked for that many serving certificates, and approves those that nobody has.
func (c *severalNodes) approve(t *testing.T, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	asked := map[string]bool{}
	all := cache.NewListWatchFromClient(c.c.CertificatesV1().RESTClient(), "certificatesigningrequests", "",
		fields.OneTermEqualSelector("spec.signerName", certificatesv1.KubeletServingSignerName))
	if _, err := watchtools.UntilWithSync(ctx, all, &certificatesv1.CertificateSigningRequest{}, nil, func(e watch.Event) (bool, error) {
		if r, ok := e.Object.(*certificatesv1.CertificateSigningRequest); ok && !asked[r.Name] {
			asked[r.Name] = true
			if len(r.Status.Conditions) == 0 {
				c.kubectl("certificate", "approve", r.Name)
			}
		}
		return len(asked) >= count, nil
	}); err != nil {
		t.Fatalf("nodes have asked for %d serving certificates, want %d: %v", len(asked), count, err)
	}
}

// untilLogs asks for a pod's logs until they are there: the node takes a certificate without an event that a test could wait for.
func (c *severalNodes) untilLogs(t *testing.T, pod string) {
	t.Helper()
	tick, limit := time.NewTicker(100*time.Millisecond), time.After(patience)
	defer tick.Stop()
	for out, err := c.tryKubectl("logs", pod); err != nil || out != "here\n"; out, err = c.tryKubectl("logs", pod) {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("logs of %s say %q, %v", pod, out, err)
		}
	}
}
