// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// staysLocal has Services that keep calls on a node, or near it: two nodes have an endpoint each, the third has none.
func (c *severalNodes) staysLocal(t *testing.T, without *realNode) {
	one, two := c.nodes[0], c.nodes[1]
	for n, zone := range map[*realNode]string{one: "a", two: "b", without: "a"} {
		c.kubectl("label", "node", n.host.name, corev1.LabelTopologyZone+"="+zone)
	}
	spec := func(change func(*corev1.ServiceSpec)) corev1.ServiceSpec {
		s := corev1.ServiceSpec{Selector: map[string]string{"app": "who"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}}}
		change(&s)
		return s
	}
	local := c.createService(t, "local", spec(func(s *corev1.ServiceSpec) {
		s.Type = corev1.ServiceTypeLoadBalancer
		s.ExternalTrafficPolicy, s.InternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal, new(corev1.ServiceInternalTrafficPolicyLocal)
	}))
	near := c.createService(t, "near", spec(func(s *corev1.ServiceSpec) {
		s.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameNode)
	}))
	zonal := c.createService(t, "zonal", spec(func(s *corev1.ServiceSpec) {
		s.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameZone)
	}))
	inside := func(s *corev1.Service) string { return net.JoinHostPort(s.Spec.ClusterIP, "80") }

	client := one.host.lan.prefix + "254"
	for _, n := range []*realNode{one, two} {
		web := "web-" + n.host.name
		c.awaitHealth(t, n, local, http.StatusOK, 1)
		seen := c.only(t, nil, net.JoinHostPort(n.host.address, strconv.Itoa(int(local.Spec.Ports[0].NodePort))), web)
		want(t, "whom "+web+" sees of a client outside", seen, client)
		for _, s := range []*corev1.Service{local, near, zonal} {
			c.only(t, n, inside(s), web)
		}
	}
	c.awaitHealth(t, without, local, http.StatusServiceUnavailable, 0)
	if _, err := page(net.JoinHostPort(without.host.address, strconv.Itoa(int(local.Spec.Ports[0].NodePort))), time.Second); err == nil {
		t.Error("a node without endpoints sends a client outside on to another")
	}
	if _, err := c.from(without, inside(local), time.Second); err == nil {
		t.Error("a node without endpoints sends a client of its own on to another")
	}
	for zone, webs := range map[string][]string{"a": {"web-" + one.host.name}, "c": c.webs()} { // none on the node; one in the zone, or none
		c.kubectl("label", "--overwrite", "node", without.host.name, corev1.LabelTopologyZone+"="+zone)
		c.only(t, without, inside(zonal), webs...)
		c.only(t, without, inside(near), webs...)
	}
	for _, s := range []*corev1.Service{local, near, zonal} {
		if err := c.c.CoreV1().Services("default").Delete(t.Context(), s.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	c.kubectl("label", "node", "--all", corev1.LabelTopologyZone+"-")
}

// from asks an address once, from the host of a node; from outside for nil.
func (c *severalNodes) from(n *realNode, address string, limit time.Duration) (text string, err error) {
	if n == nil {
		return page(address, limit)
	}
	err = n.host.within(func() error {
		text, err = page(address, limit)
		return err
	})
	return text, err
}

// only asks an address until those pods, and no others, have answered all of a number of calls, and returns whom they saw in these.
// The rules follow endpoints, their hints and the node's zone, each in its own time.
func (c *severalNodes) only(t *testing.T, n *realNode, address string, webs ...string) (seen []string) {
	t.Helper()
	said, limit := "", time.Now().Add(patience)
	for time.Now().Before(limit) {
		out := ""
		for range 8 * len(webs) {
			text, err := c.from(n, address, 5*time.Second)
			if said = fmt.Sprintf("%q, %v", text, err); err != nil {
				out = ""
				break
			}
			out += text
		}
		if out == "" {
			continue
		}
		names, seen := answers(t, out)
		if slices.Equal(names, webs) {
			return seen
		}
		said = fmt.Sprintf("%q", names)
	}
	t.Fatalf("at %s there answers %s, want %q", address, said, webs)
	return nil
}

// awaitHealth asks a node's health port of a Service until it has that many endpoints there, and says so.
func (c *severalNodes) awaitHealth(t *testing.T, n *realNode, s *corev1.Service, code, endpoints int) {
	t.Helper()
	said, limit := "", time.Now().Add(patience)
	for time.Now().Before(limit) {
		r, err := http.Get("http://" + net.JoinHostPort(n.host.address, strconv.Itoa(int(s.Spec.HealthCheckNodePort))))
		if err != nil {
			said = err.Error()
			continue
		}
		text, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			said = err.Error()
			continue
		}
		var health struct{ LocalEndpoints int }
		if err := json.Unmarshal(text, &health); err != nil {
			t.Fatalf("the health port of %s says %q: %v", n.host.name, text, err)
		}
		if r.StatusCode == code && health.LocalEndpoints == endpoints {
			return
		}
		said = r.Status + " " + string(text)
	}
	t.Fatalf("the health port of %s says %s", n.host.name, said)
}
