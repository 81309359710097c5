// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestNodeProxyConfiguration has a node whose Services are as a file of kube-proxy says, for each mode: where node ports are, who is
// masqueraded and by which mark, kube-proxy's own pages, and the kernel's settings of connections.
func TestNodeProxyConfiguration(t *testing.T) {
	if !alone(t) {
		return
	}
	n := startNode(t)
	n.create(t, webPod("web", map[string]string{"app": "web"}))
	n.ready(t, "web")
	svc := n.createService(t, "web", corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "web"},
		Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080), NodePort: 30080}},
	})
	usual := n.args
	file := filepath.Join(filepath.Dir(n.dir), "proxy.conf")
	for mode, rules := range map[string]struct {
		list []string // the rules of masquerading
		mark string
		udp  string // in seconds
	}{
		"nftables": {[]string{"nft", "list", "chain", "ip", "mortise-proxy", "masquerading"}, "0x00000020", "17"},
		"iptables": {[]string{"iptables-save", "-t", "nat"}, "0x20/0x20", "19"},
	} {
		t.Run(mode, func(t *testing.T) {
			n.stop()
			n.write(t, file, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: `+mode+`
`+mode+`: {masqueradeBit: 5, masqueradeAll: true}
nodePortAddresses: [primary]
conntrack: {udpTimeout: `+rules.udp+`s}
healthzBindAddress: 127.0.0.1
metricsBindAddress: 127.0.0.1
bindAddressHardFail: true
`)
			n.args = append(usual, "--proxy-config", file)
			n.up(t)
			// A pod that is made now runs when the node has taken up its pods again.
			caller := "caller-" + mode
			n.create(t, idlePod(caller))
			at, err := netip.ParseAddr(n.ready(t, caller).Status.PodIP)
			if err != nil {
				t.Fatal(err)
			}
			bridge := netip.PrefixFrom(at, 24).Masked().Addr().Next().String()
			_, seen := n.often(t, caller, svc.Spec.ClusterIP)
			want(t, "whom a pod's Service sees", seen, bridge)
			names, _ := n.callsFrom(t, nodeAddress+":30080")
			want(t, "who is on the node port", names, "web")
			if page, err := n.call(bridge + ":30080"); err == nil {
				t.Errorf("the node port is on another address too: %s", page)
			}
			list, err := exec.CommandContext(t.Context(), rules.list[0], rules.list[1:]...).CombinedOutput()
			if err != nil || !strings.Contains(string(list), rules.mark) {
				t.Errorf("%v: %v\n%s", rules.list, err, list)
			}
			udp, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout")
			if got := strings.TrimSpace(string(udp)); err != nil || got != rules.udp {
				t.Errorf("flows of UDP are kept for %s s: %v", got, err)
			}
			for url, text := range map[string]string{
				"http://127.0.0.1:10256/healthz":   `"nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":`,
				"http://127.0.0.1:10256/livez":     `"healthy":true`,
				"http://127.0.0.1:10249/healthz":   "ok",
				"http://127.0.0.1:10249/proxyMode": mode,
				"http://127.0.0.1:10249/configz":   `"mode":"` + mode + `"`,
				"http://127.0.0.1:10249/metrics":   "kubeproxy_sync_proxy_rules_duration_seconds_count",
			} {
				r, err := http.Get(url)
				if err != nil {
					t.Error(err)
					continue
				}
				body, err := io.ReadAll(r.Body)
				r.Body.Close()
				if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(body), text) {
					t.Errorf("%s: %v %s %.300s", url, err, r.Status, body)
				}
			}
			if c, err := net.Dial("tcp", net.JoinHostPort(nodeAddress, "10256")); err == nil {
				c.Close()
				t.Error("the health is also served at the node's address")
			}
		})
	}
	n.deleteAll(t)
	n.stop()
}
