// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/netfilter"
)

// memory is iptables without a kernel. It refuses what iptables-restore does: rules of chains that are not there, jumps to such, and to
// delete a chain that is in use.
type memory struct {
	mu     sync.Mutex
	tables map[string]map[string][]string // rules by chain
	last   string
}

func newMemory() *memory {
	chains := func(names ...string) map[string][]string {
		out := map[string][]string{}
		for _, n := range names {
			out[n] = nil
		}
		return out
	}
	return &memory{tables: map[string]map[string][]string{
		"filter": chains("INPUT", "FORWARD", "OUTPUT"), "mangle": chains("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
		"nat": chains("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
	}}
}

func (m *memory) Save(context.Context) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out strings.Builder
	for _, table := range slices.Sorted(maps.Keys(m.tables)) {
		chains := slices.Sorted(maps.Keys(m.tables[table]))
		out.WriteString("*" + table + "\n")
		for _, c := range chains {
			out.WriteString(":" + c + " - [0:0]\n")
		}
		for _, c := range chains {
			for _, r := range m.tables[table][c] {
				out.WriteString("-A " + c + " " + r + "\n")
			}
		}
		out.WriteString("COMMIT\n")
	}
	return out.String(), nil
}

func (m *memory) Restore(_ context.Context, text string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = text
	var name string
	var chains map[string][]string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if err := m.line(line, &name, &chains); err != nil {
			return fmt.Errorf("%s: %q: %w", name, line, err)
		}
	}
	return nil
}

func (m *memory) line(line string, name *string, chains *map[string][]string) error {
	switch {
	case line[0] == '*':
		*name = line[1:]
		*chains = maps.Clone(m.tables[*name])
		return nil
	case line == "COMMIT":
		for c, rules := range *chains {
			for _, r := range rules {
				if to := target(r); strings.HasPrefix(to, ipTablesPrefix) {
					if _, is := (*chains)[to]; !is {
						return fmt.Errorf("%s leads to %s, which is not there", c, to)
					}
				}
			}
		}
		m.tables[*name] = *chains
		return nil
	case line[0] == ':':
		c, _, _ := strings.Cut(line[1:], " ")
		(*chains)[c] = nil
		return nil
	}
	verb, rest := line[:2], line[3:]
	c, rule, _ := strings.Cut(rest, " ")
	rules, is := (*chains)[c]
	if !is {
		return fmt.Errorf("no chain %s", c)
	}
	switch verb {
	case "-A":
		(*chains)[c] = append(slices.Clip(rules), rule)
	case "-I":
		(*chains)[c] = slices.Insert(slices.Clone(rules), 0, rule)
	case "-D":
		i := slices.Index(rules, rule)
		if i < 0 {
			return fmt.Errorf("no such rule")
		}
		(*chains)[c] = slices.Delete(slices.Clone(rules), i, i+1)
	case "-X":
		if len(rules) > 0 {
			return fmt.Errorf("it is not empty")
		}
		delete(*chains, c)
	default:
		return fmt.Errorf("no such verb")
	}
	return nil
}

// target is the chain that a rule leads to.
func target(rule string) string {
	words := strings.Fields(rule)
	for i, w := range words[:len(words)-1] {
		if w == "-j" || w == "-g" {
			return words[i+1]
		}
	}
	return ""
}

// memorySyncer has iptables in memory; the first is of IPv4.
func memorySyncer(t testing.TB, src source) (*syncer, []*memory) {
	t.Helper()
	all := []*memory{newMemory(), newMemory()}
	s := opened(t, src, Options{Backend: netfilter.IPTables, OpenXTables: func(v6 bool) (XTables, error) {
		if v6 {
			return all[1], nil
		}
		return all[0], nil
	}})
	return s, all
}

// shown has the names of Services' chains as they are meant: SVC(ns/web/tcp/http).
func shown(text string, plans ...*plan) string {
	var names []string
	for _, p := range plans {
		for c := range or(p).chains {
			name := c.iptables()
			short, _, _ := strings.Cut(strings.TrimPrefix(name, ipTablesPrefix), "-")
			names = append(names, name, short+"("+c.of+")")
		}
	}
	return strings.NewReplacer(names...).Replace(text)
}

