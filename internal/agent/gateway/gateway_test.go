// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mortise-dev/mortise/internal/agent/netfilter"
	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// pods are the ranges of the lab's.
func pods() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/56")}
}

// TestWhoIsSeen: with real packets, a pod of another node sees the pod that calls, and a machine outside sees the node.
func TestWhoIsSeen(t *testing.T) {
	for _, b := range []netfilter.Backend{netfilter.NFTables, netfilter.IPTables} {
		t.Run(string(b), func(t *testing.T) { whoIsSeen(t, b) })
	}
}

func whoIsSeen(t *testing.T, b netfilter.Backend) {
	lab := netlab.New(t)
	if err := lab.Node.Try(func() error {
		_, err := netfilter.Choose(t.Context(), string(b), slog.New(slog.DiscardHandler))
		return err
	}); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	lab.Node.Do(func() error {
		for _, f := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+f, []byte("0"), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	lab.Other.Serve("tcp", "10.244.1.2:80")
	lab.Other.Serve("tcp", "[fd00:244:0:1::2]:80")
	lab.Client.Serve("tcp", "192.168.50.2:80")
	lab.Client.Serve("tcp", "[fd00:50::2]:80")
	sees := func(at, want string) {
		t.Helper()
		patience := 20 * time.Second
		if want == "" {
			patience = 500 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, seen, err := lab.Pod1.Call(ctx, "tcp", at)
		if seen != want || (err == nil) != (want != "") {
			t.Errorf("%s sees %q, %v; want %q", at, seen, err, want)
		}
	}
	sees("192.168.50.2:80", "") // nobody forwards yet
	lab.Node.Do(func() error {
		return errors.Join(Forward(pods()), Write(t.Context(), b, pods()), Write(t.Context(), b, pods()))
	})
	for at, want := range map[string]string{
		"10.244.1.2:80": "10.244.0.2", "[fd00:244:0:1::2]:80": "fd00:244::2", "192.168.50.2:80": "192.168.50.1", "[fd00:50::2]:80": "fd00:50::1",
	} {
		sees(at, want)
	}
	// A cluster without IPv6 leaves it alone.
	lab.Node.Do(func() error { return Write(t.Context(), b, pods()[:1]) })
	sees("192.168.50.2:80", "192.168.50.1")
	sees("[fd00:50::2]:80", "fd00:244::2")
	if left := left(t, lab.Node); !left[b] || len(left) != 1 {
		t.Errorf("there are rules of %v", left)
	}
	// The other one's rules take over, and nobody sees a difference.
	for _, other := range []netfilter.Backend{netfilter.NFTables, netfilter.IPTables, netfilter.NFTables} {
		lab.Node.Do(func() error { return errors.Join(Write(t.Context(), other, pods()), clearOther(t.Context(), other)) })
		sees("[fd00:50::2]:80", "fd00:50::1")
		if left := left(t, lab.Node); !left[other] || len(left) != 1 {
			t.Errorf("there are rules of %v, want those of %s alone", left, other)
		}
	}
	lab.Node.Do(func() error { return Remove(t.Context()) })
	sees("192.168.50.2:80", "10.244.0.2")
	if left := left(t, lab.Node); len(left) > 0 {
		t.Errorf("there are rules of %v, want none", left)
	}
}

// left says by which backends there are rules of ours.
func left(t *testing.T, node *netlab.Host) map[netfilter.Backend]bool {
	t.Helper()
	out := map[netfilter.Backend]bool{}
	node.Do(func() error {
		for program, is := range map[string]netfilter.Backend{"nft list tables": netfilter.NFTables, "iptables-save": netfilter.IPTables,
			"ip6tables-save": netfilter.IPTables} {
			words := strings.Fields(program)
			text, err := exec.CommandContext(t.Context(), words[0], words[1:]...).Output()
			if err != nil {
				return err
			}
			if strings.Contains(string(text), tableName) || strings.Contains(string(text), chainName) {
				out[is] = true
			}
		}
		return nil
	})
	return out
}

// TestWrittenAgain: rules that somebody has flushed are back within the hour, and sooner when writing fails.
func TestWrittenAgain(t *testing.T) {
	var when []time.Duration
	cleared := 0
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		ended := make(chan error)
		go func() {
			ended <- Run(ctx, Options{Pods: pods(), write: func(context.Context, []netip.Prefix) error {
				when = append(when, time.Since(begin))
				if len(when) == 1 {
					return errors.New("no")
				}
				return nil
			}, clearOther: func(context.Context) error {
				cleared++
				return nil
			}})
		}()
		time.Sleep(2*wholeAfter + retry + time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	if cleared != 1 {
		t.Errorf("rules of the other backend were removed %d times", cleared)
	}
	if want := []time.Duration{wholeAfter, wholeAfter + retry, 2*wholeAfter + retry}; len(when) != 3 || when[0] != want[0] ||
		when[1] != want[1] || when[2] != want[2] {
		t.Errorf("written at %v, want %v", when, want)
	}
}
