// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package masterleases

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// server is a server that holds a lease.
type server struct {
	mu   sync.Mutex
	told [][]netip.Addr
	stop func()
}

func hold(t *testing.T, s *store.Store, at netip.Addr) *server {
	ctx, cancel := context.WithCancel(t.Context())
	out := &server{}
	var done sync.WaitGroup
	done.Go(func() {
		l := &Leases{Store: s, Log: slog.New(slog.DiscardHandler)}
		l.Hold(ctx, at, func(all []netip.Addr) {
			out.mu.Lock()
			defer out.mu.Unlock()
			out.told = append(out.told, all)
		})
	})
	out.stop = func() {
		cancel()
		done.Wait()
	}
	synctest.Wait()
	return out
}

func (s *server) last() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.told) == 0 {
		return nil
	}
	return s.told[len(s.told)-1]
}

func (s *server) times() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.told)
}

// TestServersKnowEachOther: servers see each other at once, keep their leases for as long as they hold them, see one that stops go at once,
// and one that is killed after 15 s.
func TestServersKnowEachOther(t *testing.T) {
	first, second := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.9")
	killed := netip.MustParseAddr("fd00::1")
	synctest.Test(t, func(t *testing.T) {
		s := store.New(memory.Open(memory.Options{}))
		defer s.Close()
		a := hold(t, s, first)
		if want := []netip.Addr{first}; !slices.Equal(a.last(), want) {
			t.Errorf("alone: %v", a.last())
		}
		b := hold(t, s, second)
		both := []netip.Addr{second, first}
		if !slices.Equal(a.last(), both) || !slices.Equal(b.last(), both) {
			t.Errorf("both: %v, %v", a.last(), b.last())
		}
		time.Sleep(time.Hour)
		if a.times() != 2 || b.times() != 1 {
			t.Errorf("renewals are no changes: told %d and %d times", a.times(), b.times())
		}

		// What kube-apiserver, or a server that was killed, has left.
		left := store.Op{Key: prefix + killed.String(), Value: value(netip.AddrPortFrom(killed, 6443), 7), Expect: store.Any, TTL: ttl}
		if _, err := s.Put(t.Context(), left); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if want := append(slices.Clone(both), killed); !slices.Equal(a.last(), want) {
			t.Errorf("three: %v", a.last())
		}
		time.Sleep(ttl + time.Second)
		synctest.Wait()
		if !slices.Equal(a.last(), both) {
			t.Errorf("one was killed: %v", a.last())
		}

		b.stop()
		synctest.Wait()
		if want := []netip.Addr{first}; !slices.Equal(a.last(), want) {
			t.Errorf("one has stopped: %v", a.last())
		}
		a.stop()
		if page, err := s.List(t.Context(), prefix); err != nil || len(page.Records) != 0 {
			t.Errorf("left: %v, %v", page.Records, err)
		}
	})
}

// TestValue: the value is one that kube-apiserver's storage decodes.
func TestValue(t *testing.T) {
	obj, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(value(netip.MustParseAddrPort("192.0.2.10:6443"), 3), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, ok := obj.(*corev1.Endpoints)
	if !ok || gvk.Kind != "Endpoints" || e.Generation != 3 || e.Subsets[0].Addresses[0].IP != "192.0.2.10" {
		t.Errorf("%v %+v", gvk, obj)
	}
}
