// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
)

// severalNodes is a cluster of nodes on hosts of their own. The first has the server.
type severalNodes struct {
	*realNode
	nodes []*realNode
}

// TestSeveralNodes has two nodes, then three, each with a network, a containerd and directories of its own: what their pods send each
// other, directly and by Services and names, and what becomes of a node that is cut off and comes back.
func TestSeveralNodes(t *testing.T) {
	if !alone(t) {
		return
	}
	l := newLAN(t, "switch", "192.168.70.")
	pods := map[string]bool{}
	server := l.newHost("one", 1).newNode(pods)
	server.serve("--node-monitor-grace-period", "4s", "--node-monitor-period", "1s", "--load-balancer-pool",
		"192.168.70.240-192.168.70.247,fd00:70::f0-fd00:70::f7")
	awaitNode(t, server.c, "one", corev1.ConditionTrue)
	second := l.newHost("two", 2).newNode(pods)
	second.joins(server)
	awaitNode(t, server.c, "two", corev1.ConditionTrue)
	c := &severalNodes{server, []*realNode{server, second}}

	outer := c.createServices(t)
	c.createPods(t)
	t.Run("two nodes", func(t *testing.T) { c.reachEachOther(t, outer) })

	third := l.newHost("three", 3).newNode(pods)
	third.joins(server)
	awaitNode(t, server.c, "three", corev1.ConditionTrue)
	t.Run("a node without pods", func(t *testing.T) {
		at := net.JoinHostPort(third.host.address, strconv.Itoa(int(outer.Spec.Ports[0].NodePort)))
		awaitAnswer(t, at)
		page := askOutside(t, at)
		if names, _ := answers(t, page); len(names) != 1 {
			t.Errorf("its node port says %q", page)
		}
		c.staysLocal(t, third)
	})
	c.nodes = append(c.nodes, third)
	c.createPods(t)
	t.Run("three nodes", func(t *testing.T) { c.reachEachOther(t, outer) })
	t.Run("a node is cut off", func(t *testing.T) { c.cutsOff(t, third) })
	t.Run("three nodes again", func(t *testing.T) { c.reachEachOther(t, outer) })
	c.deleteAll(t)
	for _, n := range slices.Backward(c.nodes) {
		n.stop()
	}
}

// TestNodesBehindRouters has two nodes on networks of their own, which a router connects that knows nothing of pods: they lead to each
// other's pods through VXLAN.
func TestNodesBehindRouters(t *testing.T) {
	if !alone(t) {
		return
	}
	here, there := newLAN(t, "here", "192.168.70."), newLAN(t, "there", "192.168.71.")
	for _, forward := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} { // the test is the router
		try(t, os.WriteFile(filepath.Join("/proc/sys/net", forward), []byte("1"), 0o644))
	}
	pods := map[string]bool{}
	server := here.newHost("one", 1).newNode(pods)
	server.serve("--node-vxlan")
	second := there.newHost("two", 1).newNode(pods)
	root := filepath.Join(t.TempDir(), "kubelet") // volumes may be anywhere
	second.joins(server, "--node-vxlan", "--root-dir", root)
	for _, n := range []*realNode{server, second} {
		awaitNode(t, server.c, n.host.name, corev1.ConditionTrue)
	}
	c := &severalNodes{server, []*realNode{server, second}}
	outer := c.createServices(t)
	c.createPods(t)
	if _, err := os.Stat(filepath.Join(root, "pods", string(c.ready(t, "web-two").UID), "etc-hosts")); err != nil {
		t.Error(err)
	}
	c.reachEachOther(t, outer)
	// What is larger than a packet gets there whole.
	big := idlePod("big")
	big.Spec.Containers[0] = container("c", "exec httpd -f -p 8080 -h /bin")
	big.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "two"}
	c.create(t, big)
	at := c.ready(t, "big").Status.PodIP + ":8080"
	size := strings.TrimSpace(c.inside(t, "big", "wc -c </bin/busybox"))
	got := c.inside(t, "call-one", "for i in $(seq 50); do timeout 20 wget -qO /tmp/got http://"+at+
		"/busybox && break; sleep 0.1; done; wc -c </tmp/got")
	if strings.TrimSpace(got) != size || len(size) < 6 {
		t.Errorf("of %s bytes, %q came", size, got)
	}
	c.deleteAll(t)
	for _, n := range slices.Backward(c.nodes) {
		n.stop()
	}
}

// createServices makes the Services of all pods that createPods makes; the one with a node port is returned.
func (c *severalNodes) createServices(t *testing.T) *corev1.Service {
	t.Helper()
	all, port := map[string]string{"app": "who"}, []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}}
	c.createService(t, "who", corev1.ServiceSpec{Selector: all, Ports: port})
	c.createService(t, "heads", corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: all, Ports: port})
	return c.createService(t, "outer", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Selector: all, Ports: port,
		IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack)})
}

