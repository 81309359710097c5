// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/stats"
)

// givenUp is how long a call to a plug-in that hangs takes, before it is given up as kubelet does later.
const givenUp = time.Second

// call is a call to a plug-in.
type call func(ctx context.Context, c *grpc.ClientConn) error

var errAnswered = errors.New("its program was stopped, and yet it answered: another process serves")

// hang stops the plug-in's program, makes a call, which is given up, and lets the program go on. It returns the call's error.
func (b *bench) hang(ctx context.Context, socket string, f call) (said, err error) {
	c, sent, err := b.connected(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := b.halt(); err != nil {
		return nil, err
	}
	defer b.signal(syscall.SIGCONT)
	ctx, cancel := context.WithTimeout(ctx, givenUp)
	defer cancel()
	if said = f(ctx, c); said == nil {
		return nil, errAnswered
	}
	return said, sent.reached(ctx)
}

// breakOff kills the plug-in's program while a call is on its way, and returns the call's error. The program was stopped before, so that it
// does not answer.
func (b *bench) breakOff(ctx context.Context, socket string, f call) (said, err error) {
	c, sent, err := b.connected(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := b.halt(); err != nil {
		return nil, err
	}
	over := make(chan error, 1)
	ctx, cancel := context.WithTimeout(ctx, b.Wait)
	defer cancel()
	go func() { over <- f(ctx, c) }()
	err = sent.reached(ctx)
	b.kill()
	if said = <-over; said == nil {
		err = errors.Join(err, errAnswered)
	}
	return said, err
}

// connected connects to a plug-in that answers.
func (b *bench) connected(ctx context.Context, socket string) (*grpc.ClientConn, *onItsWay, error) {
	sent := &onItsWay{done: make(chan struct{})}
	c, err := connect(socket, grpc.WithStatsHandler(sent))
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, b.Wait)
	defer cancel()
	for state := c.GetState(); state != connectivity.Ready; state = c.GetState() {
		c.Connect()
		if !c.WaitForStateChange(ctx, state) {
			return nil, nil, errors.Join(fmt.Errorf("connect to %s: %w", socket, context.Cause(ctx)), c.Close())
		}
	}
	return c, sent, nil
}

// halt stops the program, and waits until it has stopped or ended.
func (b *bench) halt() error {
	b.signal(syscall.SIGSTOP)
	for {
		err := unix.Waitid(unix.P_PID, b.process.command.Process.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case err == nil, errors.Is(err, unix.ECHILD):
			return nil
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait until the program has stopped: %w", err)
		}
	}
}

// signal sends the program and all that it has started a signal.
func (b *bench) signal(s syscall.Signal) {
	if b.process != nil {
		_ = syscall.Kill(-b.process.command.Process.Pid, s) // it may have ended
	}
}

// onItsWay notes when a call's message has been written.
type onItsWay struct {
	once sync.Once
	done chan struct{}
}

// reached waits for that.
func (o *onItsWay) reached(ctx context.Context) error {
	select {
	case <-o.done:
		return nil
	default:
	}
	select {
	case <-o.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the call was not written: %w", context.Cause(ctx))
	}
}

// HandleRPC implements [stats.Handler].
func (o *onItsWay) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, is := s.(*stats.OutPayload); is {
		o.once.Do(func() { close(o.done) })
	}
}

// TagRPC implements [stats.Handler].
func (*onItsWay) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements [stats.Handler].
func (*onItsWay) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements [stats.Handler].
func (*onItsWay) HandleConn(context.Context, stats.ConnStats) {}

// hangs is the check of a program that hangs in a call: kubelet gives the call up, and says the words. Then the program goes on, and has to
// serve.
func (b *bench) hangs(ctx context.Context, socket string, f call, words func(error) string, serves func() finding) finding {
	if b.process == nil {
		return skip("the bench has not started the plug-in's program")
	}
	said, err := b.hang(ctx, socket, f)
	if err != nil {
		return warn("%v", err)
	}
	begun := time.Now()
	found := serves()
	if found.result != OK {
		return fail("it no longer serves after its program was stopped for %v in a call: %s", givenUp, found.what).kubeletSays(words(said))
	}
	found = ok("it serves after its program was stopped for %v in a call", givenUp).kubeletSays("meanwhile: " + words(said))
	found.took = time.Since(begun)
	return found
}
