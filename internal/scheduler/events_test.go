// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/scheduler"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// holder holds the binding of one pod up.
type holder struct{ holds, opened chan struct{} }

func (*holder) Name() string { return "Holder" }

func (h *holder) Bind(ctx context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) *fwk.Status {
	if pod.Name == "held" {
		close(h.holds)
		select {
		case <-h.opened:
		case <-ctx.Done():
		}
	}
	return fwk.NewStatus(fwk.Skip) // the usual binder does it
}

// slowEvents is a connection where events wait to be let through.
type slowEvents struct {
	http.RoundTripper
	through chan struct{} // a token each
	several chan struct{} // closed when two were under way at once

	mu      sync.Mutex
	under   int
	highest int
}

func (s *slowEvents) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/events") {
		return s.RoundTripper.RoundTrip(r)
	}
	s.mu.Lock()
	s.under++
	if s.under == 2 && s.highest < 2 {
		close(s.several)
	}
	s.highest = max(s.highest, s.under)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.under--
	}()
	select {
	case <-s.through:
		return s.RoundTripper.RoundTrip(r)
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// letThrough lets all events through until it is stopped.
func (s *slowEvents) letThrough() (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case s.through <- struct{}{}:
			case <-end:
				return
			}
		}
	}()
	return func() { close(end); <-ended }
}

// TestEventsGiveWayToBindings: while a pod is on its way to be bound events are written one at a time, and they are; when none is, several
// at once.
func TestEventsGiveWayToBindings(t *testing.T) {
	s, c := cluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	h, slow := &holder{make(chan struct{}), make(chan struct{})}, &slowEvents{through: make(chan struct{}), several: make(chan struct{})}
	config := rest.CopyConfig(s.Config())
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { slow.RoundTripper = rt; return slow })
	ended := make(chan error, 1)
	go func() {
		ended <- scheduler.Run(ctx, scheduler.Options{
			Config: config, Name: "held",
			Plugins: append(profile.Registry{{Name: "Holder",
				New: func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return h, nil }}}, builtin.SchedulerPlugins()...),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	within := func(what string, c chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(patience):
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
	addNode(t, c, "a", "100")
	bind := func(prefix string) {
		t.Helper()
		for i := range 4 {
			addPod(t, c, fmt.Sprint(prefix, i), "1", func(s *corev1.PodSpec) { s.SchedulerName = "held" })
		}
		for i := range 4 {
			awaitPod(t, c, fmt.Sprint(prefix, i), on("a"))
		}
	}
	stop := slow.letThrough() // of a node that is not ready yet
	addPod(t, c, "held", "1", func(s *corev1.PodSpec) { s.SchedulerName = "held" })
	within("a pod is held up", h.holds)
	stop()
	slow.mu.Lock()
	begun := slow.highest
	slow.mu.Unlock()
	bind("p")
	stop = slow.letThrough()
	for i := range 4 {
		awaitEvent(t, c, fmt.Sprint("p", i), "Scheduled", "")
	}
	stop()
	bind("q")
	slow.mu.Lock()
	if slow.highest > max(begun, 1) {
		t.Errorf("%d events at once while a pod was on its way", slow.highest)
	}
	slow.mu.Unlock()
	close(h.opened)
	within("several events at once when no pod is on its way", slow.several)
	defer slow.letThrough()()
	for _, name := range []string{"q0", "q1", "q2", "q3", "held"} {
		awaitEvent(t, c, name, "Scheduled", "")
	}
}
