// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// zone is where the names of the default namespace are.
const zone = "default.svc.cluster.local"

// resolve, in a shell, sets $at to a name's address. The static busybox of the images has a nslookup of its own, but its other
// programs can look up nothing: wget -T alone makes it crash.
func resolve(url string) string {
	name, port, err := net.SplitHostPort(url)
	if err != nil {
		name, port = url, "80"
	}
	if net.ParseIP(name) != nil {
		return "at=" + url + "; "
	}
	if !strings.Contains(name, ".") {
		name += "." + zone
	}
	return "at=$(nslookup -type=a " + name + " | awk '/^Address: /{print $2; exit}'):" + port + "; "
}

// who asks a URL, in a pod, until it says something: a Service is there when its endpoints are ready and its rules are written.
func who(url string) string {
	return "for i in $(seq 50); do " + resolve(url) +
		"timeout 5 wget -qO- http://$at/cgi-bin/who 2>/dev/null && exit 0; sleep 0.1; done; nslookup -type=a who." + zone + " >&2; exit 1\n"
}

// often asks a URL 24 times: who answered, and whom they saw.
func (n *realNode) often(t *testing.T, pod, url string) (names, seen []string) {
	t.Helper()
	n.inside(t, pod, who(url))
	out := n.inside(t, pod, "for i in $(seq 24); do timeout 20 wget -qO- http://"+url+"/cgi-bin/who || exit 1; done")
	return answers(t, out)
}

func answers(t *testing.T, out string) (names, seen []string) {
	t.Helper()
	for line := range strings.Lines(out) {
		name, from, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			t.Fatalf("an answer is %q", line)
		}
		names, seen = append(names, name), append(seen, strings.TrimPrefix(strings.Trim(from, "[]"), "::ffff:"))
	}
	slices.Sort(names)
	slices.Sort(seen)
	return slices.Compact(names), slices.Compact(seen)
}

// callsFrom asks an address from outside of the node, 24 times.
func (n *realNode) callsFrom(t *testing.T, address string) (names, seen []string) {
	t.Helper()
	out := ""
	for range 24 {
		page, err := n.call(address)
		if err != nil {
			t.Fatalf("call %s from outside: %v", address, err)
		}
		out += page
	}
	return answers(t, out)
}

// call asks an address once, from outside of the node.
func (n *realNode) call(address string) (text string, err error) {
	err = n.outside.Try(func() (err error) {
		text, err = page(address, patience)
		return err
	})
	return text, err
}

// page asks an address once, from the network that the thread is in.
func page(address string, limit time.Duration) (string, error) {
	c, err := net.DialTimeout("tcp", address, limit)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, "GET /cgi-bin/who HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	text, err := io.ReadAll(c)
	if err != nil {
		return "", err
	}
	_, body, ok := strings.Cut(string(text), "\r\n\r\n")
	if !ok {
		_, body, _ = strings.Cut(string(text), "\n\n")
	}
	return body, nil
}