// ipTables is a plan as a text for iptables-restore.
func (o *plan) ipTables(v view) string {
	v.plain = (&ipTables{}).plain()
	t := newIPTables(v.family, nil)
	t.around, t.listed = surroundings{view: v}, map[chainKey]map[element]verdict{}
	d := newTable(v.family, t).compare(map[types.NamespacedName]*plan{{}: o})
	text := newRestored()
	changed, _ := t.list(d)
	for p := range changed {
		text.write(p, t.rulesAt(p))
	}
	t.own(text, d)
	return text.String()
}

// TestAChangeRewritesItsChainsAlone reads what is restored after changes of one Service among others.
func TestAChangeRewritesItsChainsAlone(t *testing.T) {
	src, web := amongOthers()
	s, all := memorySyncer(t, src)
	syncs(t, s, true)
	if n := strings.Count(all[0].last, "\n-A "); n < 100 {
		t.Fatalf("the first text has %d rules", n)
	}
	before := s.tables[0].plans[web]
	last := func() (out []string) {
		now := s.tables[0].plans[web]
		for line := range strings.Lines(shown(all[0].last, before, now,
			s.tables[0].plans[types.NamespacedName{Namespace: "ns", Name: "other7"}])) {
			if line = strings.TrimSuffix(line, "\n"); !strings.Contains(line, canaryChain) && line != "COMMIT" {
				out = append(out, line)
			}
		}
		before, all[0].last = now, ""
		return out
	}
	all[0].last = ""
	last()
	const (
		told    = `-m comment --comment "ns/web/tcp/http" `
		port    = "-p tcp -m tcp --dport 80 "
		drawn   = port + "-m statistic --mode random --probability 0.5000000000 -j DNAT --to-destination 10.244.0.2:8080"
		sharing = "-A MORTISE-SERVICES-07 -d 10.96.1.7/32 " // it has the last byte of the address
	)
	for _, step := range []struct {
		name   string
		change func()
		want   []string
	}{
		{"nothing", func() {}, nil},
		{"a second endpoint", func() {
			src.set(makeService("web", []string{"10.96.0.7"}), makeSlice("web", at("10.244.0.2", "here"), at("10.244.1.9", "there")))
		}, []string{
			"*nat", ":MORTISE-SERVICES-07 - [0:0]",
			"-A MORTISE-SERVICES-07 -d 10.96.0.7/32 " + drawn,
			"-A MORTISE-SERVICES-07 -d 10.96.0.7/32 " + port + "-j DNAT --to-destination 10.244.1.9:8080",
			sharing + drawn, sharing + port + "-j DNAT --to-destination 10.244.1.2:8080",
		}},
		{"five, which are in the way of others", func() {
			list := makeSlice("web")
			for i := range 5 {
				list.Endpoints = append(list.Endpoints, at(fmt.Sprint("10.244.1.", 2+i), "there"))
			}
			src.set(makeService("web", []string{"10.96.0.7"}), list)
		}, []string{
			"*nat", ":MORTISE-SERVICES-07 - [0:0]", ":SVC(ns/web/tcp/http) - [0:0]",
			"-A MORTISE-SERVICES-07 -d 10.96.0.7/32 " + port + told + "-j SVC(ns/web/tcp/http)",
			sharing + drawn, sharing + port + "-j DNAT --to-destination 10.244.1.2:8080",
			"-A SVC(ns/web/tcp/http) -p tcp " + told +
				"-m statistic --mode random --probability 0.2000000000 -j DNAT --to-destination 10.244.1.2:8080",
			"-A SVC(ns/web/tcp/http) -p tcp " + told +
				"-m statistic --mode random --probability 0.2500000000 -j DNAT --to-destination 10.244.1.3:8080",
			"-A SVC(ns/web/tcp/http) -p tcp " + told +
				"-m statistic --mode random --probability 0.3333333333 -j DNAT --to-destination 10.244.1.4:8080",
			"-A SVC(ns/web/tcp/http) -p tcp " + told +
				"-m statistic --mode random --probability 0.5000000000 -j DNAT --to-destination 10.244.1.5:8080",
			"-A SVC(ns/web/tcp/http) -p tcp " + told + "-j DNAT --to-destination 10.244.1.6:8080",
		}},
		{"none that is ready", func() {
			src.set(makeService("web", []string{"10.96.0.7"}), makeSlice("web", at("10.244.0.2", "here", unready)))
		}, []string{ // who shares the last byte of its address is written again
			"*filter", ":MORTISE-NO-ENDPOINTS - [0:0]", ":MORTISE-NO-ENDPOINTS-07 - [0:0]",
			"-A MORTISE-NO-ENDPOINTS -d 0.0.0.7/0.0.0.255 -j MORTISE-NO-ENDPOINTS-07",
			"-A MORTISE-NO-ENDPOINTS-07 -d 10.96.0.7/32 " + port + told + "-j MORTISE-REFUSE",
			"*nat", ":MORTISE-SERVICES-07 - [0:0]", ":SVC(ns/web/tcp/http) - [0:0]",
			sharing + drawn, sharing + port + "-j DNAT --to-destination 10.244.1.2:8080",
			"-X SVC(ns/web/tcp/http)",
		}},
		{"deleted", func() { delete(src.services, web) }, []string{
			"*filter", ":MORTISE-CLUSTER-IPS-07 - [0:0]", ":MORTISE-NO-ENDPOINTS - [0:0]", ":MORTISE-NO-ENDPOINTS-07 - [0:0]",
			"-A MORTISE-CLUSTER-IPS-07 -d 10.96.1.7/32 -j MORTISE-REFUSE",
			"-X MORTISE-NO-ENDPOINTS-07",
		}},
	} {
		step.change()
		syncs(t, s, false, web)
		if d := cmp.Diff(step.want, last()); d != "" {
			t.Errorf("%s: what is restored differs (-want +got):\n%s", step.name, d)
		}
	}
}

