// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd/internal/grpcconn"
)

// member starts a server that accepts connections, and returns its URL. If greets is set, it sends HTTP/2 settings to each client.
func member(t *testing.T, greets bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				defer c.Close()
				if greets {
					_, _ = c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) // settings
				}
				_, _ = io.Copy(io.Discard, c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); served.Wait() })
	return "http://" + l.Addr().String()
}

// gone returns the URL of a member that does not run.
func gone(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func membersAt(t *testing.T, servers ...string) *members {
	m := newMembers(Options{Servers: servers}, func() {})
	m.next = 0
	t.Cleanup(m.close)
	return m
}

// TestMembers: the connection is to a member that greets, whatever the others do, and all callers share it.
func TestMembers(t *testing.T) {
	for name, servers := range map[string][]string{
		"the first":                      {member(t, true), gone(t)},
		"after one that does not run":    {gone(t), gone(t), member(t, true)},
		"after one that does not answer": {member(t, false), gone(t), member(t, true)},
	} {
		t.Run(name, func(t *testing.T) {
			m := membersAt(t, servers...)
			var callers sync.WaitGroup
			first, err := m.get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for range 8 {
				callers.Go(func() {
					if c, err := m.get(t.Context()); c != first {
						t.Errorf("another connection: %v", err)
					}
				})
			}
			callers.Wait()
		})
	}
}

// TestMembersDialOutlivesCallers: a connection that takes longer than its caller waits is there for the next one.
func TestMembersDialOutlivesCallers(t *testing.T) {
	m := membersAt(t, member(t, false), member(t, true))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.get(ctx); !errors.Is(err, errUnsent) || lost(err) {
		t.Errorf("%v", err)
	}
	if _, err := m.get(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNoMembers: without a member that runs, no transaction counts as sent.
func TestNoMembers(t *testing.T) {
	m := membersAt(t, gone(t), gone(t))
	if _, err := m.get(t.Context()); !errors.Is(err, errUnsent) || lost(err) || final(err) {
		t.Errorf("%v", err)
	}
	m.close()
	if _, err := m.get(t.Context()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestLeaveMember: what may be a member's fault makes the next call go to another one, and other errors do not. The connection that is left
// ends with its last call.
func TestLeaveMember(t *testing.T) {
	m := membersAt(t, member(t, true), member(t, true))
	first, err := m.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	watch, err := first.Open(t.Context(), watchPath, nil, nothing{})
	if err != nil {
		t.Fatal(err)
	}
	m.leave(first, status.Error(codes.FailedPrecondition, "etcdserver: mvcc: required revision has been compacted"))
	if c, _ := m.get(t.Context()); c != first {
		t.Error("another connection after an answer")
	}
	m.leave(first, status.Error(codes.Unavailable, "etcdserver: no leader"))
	second, err := m.get(t.Context())
	if err != nil || second == first || first.Ended() {
		t.Fatalf("the same connection after no answer, or the old one has ended: %v", err)
	}
	m.leave(first, context.DeadlineExceeded) // again
	if c, _ := m.get(t.Context()); c != second {
		t.Error("an old connection's error costs the new one")
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := watch.Wait(over); err == nil || !first.Ended() {
		t.Errorf("the old connection goes on without calls: %v", err)
	}
}

type nothing struct{}

func (nothing) Receive([]byte) error { return nil }

var _ grpcconn.Receiver = nothing{}
