// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/resource"
)

const (
	// resolution is the age up to which a measurement answers questions.
	resolution = 10 * time.Second
	// longestWindow is the age up to which a measurement is the begin of a window. Usage over a longer one says little of now.
	longestWindow = time.Minute
	// shortestWindow is how old the begin of a window is at the least, where it can be, and spacing is the time between the measurements
	// that are kept to begin one.
	shortestWindow, spacing = 6 * time.Second, 4 * time.Second
	// firstWindow is the time between the two measurements of a node that was not asked lately.
	firstWindow = time.Second
	// patience is the time that a question waits for a node, from the begin of its measurement. Nodes that are slower are missing.
	patience = 3 * time.Second
	// limit is the time that a node has for one measurement.
	limit = 10 * time.Second
	// concurrent is the maximum number of nodes that are measured at the same time.
	concurrent = 64
	// keeps is the time that measurements are kept without questions.
	keeps = 5 * time.Minute
)

// Local measures nodes of this process.
type Local interface {
	// Measure measures a node; a nil sample without an error: the node is not of this process.
	Measure(ctx context.Context, node *corev1.Node) (*Sample, error)
}

// Options of [New].
type Options struct {
	Local  Local             // nil: all nodes are elsewhere
	Log    *slog.Logger      // nil: nothing is logged
	Ledger *extension.Ledger // counts the measurements of nodes; nil: they are not counted
}

// Server answers what nodes and pods use. It is safe for concurrent use.
type Server struct {
	o     Options
	ended <-chan struct{}
	end   context.CancelFunc
	slots chan struct{} // holds a token for each measurement in flight
	// Labels find the pods that clients select.
	Labels *Labels
	// attempt returns the context of one measurement: it outlives the request that began it, and ends with the server.
	attempt func() (context.Context, context.CancelFunc)

	mu      sync.Mutex
	nodes   map[string]*node
	watches map[types.NamespacedName]*watch
	watched int         // nodes with watches
	sweep   *time.Timer // drops nodes that are not asked for; nil: there are none
	closed  bool
	works   sync.WaitGroup
}

// node is what is known of a node.
type node struct {
	asked   time.Time // last
	begun   time.Time // the last measurement
	busy    chan struct{}
	last    *sample   // nil: not measured, or the last attempt failed
	earlier []*sample // begins of windows, the oldest first; where there is a last one, there is an earlier one
	failure string    // of the last attempt; empty: none
	warned  string    // the failure that has been logged

	// Of the last question, and how long the last measurement took.
	backend resource.Backend
	object  *corev1.Node
	took    time.Duration

	shares  map[*share]struct{} // of watches, in the node's pods
	again   *time.Timer         // measures the node for its watches; nil: it has none
	hurries bool                // the next such measurement is soon
}

// add adds a measurement to those of the node.
func (n *node) add(s *sample) {
	if s.at.Sub(n.last.at) >= shortestWindow {
		n.last, n.earlier = s, []*sample{n.last}
		return
	}
	if n.last.at.Sub(n.earlier[len(n.earlier)-1].at) >= spacing {
		n.earlier = append(n.earlier, n.last)
	}
	n.last = s
	drop := 0
	for drop < len(n.earlier)-1 && s.at.Sub(n.earlier[drop+1].at) >= shortestWindow {
		drop++
	}
	n.earlier = slices.Delete(n.earlier, 0, drop)
}

// samples returns the measurements at the end and at the begin of the last window; nil: there is none.
func (n *node) samples() (last, prev *sample) {
	if n == nil || n.last == nil {
		return nil, nil
	}
	return n.last, n.earlier[0]
}

// New makes a server that ends with [Server.Close].
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		o: o, Labels: newLabels(), slots: make(chan struct{}, concurrent), nodes: map[string]*node{}, watches: map[types.NamespacedName]*watch{},
	}
	life, end := context.WithCancel(context.Background())
	s.ended, s.end = life.Done(), end
	s.attempt = func() (context.Context, context.CancelFunc) { return context.WithTimeout(life, limit) }
	return s
}

// Close ends the measurements, and waits for them. A nil server has none.
func (s *Server) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.closed = true
	if s.sweep != nil {
		s.sweep.Stop()
	}
	for _, n := range s.nodes {
		if n.again != nil {
			n.again.Stop()
		}
	}
	s.mu.Unlock()
	s.end()
	s.works.Wait()
}

// samples returns the measurements of a node at the end and at the begin of the last window; nil: there is none.
func (s *Server) samples(name string) (last, prev *sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[name].samples()
}

