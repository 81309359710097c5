// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/mortise-dev/mortise/internal/apiserver/http2server"
)

// All goroutines of a cluster have a profiler label with the cluster's number: goroutines inherit the labels of the one that starts them.
// A dump of all goroutines is one moment of the process. If each goroutine of the cluster waits for another one in it, every queue is empty
// and every informer has handled what the store has: nothing happens until the clock advances or a request arrives.

// goroutinesOf is the key of the label.
const goroutinesOf = "mortise-cluster"

// clusters counts the clusters of this process.
var clusters atomic.Int64

// newLabel returns the value of the label of a new cluster.
func newLabel() string { return strconv.FormatInt(clusters.Add(1), 10) }

// labelled calls f in a goroutine that belongs to the cluster, and waits for it.
func labelled(label string, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		pprof.Do(context.Background(), pprof.Labels(goroutinesOf, label), func(context.Context) { f() })
	}()
	<-done
}

// Go runs f in a goroutine of the cluster: [Cluster.Settle] waits for what it does, and for the goroutines that it starts.
func (c *Cluster) Go(f func()) {
	labelled(c.settings.Start.label, func() { go f() })
}

// showLabels has dumps of goroutines show labels, as the runtime does by itself from Go 1.27 on.
var showLabels = sync.OnceValue(func() error {
	const setting = "tracebacklabels=1"
	if now := os.Getenv("GODEBUG"); now != "" {
		return os.Setenv("GODEBUG", now+","+setting)
	}
	return os.Setenv("GODEBUG", setting)
})

// Settle waits until nothing more happens before the clock advances or a request arrives: all goroutines of the cluster wait for each
// other, and nothing is on its way between the API server and its HTTP/2 clients. Keys that the controllers try again within their first
// second count as work. A fork that is not used yet is settled. When ctx ends before, the error says which goroutines are at work.
func (c *Cluster) Settle(ctx context.Context) error {
	for {
		if err := c.quiet(ctx); err != nil {
			return err
		}
		clients, local, err := connected(c)
		if clients == nil {
			return err
		}
		// What is on its way through the kernel, no goroutine knows of. First what the server has sent reaches the clients, and then what they
		// send because of it reaches the server.
		before, sent := c.Revision(), clients.Received(local)
		for range 2 {
			if err := clients.Ping(ctx, local); err != nil {
				return err
			}
			if err := c.quiet(ctx); err != nil {
				return err
			}
		}
		if clients.Received(local) == sent && c.Revision() == before {
			return nil
		}
	}
}

// connected returns what serves the HTTP/2 connections of a cluster, and their local address if it serves others, too. It returns nil for a
// fork without a port.
func connected(c *Cluster) (clients *http2server.Server, local string, err error) {
	if c.origin == nil {
		return c.now.http2, "", nil
	}
	if c.origin.base == nil {
		return nil, "", nil
	}
	r, err := c.origin.base.read()
	if err != nil {
		return nil, "", err
	}
	return r.http2, c.settings.Listen, nil
}

// quiet waits until all goroutines of the cluster wait for each other.
func (c *Cluster) quiet(ctx context.Context) error {
	if err := showLabels(); err != nil {
		return fmt.Errorf("show labels: %w", err)
	}
	d := dump{label: []byte(strconv.Quote(goroutinesOf) + ": " + strconv.Quote(c.settings.Start.label))}
	turns := newTurns()
	for {
		r := instanceOf(c)
		if r == nil {
			return nil
		}
		working, all := d.take()
		switch {
		case all == 0:
			return errors.New("the runtime shows no labels of goroutines")
		case ctx.Err() != nil:
			return fmt.Errorf("%w; at work:\n%s", context.Cause(ctx), strings.Join(working, "\n"))
		case len(working) > 0:
			turns.wait() // they run first
		default:
			select {
			case <-r.retries.None():
				return nil
			default:
			}
			select { // they come back to their queues
			case <-r.retries.None():
			case <-ctx.Done():
			}
		}
	}
}

// instanceOf returns what runs; nil: the fork is not used yet. It waits for a start in the background.
func instanceOf(c *Cluster) *instance {
	c.beginning.Lock()
	begun := c.begun
	c.beginning.Unlock()
	if begun {
		r, _ := c.use() // nil: it cannot start, and the next request gets the error
		return r
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// turns lets other goroutines run between two dumps, which stop them all.
type turns struct {
	counts []metrics.Sample // of goroutines that run, and of those that could
	most   int
}

// The longest wait between two dumps: others in the process may always have something to do.
const (
	fewestTurns = 64
	mostTurns   = 1 << 14
	idleTurns   = 16 // so many in a row without another: what is on its way through the kernel has arrived
)

func newTurns() *turns {
	return &turns{most: fewestTurns, counts: []metrics.Sample{
		{Name: "/sched/goroutines/running:goroutines"}, {Name: "/sched/goroutines/runnable:goroutines"},
	}}
}

// wait returns when the scheduler has had no other goroutine to run for some turns, by its own counts, which stop nothing; or after a
// number of turns, which doubles with each wait.
func (t *turns) wait() {
	idle := 0
	for range t.most {
		runtime.Gosched()
		metrics.Read(t.counts)
		if t.counts[0].Value.Kind() != metrics.KindUint64 { // another release of Go
			return
		}
		if t.counts[0].Value.Uint64() > 1 || t.counts[1].Value.Uint64() > 0 { // this one runs, too
			idle = 0
		} else if idle++; idle == idleTurns {
			return
		}
	}
	t.most = min(2*t.most, mostTurns)
}

// dump reads the goroutines of a cluster.
type dump struct {
	label []byte // in the header of a goroutine
	text  []byte
}

// waits are the beginnings of the states of goroutines that run only once another one, the clock or the network wakes them.
var waits = []string{"chan receive", "chan send", "select", "sync.", "semacquire", "IO wait", "sleep"}

// connecting are functions of goroutines that go on by themselves although they wait: the other end of the connection is not known yet.
var connecting = []string{"\nnet.(*sysDialer).dialSingle(", "\ncrypto/tls.(*Conn).handshakeContext("}

// innermost is how many functions of a goroutine an error shows.
const innermost = 6

// functions returns the innermost functions of a goroutine's stack, a line each.
func functions(stack []byte) string {
	var b strings.Builder
	shown := 0
	for line := range bytes.Lines(stack) {
		if line[0] == '\t' { // the place in a file
			continue
		}
		if shown++; shown > innermost {
			break
		}
		b.WriteString("\n\t")
		b.Write(bytes.TrimSuffix(line, []byte("\n")))
	}
	return b.String()
}

// take returns the headers and innermost functions of the goroutines that are at work, and how many the cluster has.
func (d *dump) take() (working []string, all int) {
	for {
		d.text = slices.Grow(d.text[:0], 1<<20)
		d.text = d.text[:cap(d.text)]
		n := runtime.Stack(d.text, true)
		if n < len(d.text) {
			d.text = d.text[:n]
			break
		}
		d.text = make([]byte, 2*len(d.text))
	}
	for block := range bytes.SplitSeq(d.text, []byte("\n\n")) {
		header, rest, _ := bytes.Cut(block, []byte("\n"))
		if !bytes.Contains(header, d.label) {
			continue
		}
		all++
		_, state, _ := bytes.Cut(header, []byte("["))
		waiting := slices.ContainsFunc(waits, func(s string) bool { return bytes.HasPrefix(state, []byte(s)) })
		if !waiting || slices.ContainsFunc(connecting, func(s string) bool { return bytes.Contains(rest, []byte(s)) }) {
			working = append(working, string(header)+functions(rest))
		}
	}
	return working, all
}