// createPods makes, on each node that has none, a pod web-NODE that says who calls, and one that calls: call-NODE.
func (c *severalNodes) createPods(t *testing.T) {
	t.Helper()
	for _, n := range c.nodes {
		if _, err := c.c.CoreV1().Pods("default").Get(t.Context(), "web-"+n.host.name, metav1.GetOptions{}); err == nil {
			continue
		}
		web, call := webPod("web-"+n.host.name, map[string]string{"app": "who"}), idlePod("call-"+n.host.name)
		call.Spec.Containers[0] = container("c", "echo here; while :; do sleep 3600; done")
		web.Spec.Hostname, web.Spec.Subdomain = web.Name, "heads"
		for _, p := range []*corev1.Pod{web, call} {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.host.name}
		}
		c.create(t, web, call)
	}
	for _, n := range c.nodes {
		c.ready(t, "web-"+n.host.name, "call-"+n.host.name)
	}
}

// webs are the names of all pods that answer.
func (c *severalNodes) webs() (out []string) {
	for _, n := range c.nodes {
		out = append(out, "web-"+n.host.name)
	}
	slices.Sort(out)
	return out
}

// reachEachOther calls from pods on each node, and from outside, in all ways that there are.
func (c *severalNodes) reachEachOther(t *testing.T, outer *corev1.Service) {
	all := c.webs()
	outside := strconv.Itoa(int(outer.Spec.Ports[0].NodePort))
	for _, from := range c.nodes {
		caller := "call-" + from.host.name
		calling := c.ready(t, caller)
		ip := calling.Status.PodIP
		c.inside(t, caller, c.untilAllAnswer("who", all))
		for _, to := range c.nodes {
			web := c.ready(t, "web-"+to.host.name)
			if web.Spec.NodeName != to.host.name {
				t.Fatalf("pod %s is on node %s", web.Name, web.Spec.NodeName)
			}
			script := ""
			for _, at := range []string{web.Status.PodIP, web.Name + ".heads." + zone, c.six(t, web)} {
				script += "(" + who(net.JoinHostPort(at, "8080")) + ") || exit 1\n"
			}
			names, seen := answers(t, c.inside(t, caller, script))
			want(t, "who answers "+caller+" by address and name", names, web.Name)
			want(t, "whom "+web.Name+" sees when "+caller+" calls", seen, ip, c.six(t, calling))
			// A node port that is this node's own, or another's.
			c.inside(t, caller, c.untilAllAnswer(net.JoinHostPort(to.host.address, outside), all)+"; "+
				c.untilAllAnswer(net.JoinHostPort(to.host.six, outside), all))
		}
		c.inside(t, caller, c.untilAllAnswer(net.JoinHostPort(outer.Spec.ClusterIPs[1], "80"), all))
		names, seen := c.often(t, caller, "who")
		want(t, "who answers at the Service", names, all...)
		want(t, "whom endpoints see at the Service", seen, ip)
		for _, name := range []string{"heads", "kubernetes"} {
			out := c.inside(t, caller, "nslookup -type=a "+name+"."+zone)
			if got, want := strings.Count(out, "Address: "), map[string]int{"heads": len(all), "kubernetes": 1}[name]; got != want {
				t.Errorf("%s has %d addresses, want %d:\n%s", name, got, want, out)
			}
		}
		// From outside, by this node.
		for at, client := range map[string]string{from.host.address: from.host.lan.prefix + "254", from.host.six: from.host.lan.six + "254"} {
			page := ""
			for range 8 * len(all) {
				page += askOutside(t, net.JoinHostPort(at, outside))
			}
			names, seen = answers(t, page)
			want(t, "who answers at the node port of "+at, names, all...)
			if slices.Contains(seen, client) {
				t.Errorf("the policy Cluster shows pods who calls: %q", seen)
			}
		}
		// What the API server does with a node, and with a pod on it.
		if out := c.kubectl("logs", caller); out != "here\n" {
			t.Errorf("logs of a pod on %s say %q", from.host.name, out)
		}
		if out := c.kubectl("get", "--raw", "/api/v1/namespaces/default/pods/web-"+from.host.name+
			":8080/proxy/cgi-bin/who"); !strings.HasPrefix(out, "web-"+from.host.name+" ") {
			t.Errorf("a pod on %s says by the API server %q", from.host.name, out)
		}
	}
}

// six is a pod's address of IPv6.
func (c *severalNodes) six(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	for _, ip := range p.Status.PodIPs {
		if strings.Contains(ip.IP, ":") {
			return ip.IP
		}
	}
	t.Fatalf("pod %s has the addresses %v", p.Name, p.Status.PodIPs)
	return ""
}