// TestWhoIsMarkedByAddress has Services in the ranges and beside them. Those in a range are marked by one rule, and what was to none of
// them is as it was; another has a rule of its own; and an external address in a range is marked as its own chain says, not before.
func TestWhoIsMarkedByAddress(t *testing.T) {
	src := newStatic()
	src.set(makeService("in", []string{"10.96.0.7"}), makeSlice("in", at("10.244.0.2", "here")))
	src.set(makeService("out", []string{"10.97.0.7"}), makeSlice("out", at("10.244.0.2", "here")))
	src.set(makeService("odd", []string{"10.96.0.8"}, localOutside, nodePort,
		func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"10.96.9.9"} }), makeSlice("odd", at("10.244.0.2", "here")))
	const (
		port, to = "-p tcp -m tcp --dport 80 ", "-j DNAT --to-destination 10.244.0.2:8080"
		unmarked = "-j MARK --set-xmark 0x0/0x4000"
		said     = `-m comment --comment "ns/odd/tcp/http" -j `
	)
	odd := func(k kind) string { return chain{k, "ns/odd/tcp/http"}.iptables() }
	for _, c := range []struct {
		name string
		pods []netip.Prefix
		want map[string][]string
	}{
		{"pods are known", []netip.Prefix{netip.MustParsePrefix("10.244.0.0/15")}, map[string][]string{
			"": {
				"-d 10.96.0.0/16 -j MORTISE-MARK-FOREIGN",
				"-d 0.0.0.7/0.0.0.255 -j MORTISE-SERVICES-07", "-d 0.0.0.8/0.0.0.255 -j MORTISE-SERVICES-08",
				"-d 0.0.0.9/0.0.0.255 -j MORTISE-SERVICES-09",
				"-d 10.96.0.0/16 " + unmarked,
				"! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j MORTISE-NODEPORTS",
			},
			"-07": {"-d 10.96.0.7/32 " + port + to, "-d 10.97.0.7/32 -j MORTISE-MARK-FOREIGN", "-d 10.97.0.7/32 " + port + to},
			"-08": {"-d 10.96.0.8/32 " + port + said + odd(byCluster)},
			"-09": {"-d 10.96.9.9/32 " + port + unmarked, "-d 10.96.9.9/32 " + port + said + odd(external)},
		}},
		{"nobody is masqueraded", nil, map[string][]string{
			"": {
				"-d 0.0.0.7/0.0.0.255 -j MORTISE-SERVICES-07", "-d 0.0.0.8/0.0.0.255 -j MORTISE-SERVICES-08",
				"-d 0.0.0.9/0.0.0.255 -j MORTISE-SERVICES-09",
				"! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j MORTISE-NODEPORTS",
			},
			"-07": {"-d 10.96.0.7/32 " + port + to, "-d 10.97.0.7/32 " + port + to},
			"-08": {"-d 10.96.0.8/32 " + port + said + odd(byCluster)},
			"-09": {"-d 10.96.9.9/32 " + port + said + odd(external)},
		}},
	} {
		s, all := memorySyncer(t, src)
		s.options.PodCIDRs = c.pods
		syncs(t, s, true)
		for suffix, want := range c.want {
			if d := cmp.Diff(want, all[0].tables["nat"][natServices.chain+suffix]); d != "" {
				t.Errorf("%s: %s%s differs (-want +got):\n%s", c.name, natServices.chain, suffix, d)
			}
		}
	}
}