func want(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// services are Services and names as pods and clients outside find them, through everything: the API, the controllers, the node's
// proxy and DNS, real containers and real packets.
func services(t *testing.T, n *realNode) {
	port := []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}}
	both, one := map[string]string{"app": "who"}, map[string]string{"only": "a"}
	n.createService(t, "who", corev1.ServiceSpec{Selector: both, Ports: port})
	n.createService(t, "self", corev1.ServiceSpec{Selector: one, Ports: port})
	sticky := n.createService(t, "sticky", corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Selector: both, Ports: port, SessionAffinity: corev1.ServiceAffinityClientIP,
	})
	outer := n.createService(t, "outer", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Selector: both, Ports: port})
	local := n.createService(t, "local", corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Selector: both, Ports: port, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
	})
	lonely := n.createService(t, "lonely", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "nobody"},
		Ports: port})
	n.createService(t, "heads", corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: both, Ports: port})
	n.createService(t, "away", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "who.default.svc.cluster.local"})
	a, b, caller := webPod("a", map[string]string{"app": "who", "only": "a"}), webPod("b", both), idlePod("caller")
	a.Spec.Hostname, a.Spec.Subdomain = "a", "heads"
	n.create(t, a, b, caller)
	ipA, ipB, ipCaller := n.ready(t, "a").Status.PodIP, n.ready(t, "b").Status.PodIP, n.ready(t, "caller").Status.PodIP

	t.Run("cluster IP", func(t *testing.T) {
		// Both endpoints are in the rules when both have answered.
		n.inside(t, "caller", "for name in a b; do until "+askOnce("who")+
			" | grep -q ^$name; do i=$((i+1)); [ $i -lt 50 ] || exit 1; sleep 0.1; done; done")
		names, seen := n.often(t, "caller", "who")
		want(t, "endpoints", names, "a", "b")
		want(t, "callers", seen, ipCaller)
	})
	t.Run("names", func(t *testing.T) {
		for _, name := range []string{"who", "away", "a.heads." + zone + ":8080", "heads:8080"} {
			if got := n.inside(t, "caller", who(name)); !strings.Contains(got, ipCaller) {
				t.Errorf("%s answers %q", name, got)
			}
		}
		lookups(t, n, ipA, ipB)
	})
	t.Run("affinity", func(t *testing.T) {
		if names, _ := n.often(t, "caller", "sticky"); len(names) != 1 {
			t.Errorf("one client's calls are answered by %q", names)
		}
		if names, _ := n.callsFrom(t, nodePort(sticky)); len(names) != 1 {
			t.Errorf("one client's calls from outside are answered by %q", names)
		}
	})
	t.Run("hairpin", func(t *testing.T) {
		names, _ := n.often(t, "a", "self")
		want(t, "a pod that calls itself by its Service hears", names, "a")
	})
	t.Run("node port", func(t *testing.T) {
		names, seen := n.callsFrom(t, nodePort(outer))
		want(t, "endpoints", names, "a", "b")
		if slices.Contains(seen, "192.168.50.2") {
			t.Errorf("the policy Cluster shows pods who calls: %q", seen)
		}
		names, seen = n.callsFrom(t, nodePort(local))
		want(t, "endpoints", names, "a", "b")
		want(t, "the policy Local shows pods", seen, "192.168.50.2")
		names, _ = n.often(t, "caller", nodePort(outer))
		want(t, "endpoints for a pod", names, "a", "b")
	})
	t.Run("load balancer", func(t *testing.T) { balanced(t, n, both) })
	t.Run("no endpoints", func(t *testing.T) {
		for _, address := range []string{lonely.Spec.ClusterIP, "lonely", nodePort(lonely)} {
			said := n.inside(t, "caller", resolve(address)+"timeout 60 wget -qO- http://$at/ 2>&1; true")
			if !strings.Contains(said, "Connection refused") {
				t.Errorf("a call to %s ends with %q", address, said)
			}
		}
		if _, err := n.call(nodePort(lonely)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a call from outside ends with %v", err)
		}
	})
	t.Run("addresses that are published before they are ready", func(t *testing.T) {
		c := webPod("c", map[string]string{"only": "c"})
		c.Spec.Containers[0].ReadinessProbe.TCPSocket.Port = intstr.FromInt32(9)
		n.create(t, c)
		unready := map[string]string{"only": "c"}
		n.createService(t, "early", corev1.ServiceSpec{Selector: unready, Ports: port, PublishNotReadyAddresses: true})
		n.createService(t, "early-heads", corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: unready, Ports: port,
			PublishNotReadyAddresses: true})
		late := n.createService(t, "late", corev1.ServiceSpec{Selector: unready, Ports: port})
		n.pod(t, "c", func(p *corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Running != nil
		})
		for _, name := range []string{"early", "early-heads:8080"} {
			if got := n.inside(t, "caller", who(name)); !strings.HasPrefix(got, "c ") {
				t.Errorf("%s answers %q, want c", name, got)
			}
		}
		said := n.inside(t, "caller", "timeout 60 wget -qO- http://"+late.Spec.ClusterIP+"/ 2>&1; true")
		if !strings.Contains(said, "Connection refused") {
			t.Errorf("a Service of pods that are not ready answers %q", said)
		}
	})
	t.Run("the API", func(t *testing.T) {
		n.inside(t, "caller", resolve("kubernetes:443")+"nc -w 20 ${at%:*} 443 </dev/null")
	})
	t.Run("an endpoint that goes", func(t *testing.T) {
		if err := n.c.CoreV1().Pods("default").Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		// It leaves the rules when it begins to end; nobody is cut off meanwhile.
		out := n.inside(t, "caller", `
			in=0
			while [ $in -lt 20 ]; do
				said=$(`+askOnce("who")+`) || exit 1
				case $said in a*) in=$((in+1));; *) in=0;; esac
			done; echo only a`)
		if out != "only a\n" {
			t.Errorf("after b: %q", out)
		}
	})
}