// measure measures those of the nodes whose last measurement is too old, and waits for the results. It does not wait for nodes that are not
// ready, nor for others beyond the server's patience.
func (s *Server) measure(ctx context.Context, b resource.Backend, nodes []*corev1.Node) {
	type waiting struct {
		done  <-chan struct{}
		until time.Time
	}
	var waits []waiting
	for _, n := range nodes {
		if done, begun := s.begin(b, n); done != nil && ready(n) {
			waits = append(waits, waiting{done, begun.Add(patience)})
		}
	}
	for _, w := range waits {
		t := time.NewTimer(time.Until(w.until))
		select {
		case <-w.done:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// begin begins the measurement of a node, unless it is known well enough. It returns the end of the measurement in flight, and when that
// began.
func (s *Server) begin(b resource.Backend, of *corev1.Node) (done <-chan struct{}, begun time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, begun
	}
	now := time.Now()
	n := s.nodes[of.Name]
	if n == nil {
		n = &node{}
		s.nodes[of.Name] = n
		if s.sweep == nil {
			s.sweep = time.AfterFunc(keeps, s.drop)
		}
	}
	n.asked, n.backend, n.object = now, b, of
	switch {
	case n.busy != nil:
		return n.busy, n.begun
	case !n.begun.IsZero() && now.Sub(n.begun) < resolution: // a failed node is not asked again sooner either
		return nil, begun
	}
	s.start(n, now)
	return n.busy, n.begun
}

// start starts a measurement. The caller holds the lock.
func (s *Server) start(n *node, now time.Time) {
	first := n.last == nil || now.Sub(n.last.at) > longestWindow
	n.begun, n.busy, n.hurries = now, make(chan struct{}), false
	b, of := n.backend, n.object
	s.works.Go(func() { s.take(b, n, of, first) })
}

// take measures a node, twice if it is for the first time, and publishes the result.
func (s *Server) take(b resource.Backend, n *node, of *corev1.Node, first bool) {
	begun := time.Now()
	last, err := s.read(b, of)
	took := time.Since(begun)
	var prev *sample
	if err == nil && first {
		prev = last
		t := time.NewTimer(firstWindow)
		select {
		case <-t.C:
		case <-s.ended:
		}
		t.Stop()
		last, err = s.read(b, of)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.took = min(took, n.took+n.took/4); n.took == 0 { // one that is slow once, as on a busy machine, does not count
		n.took = took
	}
	failure := ""
	switch {
	case err != nil:
		n.last, n.earlier, failure = nil, nil, err.Error()
	case first:
		n.last, n.earlier = last, []*sample{prev}
	default:
		n.add(last)
	}
	// A single failure is that of a node that is only just starting, or of one that has stopped and will not be ready for long.
	if failure != "" && n.failure != "" && failure != n.warned && !s.closed {
		s.o.Log.Warn("Could not read what a node uses", "node", of.Name, "error", err)
		n.warned = failure
	}
	if n.failure = failure; failure == "" {
		n.warned = ""
	}
	close(n.busy)
	n.busy = nil
	s.tell(n)
	s.follow(n)
}

// builtIn names the server in the ledger, once it has measured a node.
var builtIn = extension.Ref{Point: extension.MetricsAPI, Name: "built-in"}

// read measures a node once.
func (s *Server) read(b resource.Backend, of *corev1.Node) (out *sample, err error) {
	ctx, cancel := s.attempt()
	defer cancel()
	if l := s.o.Ledger; l != nil {
		begun := time.Now()
		l.Register(builtIn, "--resource-metrics-api")
		defer func() { l.Book(builtIn, time.Since(begun), err) }()
	}
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.slots }()
	if s.o.Local != nil {
		if m, err := s.o.Local.Measure(ctx, of); m != nil || err != nil {
			if err != nil {
				return nil, err
			}
			return index(m, time.Now()), nil
		}
	}
	m, err := remote(ctx, b, of.Name)
	if err != nil {
		return nil, err
	}
	return index(m, time.Now()), nil
}

// drop drops nodes that no client has asked for lately.
func (s *Server) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for name, n := range s.nodes {
		if n.busy == nil && time.Since(n.asked) >= keeps {
			s.forget(name, n)
		}
	}
	s.sweep = nil
	if len(s.nodes) > 0 {
		s.sweep = time.AfterFunc(keeps, s.drop)
	} else {
		s.nodes = map[string]*node{} // the old one would keep its size
	}
}