// TestAPortOfTwoServicesIsTheFirstOnes has an address and port that two Services claim by mistake, which differ in how many endpoints they
// have.
func TestAPortOfTwoServicesIsTheFirstOnes(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b int // endpoints
		more func(*corev1.Service)
		want int // rules
	}{
		{"fewer", 1, 3, func(*corev1.Service) {}, 1}, {"more", 3, 1, func(*corev1.Service) {}, 3}, {"a chain of its own", 2, 3, sticky, 1},
	} {
		src := newStatic()
		for name, n := range map[string]int{"a": c.a, "b": c.b} {
			list := makeSlice(name)
			for i := range n {
				list.Endpoints = append(list.Endpoints, at(fmt.Sprintf("10.244.%d.%d", name[0], 2+i), "there"))
			}
			more := c.more
			if name == "b" {
				more = func(*corev1.Service) {}
			}
			src.set(makeService(name, []string{"10.96.0.7"}, more), list)
		}
		s, all := memorySyncer(t, src)
		syncs(t, s, true)
		got := all[0].tables["nat"][natServices.chain+"-07"]
		if len(got) != c.want || strings.Contains(strings.Join(got, "\n"), "10.244.98.") {
			t.Errorf("%s: the rules are\n%s\nwant %d, of the first Service alone", c.name, strings.Join(got, "\n"), c.want)
		}
	}
}

// TestChangesAndTheWholeAreTheSameByIPTables makes random changes one by one, and compares with everything written at once.
func TestChangesAndTheWholeAreTheSameByIPTables(t *testing.T) {
	src := newStatic()
	s, all := memorySyncer(t, src)
	syncs(t, s, true)
	randomChanges(t, src, s)
	other, fresh := memorySyncer(t, src)
	syncs(t, other, true)
	same := func(what string) {
		t.Helper()
		for i := range all {
			want, _ := fresh[i].Save(t.Context())
			got, _ := all[i].Save(t.Context())
			if d := cmp.Diff(lines(want), lines(got)); d != "" {
				t.Errorf("%s (-whole +it):\n%s", what, d)
			}
		}
	}
	same("what changes have led to differs from the whole")
	syncs(t, s, true)
	same("what was written twice differs")
}

