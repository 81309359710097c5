// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package grpcconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// raw is a codec of messages that are bytes.
type raw struct{}

func (raw) Name() string { return "raw" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// serve starts grpc-go's server, which handles each call with f, and returns its address.
func serve(t *testing.T, f func(path string, s grpc.ServerStream) error) (*grpc.Server, string) {
	t.Helper()
	server := grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		path, _ := grpc.MethodFromServerStream(s)
		return f(path, s)
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Stop(); served.Wait() })
	return server, l.Addr().String()
}

// echo answers each message with itself.
func echo(_ string, s grpc.ServerStream) error {
	for {
		var m []byte
		if err := s.RecvMsg(&m); err != nil {
			return nil
		}
		if err := s.SendMsg(&m); err != nil {
			return err
		}
	}
}

func dial(t *testing.T, address string, o Options) *Conn {
	t.Helper()
	if o.Settled == nil {
		o.Settled = func() {}
	}
	if o.Silence == 0 {
		o.Silence, o.Patience = time.Hour, time.Hour
	}
	c, err := Dial(t.Context(), address, nil, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// messagesOf keeps what it receives.
type messagesOf struct {
	mu  sync.Mutex
	all [][]byte
	got chan struct{} // gets one for each message, if there is room
}

func (m *messagesOf) Receive(message []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, bytes.Clone(message))
	select {
	case m.got <- struct{}{}:
	default:
	}
	return nil
}

func ask(ctx context.Context, c *Conn, path string, request []byte) ([]byte, error) {
	var to messagesOf
	s, err := c.Begin(ctx, path, request, &to)
	if err == nil {
		err = s.Wait(ctx)
	}
	if len(to.all) == 0 {
		return nil, err
	}
	return to.all[0], err
}

// TestCalls: many calls at once get their own answers, whatever their size: both sides' windows and frames are smaller than the largest.
func TestCalls(t *testing.T) {
	_, address := serve(t, echo)
	c := dial(t, address, Options{})
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			for _, size := range []int{0, 1, 1000, 1 << 14, 100_000, 1 << 20} {
				request := bytes.Repeat([]byte{byte(i)}, size)
				if got, err := ask(t.Context(), c, "/a/b", request); err != nil || !bytes.Equal(got, request) {
					t.Errorf("%d bytes: %d, %v", size, len(got), err)
				}
			}
		})
	}
	callers.Wait()
}

