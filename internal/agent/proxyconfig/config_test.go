// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxyconfig

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
	"github.com/mortise-dev/mortise/internal/agent/conntrack"
)

const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

func parse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse([]byte(head+text+"\n"), Flags{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDefaults has what kube-proxy 1.37 makes of an empty file, as its --write-config-to shows it.
func TestDefaults(t *testing.T) {
	data, err := os.ReadFile("testdata/defaults.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := &proxyv1alpha1.KubeProxyConfiguration{}
	if err := yaml.UnmarshalStrict(data, want); err != nil {
		t.Fatal(err)
	}
	want.FeatureGates = map[string]bool{}
	empty := parse(t, "")
	if diff := cmp.Diff(want, empty.KubeProxyConfiguration); diff != "" {
		t.Error(diff)
	}
	all, err := Parse(data, Flags{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, all.KubeProxyConfiguration); diff != "" {
		t.Error(diff)
	}
	// Who writes all of it down means loopback.
	if diff := cmp.Diff([]string{"node ports are never on loopback addresses"}, all.Warnings()); diff != "" {
		t.Error(diff)
	}
	if w := empty.Warnings(); len(w) != 0 {
		t.Errorf("an empty file: %q", w)
	}
}

func TestKubeadmsFileLoads(t *testing.T) {
	c, err := Load("testdata/kubeadm.yaml", Flags{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"clientConnection is without effect: the proxy uses the node's client of the API server"},
		c.Warnings()); diff != "" {
		t.Error(diff)
	}
	if c.Mode != "iptables" || c.MasqueradeAll() || c.MasqueradeMark() != 0x4000 || c.SyncPeriod() != 30*time.Second ||
		c.MinSyncPeriod() != 0 || len(c.NodePortPrefixes()) != 0 {
		t.Errorf("settings: %+v", c)
	}
	if diff := cmp.Diff([]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, c.PodCIDRs(),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if c.HealthzBindAddress != "0.0.0.0:10256" || c.MetricsBindAddress != "127.0.0.1:10249" || c.Tracking(8) != (conntrack.Settings{}) ||
		c.Address().IsValid() {
		t.Errorf("settings: %+v, connections %+v", c, c.Tracking(8))
	}
}

// The errors are those of kube-proxy 1.37.1 for the same files.
func TestRefused(t *testing.T) {
	const at = "KubeProxyConfiguration."
	const conntrack = at + "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration."
	for name, c := range map[string]struct{ text, want string }{
		"masquerade bit": {"iptables: {masqueradeBit: 32}",
			at + "KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: 32: must be within the range [0, 31]"},
		"masquerade bit by nftables": {"mode: nftables\nnftables: {masqueradeBit: -1}",
			at + "KubeProxyNFTablesConfiguration.MasqueradeBit: Invalid value: -1: must be within the range [0, 31]"},
		"mode": {"mode: userspace", at + `Mode.ProxyMode: Invalid value: "userspace": must be iptables, ipvs, nftables or blank (blank means the best-available proxy [currently iptables])`},
		"conntrack": {"conntrack: {maxPerCore: -1, min: -2, tcpEstablishedTimeout: -1s, tcpCloseWaitTimeout: -2s, udpTimeout: -3s, udpStreamTimeout: -4s}",
			"[" + conntrack + "MaxPerCore: Invalid value: -1: must be greater than or equal to 0, " + conntrack +
				"Min: Invalid value: -2: must be greater than or equal to 0, " +
				conntrack + `TCPEstablishedTimeout: Invalid value: "-1s": must be greater than or equal to 0, ` + conntrack +
				`TCPCloseWaitTimeout: Invalid value: "-2s": must be greater than or equal to 0, ` +
				conntrack + `UDPTimeout: Invalid value: "-3s": must be greater than or equal to 0, ` + conntrack +
				`UDPStreamTimeout: Invalid value: "-4s": must be greater than or equal to 0]`},
		"oom score": {"oomScoreAdj: 2000", at +
			"KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: 2000: must be within the range [-1000, 1000]"},
		"burst": {"clientConnection: {burst: -1}", at + "ClientConnection.Burst: Invalid value: -1: must be greater than or equal to 0"},
		"periods": {"configSyncPeriod: -1s\niptables: {syncPeriod: -1s, minSyncPeriod: -2s}",
			"[" + at + `ConfigSyncPeriod: Invalid value: "-1s": must be greater than 0, ` +
				at + `SyncPeriod: Invalid value: "-1s": must be greater than 0, ` + at +
				`MinSyncPeriod: Invalid value: "-2s": must be greater than or equal to 0]`},
		"period below the least": {"iptables: {syncPeriod: 1s, minSyncPeriod: 2s}",
			at + `SyncPeriod: Invalid value: "2s": must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod`},
		"periods by nftables": {"mode: nftables\nnftables: {minSyncPeriod: 1m}",
			at + `SyncPeriod: Invalid value: "1m0s": must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod`},
		"address": {"bindAddress: here", at + `BindAddress: Invalid value: "here": not a valid textual representation of an IP address`},
		"pages": {"healthzBindAddress: '127.0.0.1:70000'\nmetricsBindAddress: 'localhost:10249'",
			"[" + at + `HealthzBindAddress: Invalid value: "70000": must be a valid port, ` +
				at + `MetricsBindAddress: Invalid value: "localhost": must be a valid IP]`},
		"page without a port": {"metricsBindAddress: a", at + `MetricsBindAddress: Invalid value: "a": must be IP:port`},
		"node ports": {"nodePortAddresses: [eth0, primary, primary, 10.0.0.0/8]",
			"[" + at + `NodePortAddresses[0]: Invalid value: "eth0": must be a valid CIDR or one of the keywords 'primary', 'localhost', 'all', ` +
				at + `NodePortAddresses[2]: Duplicate value: "primary"]`},
		"hidden metrics": {"showHiddenMetricsForVersion: '1.2'",
			at + `ShowHiddenMetricsForVersion: Invalid value: "1.2": invalid showHiddenMetricsForVersion: showHiddenMetricsForVersion: Invalid value: "1.2": ` +
				"must be omitted or have the value '1.36'; only the previous minor version is allowed"},
		"local mode": {"detectLocalMode: Guess",
			at + `DetectLocalMode: Unsupported value: "Guess": supported values: "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix", ""`},
		"bridge": {"detectLocalMode: BridgeInterface",
			at + `DetectLocalConfiguration.InterfaceName: Invalid value: "": must not be empty`},
		"prefix of interfaces": {"detectLocalMode: InterfaceNamePrefix",
			at + `DetectLocalConfiguration.InterfacePrefix: Invalid value: "": must not be empty`},
		"cluster range": {"clusterCIDR: 10.0.0.0",
			at + `DetectLocalConfiguration.ClusterCIDRs[0]: Invalid value: "10.0.0.0": must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)`},
		"cluster ranges": {"clusterCIDR: '10.0.0.0/8,11.0.0.0/8'",
			at + `DetectLocalConfiguration.ClusterCIDRs: Invalid value: ["10.0.0.0/8","11.0.0.0/8"]: ` +
				"must be a either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]"},
		"log format": {"logging: {format: xml, verbosity: 3}", at + `logging.format: Invalid value: "xml": Unsupported log format`},
		"log options": {"logging: {options: {text: {splitStream: true}}}",
			at + "logging.options.text.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled"},
		"gate": {"featureGates: {NoSuchGate: true}",
			at + `featureGates: Invalid value: {"NoSuchGate":true}: unrecognized feature gate: NoSuchGate`},
		"locked gate": {"featureGates: {NFTablesProxyMode: false}",
			at + `featureGates: Invalid value: {"NFTablesProxyMode":false}: cannot set feature gate NFTablesProxyMode to false, feature is locked to true`},

		// What follows is Mortise's own.
		"ipvs":          {"mode: ipvs", "mode ipvs is not supported: Kubernetes deprecated it and removes it in 1.43; use nftables, or leave the mode empty"},
		"interface":     {"detectLocal: {bridgeInterface: 'a b'}", `detectLocal.bridgeInterface "a b" is no name of an interface`},
		"two documents": {"mode: iptables\n---\nmode: nftables", "want one document, found more"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(head+c.text+"\n"), Flags{})
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(c.want, err.Error()); diff != "" {
				t.Error(diff)
			}
		})
	}
	for name, text := range map[string]string{
		"no kind":       "mode: iptables\n",
		"other kind":    "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: Config\n",
		"other version": "apiVersion: kubeproxy.config.k8s.io/v1\nkind: KubeProxyConfiguration\n",
		"other group":   "apiVersion: v1\nkind: Pod\n",
		"no YAML":       "{",
		"empty":         "",
		"wrong type":    head + "iptables: all\n",
	} {
		if _, err := Parse([]byte(text), Flags{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestTaken(t *testing.T) {
	for name, text := range map[string]string{
		"gates":       "featureGates: {AllAlpha: false, ContextualLogging: true, KubeProxyNFTablesLocalhostNodePorts: true, GitRepoVolumeDriver: false}",
		"JSON logs":   "logging: {format: json, verbosity: 4}",
		"alpha logs":  "featureGates: {LoggingAlphaOptions: true}\nlogging: {options: {text: {splitStream: true}}}",
		"IPv6":        "bindAddress: '::'\nclusterCIDR: fd00::/56\nhealthzBindAddress: '[::1]:10256'",
		"another set": "mode: iptables\nnftables: {masqueradeBit: 40}\nipvs: {tcpTimeout: -1s}",
	} {
		t.Run(name, func(t *testing.T) { parse(t, text) })
	}
	if c := parse(t, "healthzBindAddress: 127.000.0.1"); c.HealthzAddress() != "127.0.0.1:10256" || c.MetricsAddress() != "127.0.0.1:10249" {
		t.Errorf("addresses: %q, %q", c.HealthzAddress(), c.MetricsAddress())
	}
	c := parse(t, "bindAddress: 'fd00::7'\nmetricsBindAddress: '::1'")
	if c.HealthzBindAddress != "[::]:10256" || c.MetricsBindAddress != "[::1]:10249" || c.Address() != netip.MustParseAddr("fd00::7") {
		t.Errorf("addresses: %q, %q, %q", c.HealthzBindAddress, c.MetricsBindAddress, c.Address())
	}
}

// TestLenient is kube-proxy's rule for this version: what is unknown or there twice is said, and passed over.
func TestLenient(t *testing.T) {
	for text, want := range map[string]string{
		"modus: nftables\nmode: iptables":               `unknown field "modus"`,
		"iptables: {masqueradeall: true}":               `unknown field "iptables.masqueradeall"`,
		"configSyncPeriod: 1m\nconfigSyncPeriod: 15m0s": `key "configSyncPeriod" already set in map`,
		"resourceContainer: /kube-proxy":                `unknown field "resourceContainer"`,
	} {
		w := parse(t, text).Warnings()
		if len(w) != 1 || !strings.HasPrefix(w[0], "Using lenient decoding as strict decoding failed: ") || !strings.Contains(w[0], want) {
			t.Errorf("%s: %q", text, w)
		}
	}
}

func TestWhatIsWithoutEffectIsSaid(t *testing.T) {
	got := parse(t, "hostnameOverride: a\nipvs: {strictARP: true}\nconntrack: {min: 5}\nnodePortAddresses: [localhost, 10.0.0.0/8]\nfeatureGates: {WinDSR: true}\n").Warnings()
	want := []string{
		"hostnameOverride is without effect: the proxy uses the name of its node",
		"ipvs.strictARP is without effect: Mortise has no mode ipvs",
		"featureGates are without effect beyond what is checked of this configuration",
		"node ports are never on loopback addresses",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSettings(t *testing.T) {
	for _, c := range []struct {
		text  string
		flags Flags
		all   bool
		mark  int
		least time.Duration
		ports []string
		mode  string
	}{
		{text: "iptables: {masqueradeAll: true, masqueradeBit: 3, minSyncPeriod: 2s}", all: true, mark: 3, least: 2 * time.Second},
		{text: "mode: nftables\niptables: {masqueradeAll: true, masqueradeBit: 3, minSyncPeriod: 2s}", mark: 14, ports: []string{"primary"},
			mode: "nftables"},
		{text: "mode: nftables\nnftables: {masqueradeAll: true, masqueradeBit: 5, minSyncPeriod: 3s}\nnodePortAddresses: [all]", all: true,
			mark: 5, least: 3 * time.Second,
			ports: []string{"0.0.0.0/0", "::/0"}, mode: "nftables"},
		{text: "nodePortAddresses: [localhost, 010.1.2.3/8, primary, fd00::1/64]", mark: 14,
			ports: []string{"127.0.0.0/8", "::1/128", "10.0.0.0/8", "primary", "fd00::/64"}},
		// The command line wins, and chooses the section.
		{text: "mode: iptables\nnftables: {masqueradeBit: 5}", flags: Flags{Mode: "nftables"}, mark: 5, ports: []string{"primary"},
			mode: "nftables"},
		{text: "mode: ipvs", flags: Flags{Mode: "iptables"}, mark: 14, mode: "iptables"},
		{text: "iptables: {masqueradeAll: true}\nnodePortAddresses: [primary]",
			flags: Flags{MasqueradeAll: new(false), NodePortAddresses: []string{"10.0.0.0/8"}}, mark: 14, ports: []string{"10.0.0.0/8"}},
		{text: "mode: nftables\nnodePortAddresses: [all]", flags: Flags{MasqueradeAll: new(true)}, all: true, mark: 14,
			ports: []string{"0.0.0.0/0", "::/0"}, mode: "nftables"},
	} {
		got, err := Parse([]byte(head+c.text+"\n"), c.flags)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got.MasqueradeAll() != c.all || got.MasqueradeMark() != 1<<c.mark || got.MinSyncPeriod() != c.least || string(got.Mode) != c.mode {
			t.Errorf("%s: masquerade all %v by mark %#x, rest %v, mode %q", c.text, got.MasqueradeAll(), got.MasqueradeMark(), got.MinSyncPeriod(),
				got.Mode)
		}
		if diff := cmp.Diff(c.ports, got.NodePortPrefixes()); diff != "" {
			t.Errorf("%s: %s", c.text, diff)
		}
	}
}

func TestWhoIsAPod(t *testing.T) {
	for _, c := range []struct {
		text   string
		ranges string
		node   bool
		name   string
		begins bool
	}{
		{text: ""},
		{text: "clusterCIDR: '10.0.0.0/8,fd00::/56'", ranges: "[10.0.0.0/8 fd00::/56]"},
		{text: "clusterCIDR: 10.0.0.0/8\ndetectLocalMode: NodeCIDR", node: true},
		{text: "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0, interfaceNamePrefix: veth}", name: "cni0"},
		{text: "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {bridgeInterface: cni0, interfaceNamePrefix: veth}", name: "veth",
			begins: true},
	} {
		got := parse(t, c.text)
		text := ""
		if r := got.PodCIDRs(); r != nil {
			text = strings.ReplaceAll(strings.TrimSpace(cmpText(r)), ",", "")
		}
		name, begins := got.PodInterface()
		if text != c.ranges || got.NodePods() != c.node || name != c.name || begins != c.begins {
			t.Errorf("%s: ranges %s, node %v, interface %q %v", c.text, text, got.NodePods(), name, begins)
		}
	}
}

func cmpText(list []netip.Prefix) string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
	}
	return "[" + strings.Join(texts, " ") + "]"
}

func TestTracking(t *testing.T) {
	for text, want := range map[string]conntrack.Settings{
		"":                                {},
		"conntrack: {maxPerCore: 100000}": {Max: 400000},
		"conntrack: {min: 7}":             {Max: 131072},
		"conntrack: {min: 200000}":        {Max: 200000},
		"conntrack: {maxPerCore: 0, min: 200000}":              {},
		"conntrack: {maxPerCore: 1000000}":                     {Max: 1 << 20},
		"conntrack: {maxPerCore: 2000000000, min: 2000000000}": {Max: 1 << 20},
		"conntrack: {tcpEstablishedTimeout: 2h, tcpCloseWaitTimeout: 0s, tcpBeLiberal: true, udpTimeout: 30s, udpStreamTimeout: 3m}": {
			TCPEstablished: 2 * time.Hour, TCPBeLiberal: true, UDPUnreplied: 30 * time.Second, UDPAssured: 3 * time.Minute},
	} {
		if diff := cmp.Diff(want, parse(t, text).Tracking(4)); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
}

// TestEveryFieldIsInTheTable holds fields.go to the type, and the documentation to fields.go.
func TestEveryFieldIsInTheTable(t *testing.T) {
	var got []string
	for _, f := range Fields() {
		got = append(got, f.Name)
	}
	if diff := cmp.Diff(componentconfig.Names(reflect.TypeFor[proxyv1alpha1.KubeProxyConfiguration](), sections()...), got); diff != "" {
		t.Error(diff)
	}
	text, err := os.ReadFile("../../../docs/kube-proxy-configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if table := componentconfig.Table(Fields()); !strings.Contains(string(text), table) {
		t.Errorf("docs/kube-proxy-configuration.md does not have the table:\n%s", table)
	}
}

func TestMissingFilesAreErrors(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "none"), dir, empty} {
		if _, err := Load(path, Flags{}); err == nil {
			t.Errorf("%s: no error", path)
		}
	}
}

func FuzzParse(f *testing.F) {
	// Short ones: those of testdata keep the fuzzer busy with making less of them.
	f.Add([]byte(head + "mode: iptables\niptables: {masqueradeBit: 3, syncPeriod: 1m}\nclusterCIDR: 10.0.0.0/8,fd00::/56\n"))
	f.Add([]byte(head + "nodePortAddresses: ['::ffff:10.0.0.0/90', all, 010.0.0.0/8]\nclusterCIDR: ','\n"))
	f.Add([]byte(head + "logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}\nunknown: 1\nmode: nftables\nconntrack: {min: 1}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, Flags{})
		if err != nil {
			return
		}
		if err := Validate(c.KubeProxyConfiguration); err != nil {
			t.Errorf("a configuration that was taken is refused: %v", err)
		}
		for _, text := range c.NodePortPrefixes() {
			if _, err := netip.ParsePrefix(text); err != nil && text != primary {
				t.Errorf("node port address %q: %v", text, err)
			}
		}
		if len(c.NodePortPrefixes()) < len(c.NodePortAddresses) {
			t.Errorf("node port addresses %q are %q", c.NodePortAddresses, c.NodePortPrefixes())
		}
		c.Warnings()
		c.PodCIDRs()
		c.Address()
		if n := c.Tracking(64).Max; n < 0 {
			t.Errorf("%d connections", n)
		}
	})
}