// untilAllAnswer asks a URL until all have answered once.
func (c *severalNodes) untilAllAnswer(url string, all []string) string {
	return "i=0; for name in " + strings.Join(all, " ") + "; do until " + askOnce(url) +
		" | grep -q ^$name; do i=$((i+1)); [ $i -lt 150 ] || exit 1; done; done"
}

// askOutside asks an address once from outside of all nodes, until it is answered.
func askOutside(t *testing.T, address string) string {
	t.Helper()
	page, err := page(address, patience)
	if err != nil {
		t.Fatalf("call %s from outside: %v", address, err)
	}
	return page
}

// awaitAnswer waits until an address answers a client outside of all nodes. A node is ready before it has the rules of all Services, as
// with kubelet and kube-proxy.
func awaitAnswer(t *testing.T, address string) {
	t.Helper()
	again, limit := time.NewTicker(50*time.Millisecond), time.After(patience)
	defer again.Stop()
	for {
		_, err := page(address, patience)
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-limit:
			t.Fatalf("call %s from outside: %v", address, err)
		}
	}
}

// cutsOff takes a node's cable out and puts it back.
func (c *severalNodes) cutsOff(t *testing.T, far *realNode) {
	name := far.host.name
	before := far.census(t)
	brief := []corev1.Toleration{ // for the second that it takes to see that they are heeded
		{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			TolerationSeconds: new(int64(1))},
		{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			TolerationSeconds: new(int64(1))},
	}
	template := func(app string) corev1.PodTemplateSpec {
		p := idlePod("")
		p.Spec.Tolerations, p.Labels = brief, map[string]string{"app": app}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname,
					Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}},
			}}}}
		return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels}, Spec: p.Spec}
	}
	selector := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	_, err := c.c.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "roams"}, Spec: appsv1.DeploymentSpec{Selector: selector("roams"), Template: template("roams")},
	}, metav1.CreateOptions{})
	try(t, err)
	_, err = c.c.AppsV1().StatefulSets("default").Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "single"}, Spec: appsv1.StatefulSetSpec{Selector: selector("single"), Template: template("single"),
			ServiceName: "heads"},
	}, metav1.CreateOptions{})
	try(t, err)
	var roaming, single corev1.Pod
	one := func(into *corev1.Pod, is func(corev1.Pod) bool) func([]corev1.Pod) bool {
		return func(pods []corev1.Pod) bool {
			if len(pods) != 1 || !is(pods[0]) {
				return false
			}
			*into = pods[0]
			return true
		}
	}
	awaitPods(t, c.c, "app=roams", patience, one(&roaming, ready))
	awaitPods(t, c.c, "app=single", patience, one(&single, ready))
	for _, p := range []corev1.Pod{roaming, single} {
		if p.Spec.NodeName != name {
			t.Fatalf("pod %s is on node %s, want it on %s", p.Name, p.Spec.NodeName, name)
		}
	}
	kept := c.ready(t, "web-"+name)
	// A pod that somebody gives up for gone while nobody can know; it is made again elsewhere, under its name.
	given := func(node string) *corev1.Pod {
		p := idlePod("given-up")
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
		return p
	}
	c.create(t, given(name))
	c.ready(t, "given-up")

	announced := c.announcedBy(t, far)
	began := time.Now()
	phase := func(what string) {
		t.Logf("%5.1f s: %s", time.Since(began).Seconds(), what)
	}
	far.host.cutOff()
	for _, address := range announced {
		try(t, answered(address, patience))
		phase("another node answers at " + address)
	}
	awaitNode(t, c.c, name, corev1.ConditionUnknown)
	phase("the node's conditions are unknown")
	node, err := c.c.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	try(t, err)
	for _, condition := range node.Status.Conditions {
		if condition.Status != corev1.ConditionUnknown || condition.Reason != "NodeStatusUnknown" ||
			condition.Message != "Kubelet stopped posting node status." {
			t.Errorf("condition %s is %s, %s: %s", condition.Type, condition.Status, condition.Reason, condition.Message)
		}
	}
	lease, err := c.c.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), name, metav1.GetOptions{})
	try(t, err)
	if age := time.Since(lease.Spec.RenewTime.Time); age < 3*time.Second {
		t.Errorf("the node's lease was renewed %s ago", age)
	}
	awaitTaints(t, c, name, "node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule")
	phase("the node is tainted")
	// Its pod is no endpoint any more, and nobody is sent there; it runs on all the same.
	c.pod(t, kept.Name, func(p *corev1.Pod) bool { return !ready(*p) })
	left := slices.DeleteFunc(c.webs(), func(web string) bool { return web == kept.Name })
	for _, n := range c.nodes {
		if n != far {
			c.inside(t, "call-"+n.host.name, `
				in=0
				while [ $in -lt 12 ]; do
					said=$(`+resolve("who")+`timeout 2 wget -qO- http://$at/cgi-bin/who) || said=nobody
					case $said in *`+kept.Name+`*|nobody) in=0; out=$((out+1)); [ $out -lt 100 ] || exit 1;; *) in=$((in+1));; esac
				done`)
			names, _ := c.often(t, "call-"+n.host.name, "who")
			want(t, "who answers without the node", names, left...)
		}
	}
	phase("no Service leads there")
	try(t, far.host.within(func() error {
		_, err := page(kept.Status.PodIP+":8080", 5*time.Second)
		return err
	}))
	// The pod of a Deployment is another's elsewhere; that of a StatefulSet may run still, and has no second.
	awaitPods(t, c.c, "app=roams", patience, func(pods []corev1.Pod) bool {
		return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return ready(p) && p.Spec.NodeName != name })
	})
	phase("what roams is elsewhere")
	awaitPods(t, c.c, "app=single", patience, one(&single, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }))
	try(t, c.c.CoreV1().Pods("default").Delete(t.Context(), "given-up", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	c.create(t, given(c.nodes[0].host.name))
	anew := c.ready(t, "given-up")
	moved := idlePod("moved") // would rather be on the node, like the others
	moved.Spec.Affinity = template("").Spec.Affinity
	c.create(t, moved)
	if p := c.ready(t, "moved"); p.Spec.NodeName == name {
		t.Errorf("a new pod is bound to a node that is cut off")
	}
	if err := c.c.CoreV1().Pods("default").Delete(t.Context(), "moved", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}

	began = time.Now()
	far.host.plugIn()
	awaitNode(t, c.c, name, corev1.ConditionTrue)
	phase("the node is ready again")
	awaitTaints(t, c, name)
	phase("the node has no taints")
	same(t, kept, c.ready(t, kept.Name))
	var again corev1.Pod
	awaitPods(t, c.c, "app=roams", patience, one(&again, func(p corev1.Pod) bool { return ready(p) && p.UID != roaming.UID }))
	phase("what roamed is gone from it")
	awaitPods(t, c.c, "app=single", patience, one(&again, func(p corev1.Pod) bool { return ready(p) && p.UID != single.UID }))
	phase("what is single is there anew")
	for _, kind := range []string{"deployment/roams", "statefulset/single", "service/at-ipv4", "service/at-ipv6"} {
		c.kubectl("delete", kind)
	}
	awaitPods(t, c.c, "app in (roams,single)", patience, func(pods []corev1.Pod) bool { return len(pods) == 0 })
	far.leavesNothing(t, before)
	phase("nothing is left")
	same(t, anew, c.ready(t, "given-up"))
	try(t, c.c.CoreV1().Pods("default").Delete(t.Context(), "given-up", metav1.DeleteOptions{}))
}

// announcedBy makes Services, one of each IP family, with an address of the pool that the node announces, and returns where they answer.
func (c *severalNodes) announcedBy(t *testing.T, n *realNode) (out []string) {
	t.Helper()
	for family, address := range map[corev1.IPFamily]string{ // which node announces it depends on the nodes' names and the address alone
		corev1.IPv4Protocol: "192.168.70.243", corev1.IPv6Protocol: "fd00:70::f4",
	} {
		name := "at-" + strings.ToLower(string(family))
		c.createService(t, name, corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerIP: address, IPFamilies: []corev1.IPFamily{family},
			Selector: map[string]string{"app": "who"},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}},
		})
		awaitEvent(t, c.c, "services", "default", fields.OneTermEqualSelector("metadata.name", name), &corev1.Service{}, patience,
			func(e watch.Event) bool {
				s, ok := e.Object.(*corev1.Service)
				return ok && s.Annotations[v1alpha1.LoadBalancerNodesAnnotation] == address+"="+n.host.name
			})
		at := net.JoinHostPort(address, "80")
		try(t, answered(at, patience))
		out = append(out, at)
	}
	return out
}

// awaitTaints waits until a node has these taints, and no others.
func awaitTaints(t *testing.T, c *severalNodes, name string, taints ...string) {
	t.Helper()
	var has []string
	defer func() {
		if t.Failed() {
			t.Logf("node %s has the taints %q", name, has)
		}
	}()
	awaitEvent(t, c.c, "nodes", "", fields.OneTermEqualSelector("metadata.name", name), &corev1.Node{}, patience, func(e watch.Event) bool {
		node, ok := e.Object.(*corev1.Node)
		if !ok {
			return false
		}
		has = nil
		for _, taint := range node.Spec.Taints {
			has = append(has, taint.Key+":"+string(taint.Effect))
		}
		slices.Sort(has)
		return slices.Equal(has, taints)
	})
}
