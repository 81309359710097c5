// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/knftables"

	"github.com/mortise-dev/mortise/internal/agent/netfilter"
)

// TestHealthMoves: where node ports are on the node's own addresses, health ports go where these go.
func TestHealthMoves(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var well atomic.Bool
	well.Store(true)
	h := &health{network: "tcp4", hosts: []string{"127.0.0.1"}, log: slog.New(slog.DiscardHandler), well: &well,
		servers: map[types.NamespacedName]*healthServer{}}
	defer h.end()
	want := map[types.NamespacedName]*plan{{Name: "s"}: {healthPort: int32(port), healthy: 1}}
	answers := func(host string) bool {
		c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := c.Get(fmt.Sprintf("http://%s:%d/", host, port))
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	}
	for _, hosts := range [][]string{{"127.0.0.1"}, {"127.0.0.2"}, {"127.0.0.2", "127.0.0.1"}, nil} {
		h.move(hosts)
		if err := h.sync(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		is := map[string]bool{}
		for _, host := range hosts {
			is[host] = true
		}
		for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
			if answers(host) != is[host] {
				t.Errorf("at %q, it answers at %s: %v", hosts, host, !is[host])
			}
		}
	}
}

// TestRepeatedFailuresAreLoggedSeldom: health ports that others have and a conntrack table that refuses fail with each write of the rules.
// A write a minute for an hour logs each of the two six times, with the number of failures; after a success the next failure is logged
// at once.
func TestRepeatedFailuresAreLoggedSeldom(t *testing.T) {
	l, err := net.Listen("tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	now := clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	var log bytes.Buffer
	var refuse error
	src := newStatic()
	src.services[types.NamespacedName{Namespace: "ns", Name: "web"}] = makeService("web", []string{"10.96.0.7"},
		balanced("203.0.113.5"), localOutside, func(s *corev1.Service) {
			s.Spec.HealthCheckNodePort, s.Spec.Ports[0].Protocol = int32(l.Addr().(*net.TCPAddr).Port), corev1.ProtocolUDP
		})
	s, err := open(Options{
		Backend: netfilter.NFTables, Metrics: metrics, Health: NewHealth(time.Hour, now, metrics), Clock: now,
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Open: func(f knftables.Family, table string) (knftables.Interface, error) {
			return knftables.NewFake(f, table), nil
		},
		forget: func(family, *frontends) (uint, error) { return 0, refuse },
	}, src, self{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, h := range s.health {
			h.end()
		}
	}()
	logged := func(refused error) (health, conntrack int) {
		t.Helper()
		refuse = refused
		if err := s.sync(t.Context(), nil, true); err != nil {
			t.Fatal(err)
		}
		health = strings.Count(log.String(), "Could not serve health checks of services")
		return health, strings.Count(log.String(), "Could not delete stale conntrack entries")
	}
	no := errors.New("no")
	var health, conntrack int
	for range 60 {
		health, conntrack = logged(no)
		now.Step(time.Minute)
	}
	if health != 6 || conntrack != 6 {
		t.Errorf("in an hour %d lines of health checks and %d of conntrack", health, conntrack)
	}
	if _, conntrack = logged(nil); conntrack != 6 {
		t.Errorf("a success is logged as a failure")
	}
	if _, conntrack = logged(no); conntrack != 7 {
		t.Errorf("after a success, %d lines", conntrack)
	}
}
