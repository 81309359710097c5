// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/netfilter"
	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// patience is how long something may take that is to happen; quiet how long nothing is waited for.
const (
	patience = 30 * time.Second
	quiet    = 500 * time.Millisecond
)

// lab is a network whose node has a proxy.
type lab struct {
	*netlab.Lab
	t      *testing.T
	source *static
	syncer *syncer
}

// language is a backend, as it is written by some programs.
type language struct {
	netfilter.Backend
	legacy bool // by the programs of the kernel's older tables, where the machine has both
}

func languages() map[string]language {
	return map[string]language{
		"nftables": {Backend: netfilter.NFTables}, "iptables": {Backend: netfilter.IPTables},
		"iptables-legacy": {Backend: netfilter.IPTables, legacy: true},
	}
}

// eachLanguage runs a test with every backend that there is.
func eachLanguage(t *testing.T, test func(*testing.T, language)) {
	for name, in := range languages() {
		t.Run(name, func(t *testing.T) { test(t, in) })
	}
}

// want leaves a test out that the machine cannot do.
func (in language) want(t testing.TB, node *netlab.Host) {
	t.Helper()
	if in.legacy {
		programs := t.TempDir()
		for _, name := range []string{"iptables", "ip6tables"} {
			for _, does := range []string{"-restore", "-save"} {
				path, err := exec.LookPath(name + "-legacy" + does)
				if err != nil {
					t.Skipf("SKIPPED: %s-legacy%s is not installed", name, does)
				}
				if err := os.Symlink(path, filepath.Join(programs, name+does)); err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	}
	if err := node.Try(func() error {
		_, err := netfilter.Choose(t.Context(), string(in.Backend), slog.New(slog.DiscardHandler))
		return err
	}); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
}

func newLab(t *testing.T, in language, change ...func(*Options)) *lab {
	t.Helper()
	made := netlab.New(t)
	in.want(t, made.Node)
	l := &lab{Lab: made, t: t, source: newStatic()}
	o := Options{
		NodeName: "here", Bridged: true, Backend: in.Backend,
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/56")},
	}
	for _, c := range change {
		c(&o)
	}
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	me := self{
		addresses: []netip.Addr{netip.MustParseAddr("192.168.50.1"), netip.MustParseAddr("fd00:50::1")},
		here:      []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd00:244::/64")},
	}
	l.Node.Do(func() (err error) {
		l.syncer, err = open(o, l.source, me)
		return err
	})
	t.Cleanup(func() { l.syncer.end() })
	for h, addresses := range map[*netlab.Host][2]string{
		l.Pod1: {"10.244.0.2", "fd00:244::2"}, l.Pod2: {"10.244.0.3", "fd00:244::3"}, l.Other: {"10.244.1.2", "fd00:244:0:1::2"},
	} {
		for _, a := range addresses {
			h.Serve("tcp", net.JoinHostPort(a, "8080"))
			h.Serve("udp", net.JoinHostPort(a, "8080"))
		}
	}
	l.sync(true)
	return l
}

func (l *lab) sync(all bool, names ...types.NamespacedName) {
	l.t.Helper()
	changed := map[types.NamespacedName]bool{}
	for _, n := range names {
		changed[n] = true
	}
	l.Node.Do(func() error { return l.syncer.sync(l.t.Context(), changed, all) })
}

// has makes a Service so, in one transaction of its own.
func (l *lab) has(svc *corev1.Service, list ...*discoveryv1.EndpointSlice) {
	l.t.Helper()
	l.sync(false, l.source.set(svc, list...))
}

// hears calls a Service until all of the servers have answered, and no other does; it returns whom they saw.
func (l *lab) hears(from *netlab.Host, network, to string, servers ...string) (seen []string) {
	l.t.Helper()
	got := map[string]bool{}
	for range 200 {
		ctx, cancel := context.WithTimeout(l.t.Context(), patience)
		server, as, err := from.Call(ctx, network, to)
		cancel()
		if err != nil {
			l.t.Fatalf("%s calls %s %s: %v", from.Name, network, to, err)
		}
		if !slices.Contains(servers, server) {
			l.t.Fatalf("%s calls %s %s: %s answers, want %v", from.Name, network, to, server, servers)
		}
		got[server] = true
		if !slices.Contains(seen, as) {
			seen = append(seen, as)
		}
		if len(got) == len(servers) {
			return seen
		}
	}
	l.t.Fatalf("%s calls %s %s: %v answer, want %v", from.Name, network, to, got, servers)
	return nil
}

func (l *lab) refused(from *netlab.Host, network, to string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	// Who sends from the node itself is told at once that it may not.
	server, _, err := from.Call(ctx, network, to)
	if err == nil || !errors.Is(err, unix.ECONNREFUSED) && !(from == l.Node && errors.Is(err, unix.EPERM)) {
		l.t.Errorf("%s calls %s %s: %s %v, want to be refused", from.Name, network, to, server, err)
	}
}

func (l *lab) dropped(from *netlab.Host, network, to string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), quiet)
	defer cancel()
	server, _, err := from.Call(ctx, network, to)
	var timeout net.Error
	if err == nil || !errors.As(err, &timeout) || !timeout.Timeout() {
		l.t.Errorf("%s calls %s %s: %s %v, want silence", from.Name, network, to, server, err)
	}
}

