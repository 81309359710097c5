// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeaddress

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stage is a machine that changes, with what its node's addresses became, and when.
type stage struct {
	mu     sync.Mutex
	v      View
	looks  int
	events chan struct{}
	a      *Addresses
	became []string
	begin  time.Time
}

func newStage(ctx context.Context, v View) *stage {
	s := &stage{v: v, events: make(chan struct{}, 1), begin: time.Now()}
	o := Options{Both: true, Logger: slog.New(slog.DiscardHandler)}
	s.a = &Addresses{options: o, machine: s}
	s.a.now, _ = Pick(nil, v, o)
	s.a.Tell(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.became = append(s.became, time.Since(s.begin).String()+" "+strings.Join(s.a.Texts(), " "))
	})
	go s.a.settle(ctx, s.events)
	return s
}

// Look implements [Machine].
func (s *stage) Look(context.Context, Options) (View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	return s.v, nil
}

// Listen implements [Machine].
func (s *stage) Listen(ctx context.Context, run func(context.Context, <-chan struct{}) error) error {
	return run(ctx, s.events)
}

// change has the machine be another after a time, and tells.
func (s *stage) change(after time.Duration, v View) {
	time.Sleep(after)
	s.mu.Lock()
	s.v = v
	s.mu.Unlock()
	select {
	case s.events <- struct{}{}:
	default:
	}
}

// TestSettle: what becomes of a node's addresses when, as its machine changes.
func TestSettle(t *testing.T) {
	whole := machine("eth0 192.0.2.1 2001:db8::1").sends(false, "192.0.2.1", "2001:db8::1")
	four := machine("eth0 192.0.2.1").sends(false, "192.0.2.1")
	bare, down := machine("eth0"), machine("(eth0)")
	leased := machine("eth0 192.0.2.5 2001:db8::1").sends(false, "192.0.2.5", "2001:db8::1")
	for _, c := range []struct {
		name, want string
		run        func(*stage)
	}{
		{"another lease", "500ms 192.0.2.5 2001:db8::1", func(s *stage) { s.change(0, leased) }},
		{"a burst", "700ms 192.0.2.5 2001:db8::1", func(s *stage) {
			s.change(0, bare)
			s.change(100*time.Millisecond, four)
			s.change(100*time.Millisecond, leased)
		}},
		{"a burst without an end", "3.1s 192.0.2.5 2001:db8::1", func(s *stage) {
			for range 40 {
				s.change(100*time.Millisecond, leased)
			}
		}},
		{"a link that flaps", "", func(s *stage) {
			s.change(0, down)
			s.change(time.Second, bare)
			s.change(2*time.Second, four)
			s.change(2*time.Second, whole)
		}},
		{"a link that is down for good", "", func(s *stage) { s.change(0, down) }},
		{"a link that is down for good, beside one of containers", "", func(s *stage) {
			s.change(0, machine("(eth0) 192.0.2.1", "docker0 172.17.0.1"))
		}},
		{"a family that goes for good", "30.5s 192.0.2.1", func(s *stage) { s.change(0, four) }},
		{"a family that is late", "", func(s *stage) {
			s.change(0, four)
			s.change(10*time.Second, four)
			s.change(20*time.Second, whole)
		}},
		{"a family that goes, and returns", "30.5s 192.0.2.1; 1m0.5s 192.0.2.1 2001:db8::1", func(s *stage) {
			s.change(0, four)
			s.change(time.Minute, whole)
		}},
		{"others' links", "", func(s *stage) {
			for range 5 {
				s.change(time.Second, machine("eth0 192.0.2.1 2001:db8::1", "veth1 192.168.9.1").sends(false, "192.0.2.1"))
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				s := newStage(ctx, whole)
				synctest.Wait()
				s.change(0, whole) // that is nothing
				time.Sleep(time.Minute)
				synctest.Wait()
				s.begin = time.Now()
				c.run(s)
				time.Sleep(time.Minute)
				synctest.Wait()
				before := s.looks
				time.Sleep(time.Hour)
				synctest.Wait()
				if s.looks != before {
					t.Errorf("it looked %d times though nothing happened", s.looks-before)
				}
				cancel()
				synctest.Wait()
				if got := strings.Join(s.became, "; "); got != c.want {
					t.Errorf("the addresses became %q, want %q", got, c.want)
				}
			})
		})
	}
}
