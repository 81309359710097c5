// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/scheduler"
	"github.com/mortise-dev/mortise/internal/scheduler/decisionlog"
	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
)

// between is a way to the server that stands between a scheduler and the pods that it deletes.
type between struct {
	http.RoundTripper

	deletes func(*http.Request) (*http.Response, error) // nil, nil: goes on
}

func (b between) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodDelete {
		if answer, err := b.deletes(r); answer != nil || err != nil {
			return answer, err
		}
	}
	return b.RoundTripper.RoundTrip(r)
}

// runBetween runs a scheduler of the name patient whose deletions go through f, and returns what it decides and measures.
func runBetween(t *testing.T, s *embed.Server, f func(*http.Request) (*http.Response, error)) (*decisionlog.Log, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	m, err := metrics.New(registry)
	if err != nil {
		t.Fatal(err)
	}
	config, decisions := rest.CopyConfig(s.Config()), decisionlog.New(decisionlog.Options{})
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return between{rt, f} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- scheduler.Run(ctx, scheduler.Options{Config: config, Name: "patient", Decisions: decisions, Metrics: m,
			Plugins: builtin.SchedulerPlugins()})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return decisions, registry
}

func byPatient(p *corev1.Pod) { p.Spec.SchedulerName = "patient" }

// TestVictimsAreEndedBesides: while the deletions are on their way others are scheduled, and the pod that they are for is not tried.
func TestVictimsAreEndedBesides(t *testing.T) {
	s, c := cluster(t)
	held, asked := make(chan struct{}), make(chan string, 8)
	decisions, _ := runBetween(t, s, func(r *http.Request) (*http.Response, error) {
		name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		asked <- name
		if name == "last" {
			select {
			case <-held:
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
		return nil, nil
	})
	makeClass(t, c, "high", 100)
	makeClass(t, c, "mid", 50)
	addNode(t, c, "a", "4")
	makePod(t, c, "first", "2", "mid", byPatient) // the more important ones are ended first
	awaitPod(t, c, "first", on("a"))
	makePod(t, c, "last", "2", "", byPatient)
	awaitPod(t, c, "last", on("a"))

	makePod(t, c, "important", "4", "high", byPatient)
	awaitPod(t, c, "important", nominatedTo("a"))
	for _, want := range []string{"first", "last"} {
		select {
		case got := <-asked:
			if got != want {
				t.Errorf("pod %s is deleted, want %s", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("pod %s is not deleted", want)
		}
	}
	addNode(t, c, "b", "1")
	makePod(t, c, "small", "1", "", byPatient)
	awaitPod(t, c, "small", on("b"))

	end(t, c, "first") // half of the room is there
	makePod(t, c, "after", "1", "", byPatient)
	awaitPod(t, c, "after", refusedFor("0/2 nodes are available")) // so the scheduler has heard of it
	got := decisions.Scheduling("default", "important")
	if len(got.Decisions) != 1 || got.Place == nil || got.Place.Where != trace.PlaceGated ||
		strings.Join(got.Place.Plugins, " ") != "DefaultPreemption" {
		t.Errorf("%d decisions while a deletion is on its way, place %+v", len(got.Decisions), got.Place)
	}

	close(held)
	awaitPod(t, c, "last", doomed)
	end(t, c, "last")
	awaitPod(t, c, "important", on("a"))
	if n := len(asked); n != 0 {
		t.Errorf("%d deletions more than there are victims", n)
	}
}

// TestVictimThatCannotBeEnded: the pod is tried again, and ends the victim then.
func TestVictimThatCannotBeEnded(t *testing.T) {
	s, c := cluster(t)
	var asked atomic.Int32
	_, registry := runBetween(t, s, func(r *http.Request) (*http.Response, error) {
		if asked.Add(1) > 1 {
			return nil, nil
		}
		const status = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"not now"}`
		return &http.Response{StatusCode: http.StatusForbidden, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
			Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(status))}, nil
	})
	makeClass(t, c, "high", 100)
	addNode(t, c, "a", "4")
	makePod(t, c, "victim", "4", "", byPatient)
	awaitPod(t, c, "victim", on("a"))
	makePod(t, c, "important", "4", "high", byPatient)
	awaitPod(t, c, "victim", doomed)
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times for the deletion, want 2", n)
	}
	if n := failed(t, registry); n != 1 {
		t.Errorf("%v preemptions are counted as failed, want 1", n)
	}
	end(t, c, "victim")
	awaitPod(t, c, "important", on("a"))
}

// failed is how many preemptions are counted whose victims could not be ended.
func failed(t *testing.T, r *prometheus.Registry) (n float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "scheduler_preemption_goroutines_execution_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == "error" {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}