// balanced has Services of type LoadBalancer at the node's own address, which clients outside reach.
func balanced(t *testing.T, n *realNode, selector map[string]string) {
	spec := func(port int32, policy corev1.ServiceExternalTrafficPolicy) corev1.ServiceSpec {
		return corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: selector, ExternalTrafficPolicy: policy,
			AllocateLoadBalancerNodePorts: new(false),
			Ports:                         []corev1.ServicePort{{Name: "http", Port: port, TargetPort: intstr.FromString("http")}},
		}
	}
	began := time.Now()
	n.createService(t, "balanced", spec(81, corev1.ServiceExternalTrafficPolicyCluster))
	n.answersOutside(t, nodeAddress+":81")
	t.Logf("a client outside had an answer %d ms after the Service was requested", time.Since(began).Milliseconds())
	names, seen := n.callsFrom(t, nodeAddress+":81")
	want(t, "endpoints", names, "a", "b")
	if slices.Contains(seen, "192.168.50.2") {
		t.Errorf("the policy Cluster shows pods who calls: %q", seen)
	}
	n.createService(t, "balanced-locally", spec(82, corev1.ServiceExternalTrafficPolicyLocal))
	n.answersOutside(t, nodeAddress+":82")
	names, seen = n.callsFrom(t, nodeAddress+":82")
	want(t, "endpoints", names, "a", "b")
	want(t, "the policy Local shows pods", seen, "192.168.50.2")
	// A Service with a port that is taken waits for it.
	n.createService(t, "balanced-late", spec(82, corev1.ServiceExternalTrafficPolicyCluster))
	n.kubectl("wait", "service/balanced-late", "--for=condition=LoadBalancerPortsError", "--timeout=2m")
	n.kubectl("delete", "service", "balanced-locally")
	n.kubectl("wait", "service/balanced-late", "--for=jsonpath={.status.loadBalancer.ingress[0].ip}="+nodeAddress, "--timeout=2m")
	n.answersOutside(t, nodeAddress+":82")
}

// answersOutside asks an address from outside of the node until it is answered.
func (n *realNode) answersOutside(t *testing.T, address string) {
	t.Helper()
	if err := n.outside.Try(func() error { return answered(address, patience) }); err != nil {
		t.Fatalf("call %s from outside: %v", address, err)
	}
}

// answered asks an address, from the network that the thread is in, until it is answered. Where nobody answers, a call takes a while.
func answered(address string, limit time.Duration) (err error) {
	for began := time.Now(); time.Since(began) < limit; {
		var text string
		if text, err = page(address, 100*time.Millisecond); err == nil && text != "" {
			return nil
		}
	}
	return fmt.Errorf("no answer: %w", err)
}

// askOnce is one call of a shell.
func askOnce(url string) string { return resolve(url) + "timeout 20 wget -qO- http://$at/cgi-bin/who" }

func nodePort(s *corev1.Service) string {
	return net.JoinHostPort(nodeAddress, strconv.Itoa(int(s.Spec.Ports[0].NodePort)))
}

// lookups asks the cluster's DNS, as pods find it in their resolv.conf.
func lookups(t *testing.T, n *realNode, ipA, ipB string) {
	t.Helper()
	clusterIP, err := n.c.CoreV1().Services("default").Get(t.Context(), "who", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []struct {
		question string
		answers  []string
	}{
		{"-type=a who." + zone, []string{"Address: " + clusterIP.Spec.ClusterIP}},
		{"-type=a heads." + zone, []string{"Address: " + ipA, "Address: " + ipB}},
		{"-type=a a.heads." + zone, []string{"Address: " + ipA}},
		{"-type=srv _http._tcp.heads." + zone, []string{" 8080 a.heads." + zone}},
		{"-type=srv _http._tcp.who." + zone, []string{" 80 who." + zone}},
		{"-type=cname away." + zone, []string{"canonical name = who." + zone}},
		{clusterIP.Spec.ClusterIP, []string{"name = who." + zone}},
		{ipA, []string{"name = a.heads." + zone}},
		{"-type=a " + strings.ReplaceAll(ipA, ".", "-") + ".default.pod.cluster.local", []string{"Address: " + ipA}},
		{"-type=a nobody." + zone, []string{"NXDOMAIN"}},
	} {
		said := n.inside(t, "caller", "nslookup "+q.question+" 2>&1; true")
		for _, a := range q.answers {
			if !strings.Contains(said, a) {
				t.Errorf("nslookup %s says %q, want %q in it", q.question, said, a)
			}
		}
	}
	if conf := n.inside(t, "caller", "cat /etc/resolv.conf"); !strings.Contains(conf,
		"search default.svc.cluster.local svc.cluster.local cluster.local") || !strings.Contains(conf, "nameserver 10.96.0.10") {
		t.Errorf("resolv.conf is %q", conf)
	}
}
