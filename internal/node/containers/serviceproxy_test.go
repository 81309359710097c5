// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/agent/proxy"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/internal/node"
)

// proxyFile writes a KubeProxyConfiguration.
func proxyFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.conf")
	if err := os.WriteFile(path, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+text+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// configured is what a proxy is made from, by a file and flags.
func configured(t *testing.T, text string, flags ...string) (*Plan, proxy.Options, ruler, *bytes.Buffer, error) {
	t.Helper()
	var all options.APIServer
	f := pflag.NewFlagSet("up", pflag.ContinueOnError)
	all.AddFlags(f)
	if err := f.Parse(append(flags, "--proxy-config", proxyFile(t, text))); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	p := &Plan{Options: node.Options{
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Network: all.Network, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}}
	if err := p.checkNetwork(); err != nil {
		t.Fatal(err)
	}
	w := &networking{plan: p, log: p.Logger}
	process, err := lifecycle.Start(t.Context(), []lifecycle.Step[*networking]{
		{Name: "stop the pages", Stop: func(w *networking) error { w.parts.Stop(); return nil }},
	}, func(process *lifecycle.Process) *networking { w.parts = process.Group(); return w })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := process.Stop(); err != nil {
			t.Error(err)
		}
	})
	made := proxy.Options{PodCIDRs: p.PodCIDRs}
	rules := ruler{mode: string(p.proxying.Mode), log: p.Logger, shown: &atomic.Value{}}
	err = w.configureProxy(t.Context(), rules, &made)
	return p, made, rules, &log, err
}

// free is an address of this machine alone that nobody has.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func pagesAt(health, metrics string) string {
	return fmt.Sprintf("healthzBindAddress: %s\nmetricsBindAddress: %s\n", health, metrics)
}

func TestAProxysFileReachesIt(t *testing.T) {
	type reached struct {
		NodePorts, Pods string
		All, NodePods   bool
		Mark            uint32
		Sync, Least     time.Duration
		Interface       string
		Begins          bool
		Address, Mode   string
	}
	usual := reached{NodePorts: "[]", Pods: "[10.244.0.0/16]", Mark: 0x4000, Sync: 30 * time.Second, Address: "invalid IP"}
	with := func(change func(*reached)) reached {
		r := usual
		change(&r)
		return r
	}
	for name, c := range map[string]struct {
		text  string
		flags []string
		want  reached
	}{
		"nothing": {"", nil, usual},
		"nftables": {"mode: nftables\nnftables: {masqueradeAll: true, masqueradeBit: 3, syncPeriod: 1m, minSyncPeriod: 2s}", nil,
			with(func(r *reached) {
				r.Mode, r.NodePorts, r.All, r.Mark, r.Sync, r.Least = "nftables", "[primary]", true, 8, time.Minute, 2*time.Second
			})},
		"iptables": {"mode: iptables\niptables: {masqueradeAll: true}\nnodePortAddresses: [10.0.0.0/8, localhost]\nclusterCIDR: 10.0.0.0/9\nbindAddress: 10.1.2.3", nil, with(func(r *reached) {
			r.Mode, r.NodePorts, r.All, r.Pods, r.Address = "iptables", "[10.0.0.0/8 127.0.0.0/8 ::1/128]", true, "[10.0.0.0/9]", "10.1.2.3"
		})},
		"flags win": {"mode: iptables\niptables: {masqueradeAll: true}\nnodePortAddresses: [10.0.0.0/8]",
			[]string{"--masquerade-all=false", "--nodeport-addresses", "192.168.0.0/16", "--proxy-mode", "nftables"}, with(func(r *reached) {
				r.Mode, r.NodePorts = "nftables", "[192.168.0.0/16]"
			})},
		"a flag":           {"", []string{"--masquerade-all"}, with(func(r *reached) { r.All = true })},
		"pods by the node": {"detectLocalMode: NodeCIDR", nil, with(func(r *reached) { r.NodePods = true })},
		"pods by names": {"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}", nil,
			with(func(r *reached) { r.Interface, r.Begins = "veth", true })},
	} {
		t.Run(name, func(t *testing.T) {
			p, made, _, _, err := configured(t, c.text+"\n"+pagesAt(free(t), free(t)), c.flags...)
			if err != nil {
				t.Fatal(err)
			}
			got := reached{
				NodePorts: fmt.Sprint(made.NodePortAddresses), Pods: fmt.Sprint(made.PodCIDRs), All: made.MasqueradeAll, NodePods: made.NodePods,
				Mark: made.MasqueradeMark,
				Sync: made.SyncPeriod, Least: made.MinSyncPeriod, Interface: made.PodInterface, Begins: made.PodInterfaceBegins,
				Address: made.Address.String(), Mode: string(p.proxying.Mode),
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAProxysPages(t *testing.T) {
	health, metrics := free(t), free(t)
	_, _, rules, log, err := configured(t, "bindAddressHardFail: true\nhostnameOverride: another\nclusterCIDR: 10.0.0.0/8\n"+
		pagesAt(health, metrics))
	if err != nil {
		t.Fatal(err)
	}
	get := func(url string) (int, string) {
		t.Helper()
		r, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(body)
	}
	for url, want := range map[string]struct {
		code int
		text string
	}{
		"http://" + health + "/healthz":       {503, `"nodeEligible":false,"healthy":true`}, // no node was seen yet
		"http://" + health + "/livez":         {200, `"healthy":true`},
		"http://" + metrics + "/healthz":      {200, "ok"},
		"http://" + metrics + "/proxyMode":    {200, "nftables"},
		"http://" + metrics + "/metrics":      {200, "kubeproxy_sync_proxy_rules_service_changes_total 0"},
		"http://" + metrics + "/configz":      {200, `"hostnameOverride":"another"`},
		"http://" + metrics + "/debug/pprof/": {404, ""},
	} {
		if code, text := get(url); code != want.code || !strings.Contains(text, want.text) {
			t.Errorf("%s: %d %.500s", url, code, text)
		}
	}
	if _, text := get("http://" + metrics + "/configz"); !strings.HasPrefix(text,
		`{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration","apiVersion":"kubeproxy.config.k8s.io/v1alpha1"`) {
		t.Errorf("configz: %.200s", text)
	}
	rules.shown.Store("iptables")
	if _, text := get("http://" + metrics + "/proxyMode"); text != "iptables" {
		t.Errorf("mode %q", text)
	}
	for _, want := range []string{"hostnameOverride is without effect",
		"Services take [10.0.0.0/8] for the ranges of pods, by clusterCIDR; --pod-cidr has [10.244.0.0/16]"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is missing in the log: %s", want, log)
		}
	}
}

// TestAPortOfAProxyIsTaken ends the start only where the file says so.
func TestAPortOfAProxyIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, _, _, _, err := configured(t, pagesAt(l.Addr().String(), free(t))); err != nil {
		t.Errorf("it is tried again later: %v", err)
	}
	_, _, _, _, err = configured(t, "bindAddressHardFail: true\n"+pagesAt(l.Addr().String(), free(t)))
	if err == nil || !strings.Contains(err.Error(), "serve the health of the service proxy: ") {
		t.Errorf("error %v", err)
	}
}