func (l *lab) sees(seen []string, want ...string) {
	l.t.Helper()
	slices.Sort(seen)
	slices.Sort(want)
	if !slices.Equal(seen, want) {
		l.t.Errorf("servers see %v, want %v", seen, want)
	}
}

// ips are the addresses of a dual-stack Service, by its number.
func ips(n string) []string { return []string{"10.96.0." + n, "fd00:96::" + n} }

func everywhere(name string) []*discoveryv1.EndpointSlice {
	return []*discoveryv1.EndpointSlice{
		makeSlice(name, at("10.244.0.2", "here"), at("10.244.0.3", "here"), at("10.244.1.2", "there")),
		makeSlice(name, at("fd00:244::2", "here"), at("fd00:244::3", "here"), at("fd00:244:0:1::2", "there")),
	}
}

func only(name, v4, v6, node string) []*discoveryv1.EndpointSlice {
	return []*discoveryv1.EndpointSlice{makeSlice(name, at(v4, node)), makeSlice(name, at(v6, node))}
}

// udpToo gives a Service a second port, of UDP.
func udpToo(svc *corev1.Service) {
	second := svc.Spec.Ports[0]
	second.Name, second.Protocol = "udp", corev1.ProtocolUDP
	svc.Spec.Ports = append(svc.Spec.Ports, second)
}

func withUDP(list []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	for _, s := range list {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new("udp"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolUDP)})
	}
	return list
}

// of is the lab, for another test.
func (l *lab) of(t *testing.T) *lab {
	out := *l
	out.t = t
	return &out
}

// rules are the names of all chains, sets and maps, or all that iptables lists of ours.
func (l *lab) rules() string {
	l.t.Helper()
	var out string
	l.Node.Do(func() error {
		for _, t := range l.syncer.tables {
			switch book := t.book.(type) {
			case *nftTable:
				all, err := book.nft.ListAll(l.t.Context())
				if err != nil {
					return err
				}
				for _, kind := range []string{"chain", "set", "map"} {
					slices.Sort(all[kind])
					for _, name := range all[kind] {
						if !book.stale[name] {
							out += kind + " " + name + "\n"
						}
					}
				}
			case *ipTables:
				saved, err := book.x.Save(l.t.Context())
				if err != nil {
					return err
				}
				for line := range strings.Lines(saved) {
					if strings.Contains(line, ipTablesPrefix) {
						out += line
					}
				}
			}
		}
		return nil
	})
	return out
}

func (l *lab) get(url string) (code int, body string) {
	l.t.Helper()
	l.Client.Do(func() error {
		client := http.Client{Timeout: patience, Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
				err = l.Client.Try(func() (err error) { c, err = (&net.Dialer{}).DialContext(ctx, network, address); return err })
				return c, err
			},
		}}
		r, err := client.Get(url)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		code, body = r.StatusCode, string(text)
		return err
	})
	return code, body
}