// TestStatus: the server's status is the call's error.
func TestStatus(t *testing.T) {
	_, address := serve(t, func(path string, s grpc.ServerStream) error {
		if path == "/answered/first" {
			m := []byte("x")
			if err := s.SendMsg(&m); err != nil {
				return err
			}
		}
		return status.Error(codes.FailedPrecondition, "etcdserver: 100 % größer")
	})
	c := dial(t, address, Options{})
	for _, path := range []string{"/at/once", "/answered/first"} {
		_, err := ask(t.Context(), c, path, nil)
		if s := status.Convert(err); s.Code() != codes.FailedPrecondition || s.Message() != "etcdserver: 100 % größer" {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestStream: messages go both ways, in their order, until the receiver wants no more.
func TestStream(t *testing.T) {
	_, address := serve(t, echo)
	c := dial(t, address, Options{})
	to := &messagesOf{got: make(chan struct{}, 1000)}
	s, err := c.Open(t.Context(), "/a/b", []byte("0"), to)
	for i := 1; i < 1000 && err == nil; i++ {
		err = s.Send(t.Context(), fmt.Append(nil, i))
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		<-to.got
	}
	for i, m := range to.all {
		if string(m) != fmt.Sprint(i) {
			t.Fatalf("message %d is %s", i, m)
		}
	}
	enough := errors.New("enough")
	s, err = c.Open(t.Context(), "/a/b", nil, receiver(func([]byte) error { return enough }))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(t.Context()); !errors.Is(err, enough) {
		t.Errorf("the receiver's error is %v", err)
	}
}

type receiver func([]byte) error

func (r receiver) Receive(message []byte) error { return r(message) }

// TestCancel: a call ends with its context, the server learns of it, and the connection goes on.
func TestCancel(t *testing.T) {
	ended := make(chan struct{})
	_, address := serve(t, func(path string, s grpc.ServerStream) error {
		if path == "/a/b" {
			return echo(path, s)
		}
		<-s.Context().Done()
		close(ended)
		return nil
	})
	c := dial(t, address, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	s, err := c.Begin(ctx, "/wait/for", nil, &messagesOf{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := s.Wait(ctx); status.Code(err) != codes.Canceled {
		t.Errorf("%v", err)
	}
	<-ended
	if _, err := ask(t.Context(), c, "/a/b", nil); err != nil {
		t.Error(err)
	}
}

// TestSettled: callers get their answers when the function that Dial was given has run after them.
func TestSettled(t *testing.T) {
	_, address := serve(t, echo)
	var received, settled atomic.Int64
	c := dial(t, address, Options{Settled: func() { settled.Store(received.Load()) }})
	for i := range int64(200) {
		s, err := c.Begin(t.Context(), "/a/b", nil, receiver(func([]byte) error { received.Add(1); return nil }))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Wait(t.Context()); err != nil || settled.Load() != i+1 {
			t.Fatalf("call %d returned after %d answers had settled: %v", i, settled.Load(), err)
		}
	}
}

// TestGoAway: a server that is going away answers the calls that it has; new ones are refused, and the connection ends with the last.
func TestGoAway(t *testing.T) {
	begun, answer := make(chan struct{}), make(chan struct{})
	server, address := serve(t, func(path string, s grpc.ServerStream) error {
		close(begun)
		<-answer
		return echo(path, s)
	})
	c := dial(t, address, Options{})
	s, err := c.Begin(t.Context(), "/a/b", nil, &messagesOf{})
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	var stopping sync.WaitGroup
	stopping.Go(server.GracefulStop)
	going(t, c)
	if _, err := ask(t.Context(), c, "/c/d", nil); status.Code(err) != codes.Unavailable {
		t.Errorf("a new call: %v", err)
	}
	close(answer)
	if err := s.Wait(t.Context()); err != nil {
		t.Errorf("the call that the server had: %v", err)
	}
	stopping.Wait()
}

// going returns when the server has said that it is going away.
func going(t *testing.T, c *Conn) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.going {
		if err := c.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBroken: calls of a connection that breaks fail as unavailable, and so do later ones.
func TestBroken(t *testing.T) {
	begun := make(chan struct{})
	server, address := serve(t, func(_ string, s grpc.ServerStream) error {
		close(begun)
		<-s.Context().Done()
		return nil
	})
	c := dial(t, address, Options{})
	s, err := c.Begin(t.Context(), "/a/b", nil, &messagesOf{})
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	server.Stop()
	if err := s.Wait(t.Context()); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
	if _, err := ask(t.Context(), c, "/a/b", nil); status.Code(err) != codes.Unavailable || c.Usable() {
		t.Errorf("a later call: %v", err)
	}
}

// TestRetire: a retired connection takes no calls, and ends with its last one.
func TestRetire(t *testing.T) {
	answer := make(chan struct{})
	_, address := serve(t, func(path string, s grpc.ServerStream) error {
		<-answer
		return echo(path, s)
	})
	c := dial(t, address, Options{})
	s, err := c.Begin(t.Context(), "/a/b", nil, &messagesOf{})
	if err != nil {
		t.Fatal(err)
	}
	c.Retire()
	if _, err := ask(t.Context(), c, "/a/b", nil); status.Code(err) != codes.Unavailable || c.Ended() {
		t.Errorf("a call of a retired connection: %v", err)
	}
	close(answer)
	if err := s.Wait(t.Context()); err != nil || !c.Ended() {
		t.Errorf("the last call: %v; ended: %v", err, c.Ended())
	}
}