// TestOthersRulesStay has chains of kube-proxy, of the pods' gateway and of another version of ours, and jumps to them.
func TestOthersRulesStay(t *testing.T) {
	s, all := memorySyncer(t, newStatic())
	if err := all[0].Restore(t.Context(), `*nat
:KUBE-SERVICES - [0:0]
:MORTISE-PODS - [0:0]
:MORTISE-OLD - [0:0]
:MORTISE-SERVICES - [0:0]
-A MORTISE-OLD -j RETURN
-A PREROUTING -j KUBE-SERVICES
-A PREROUTING -m comment --comment "Services, by Mortise" -j MORTISE-SERVICES
-A PREROUTING -m comment --comment "Services, by Mortise" -j MORTISE-SERVICES
-A PREROUTING -m comment --comment "another version's" -g MORTISE-OLD
-A POSTROUTING -j MORTISE-PODS
COMMIT
`); err != nil {
		t.Fatal(err)
	}
	syncs(t, s, true)
	nat := all[0].tables["nat"]
	for chain, want := range map[string][]string{
		"PREROUTING":  {"-j KUBE-SERVICES", `-m comment --comment "Services, by Mortise" -j MORTISE-SERVICES`},
		"POSTROUTING": {`-m comment --comment "Services, by Mortise" -j MORTISE-POSTROUTING`, "-j MORTISE-PODS"},
	} {
		if d := cmp.Diff(want, nat[chain]); d != "" {
			t.Errorf("%s differs (-want +got):\n%s", chain, d)
		}
	}
	for name, want := range map[string]bool{"KUBE-SERVICES": true, "MORTISE-PODS": true, "MORTISE-OLD": false} {
		if _, is := nat[name]; is != want {
			t.Errorf("%s is there: %v", name, is)
		}
	}
}

// FuzzRules gives Services names that the API would not take: whatever somebody writes into them, the rules are as many as those of a
// Service with a plain name, and each is a line of words of its own.
func FuzzRules(f *testing.F) {
	f.Add("web", "ns", "http", "TCP")
	f.Add("a\nCOMMIT\n*nat\n-A PREROUTING -j DROP", "n\"s", "\\", "UDP")
	f.Add(`" -j ACCEPT --comment "`, "a b", "}; flush ruleset", "tcp dport 1\n")
	f.Add(strings.Repeat("ü", 300), "\x00", "\xff", "SCTP")
	random := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		out := make([]byte, random.IntN(40))
		for i := range out {
			out[i] = byte(random.IntN(256))
			if random.IntN(2) == 0 {
				out[i] = "\n\"'\\ ;#{}-"[random.IntN(10)]
			}
		}
		return string(out)
	}
	for range 300 {
		f.Add(word(), word(), word(), "TCP")
	}
	f.Fuzz(func(t *testing.T, name, namespace, port, protocol string) {
		made := func(name, namespace, port, protocol string) *plan {
			svc := makeService("web", []string{"10.96.0.7"}, balanced("203.0.113.5"), sticky, func(s *corev1.Service) {
				s.Name, s.Namespace, s.Spec.LoadBalancerSourceRanges = name, namespace, []string{"192.168.0.0/24"}
				s.Spec.Ports[0].Name, s.Spec.Ports[0].Protocol = port, corev1.Protocol(protocol)
			})
			list := makeSlice("web", at("10.244.0.2", "here"), at("10.244.1.2", "there"))
			list.Ports[0].Name, list.Ports[0].Protocol = &port, new(corev1.Protocol(protocol))
			return makePlan(svc, []*discoveryv1.EndpointSlice{list}, testView(false))
		}
		p, plain := made(name, namespace, port, protocol), made("web", "ns", "http", "TCP")
		if p == nil {
			return // no such protocol
		}
		v := testView(false)
		for _, c := range []struct{ language, got, want, forbidden string }{
			{"nft", p.text(v.family), plain.text(v.family), "\"\\;#$"}, {"iptables", p.ipTables(v), plain.ipTables(v), "\\#$;"},
		} {
			for what, n := range map[string]func(string) int{
				"lines":  func(s string) int { return strings.Count(s, "\n") },
				"words":  func(s string) int { return len(strings.Fields(s)) },
				"quotes": func(s string) int { return strings.Count(s, `"`) },
				"tables": func(s string) int { return strings.Count("\n"+s, "\n*") },
			} {
				if n(c.got) != n(c.want) {
					t.Errorf("%s reads %d %s, want %d:\n%s", c.language, n(c.got), what, n(c.want), c.got)
				}
			}
			for _, r := range c.got {
				if r != '\n' && (r < ' ' || r > '~') || strings.ContainsRune(c.forbidden, r) {
					t.Errorf("%s reads %q:\n%s", c.language, r, c.got)
				}
			}
		}
	})
}
