// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podgc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// fixture is the pods and the runtime around a manager.
type fixture struct {
	internalapi.RuntimeService
	*Manager

	mu      sync.Mutex
	known   map[types.UID]bool
	all     bool
	over    map[types.UID]bool
	torn    []string
	tearing error
	exited  []*runtimeapi.Container
	filter  *runtimeapi.ContainerFilter
	listing error
	remove  map[string]error
	removed []string
	log     bytes.Buffer
}

func (f *fixture) Known() (map[types.UID]bool, bool) { return f.known, f.all }
func (f *fixture) Over() map[types.UID]bool          { return f.over }
func (f *fixture) TearDown(_ context.Context, pod types.UID) error {
	f.torn = append(f.torn, string(pod))
	return f.tearing
}

func (f *fixture) ListContainers(_ context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	f.filter = filter
	return f.exited, f.listing
}

func (f *fixture) RemoveContainer(_ context.Context, id string) error {
	f.removed = append(f.removed, id)
	return f.remove[id]
}

func (f *fixture) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.Write(p)
}

func newFixture(t *testing.T) *fixture {
	dir := t.TempDir()
	f := &fixture{known: map[types.UID]bool{"here": true}, all: true}
	f.Manager = New(Config{
		Runtime: &cri.Client{Runtime: f}, Pods: f, PodsDir: filepath.Join(dir, "pods"), LogDir: filepath.Join(dir, "logs"),
		Clock: clock.RealClock{}, Logger: slog.New(slog.NewTextHandler(f, nil)),
	})
	for _, made := range []string{"pods/here", "pods/gone", "pods/gone2", "logs/ns_p_here", "logs/ns_q_gone", "logs/ns_r_other", "logs/gone",
		"logs/ns_gone", "logs/a_b_c_gone"} {
		if err := os.MkdirAll(filepath.Join(dir, made, "c"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestDirectoriesOfPodsThatAreNoMore: each minute, what pods have left that no worker knows is given back, and their logs go; logs that
// are not of a pod of this node stay.
func TestDirectoriesOfPodsThatAreNoMore(t *testing.T) {
	f := newFixture(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- f.Run(ctx) }()
		time.Sleep(time.Minute - 1)
		synctest.Wait()
		if len(f.torn) != 0 {
			t.Errorf("before a minute: %q", f.torn)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if want := []string{"gone", "gone2"}; !slices.Equal(f.torn, want) {
			t.Errorf("torn down %q, want %q", f.torn, want)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(f.torn) != 4 {
			t.Errorf("after two minutes: %q", f.torn)
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	if got, want := names(t, f.LogDir), []string{"a_b_c_gone", "gone", "ns_gone", "ns_p_here", "ns_r_other"}; !slices.Equal(got, want) {
		t.Errorf("logs left: %q, want %q", got, want)
	}
	if f.log.Len() > 0 {
		t.Errorf("log: %s", &f.log)
	}
}

// TestNothingIsRemovedBeforeAllPodsAreKnown: a node that has not heard everybody knows of no pod that it is no more.
func TestNothingIsRemovedBeforeAllPodsAreKnown(t *testing.T) {
	f := newFixture(t)
	f.all = false
	if err := f.removeDirs(t.Context()); err != nil || len(f.torn) != 0 || len(names(t, f.LogDir)) != 6 {
		t.Errorf("%v; torn down %q, logs left %q", err, f.torn, names(t, f.LogDir))
	}
}

// TestGarbageThatStays: what cannot be removed keeps nothing else, is tried again each minute, and is in few lines of the log.
func TestGarbageThatStays(t *testing.T) {
	f := newFixture(t)
	f.tearing = errors.New("busy")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- f.Run(ctx) }()
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if len(f.torn) != 40 {
			t.Errorf("%d tries in twenty minutes, want 20 of each pod", len(f.torn))
		}
		f.mu.Lock()
		lines := strings.Split(strings.TrimSpace(f.log.String()), "\n")
		f.mu.Unlock()
		if len(lines) < 3 || len(lines) > 5 || !strings.Contains(lines[0], `busy\nbusy`) || !strings.Contains(lines[1], "failures=") {
			t.Errorf("%d lines: %q", len(lines), lines)
		}
		f.tearing = nil
		time.Sleep(time.Minute)
		synctest.Wait()
		f.tearing = errors.New("busy")
		f.log.Reset()
		time.Sleep(time.Minute)
		synctest.Wait()
		if f.log.Len() == 0 || strings.Contains(f.log.String(), "failures=") {
			t.Errorf("a failure after a success: %q", f.log.String())
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	if slices.Contains(names(t, f.LogDir), "ns_q_gone") {
		t.Error("the logs stay because something else does")
	}
}

func TestDirectoriesThatCannotBeListed(t *testing.T) {
	f := newFixture(t)
	pods := f.PodsDir
	f.PodsDir = filepath.Join(pods, "none")
	if err := f.removeDirs(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "list pod directories: ") {
		t.Errorf("no directory of pods: %v", err)
	}
	f.PodsDir, f.LogDir = pods, filepath.Join(pods, "none")
	if err := f.removeDirs(t.Context()); err == nil || !strings.Contains(err.Error(), "list logs: ") || len(f.torn) != 2 {
		t.Errorf("no directory of logs: %v, torn down %q", err, f.torn)
	}
}

// TestDeadContainers: containers that have ended go if their pods have ended for good; one that is gone already is no error.
func TestDeadContainers(t *testing.T) {
	of := func(pod, id string) *runtimeapi.Container {
		return &runtimeapi.Container{Id: id, Labels: map[string]string{podstate.LabelPodUID: pod}}
	}
	for name, c := range map[string]struct {
		listing error
		remove  map[string]error
		removed []string
		want    string
	}{
		"all is well":  {nil, nil, []string{"c1", "c4"}, ""},
		"one is gone":  {nil, map[string]error{"c1": status.Error(codes.NotFound, "gone")}, []string{"c1", "c4"}, ""},
		"one is stuck": {nil, map[string]error{"c1": errors.New("stuck")}, []string{"c1"}, "remove container c1: stuck"},
		"no list":      {errors.New("silence"), nil, nil, "list containers: silence"},
	} {
		f := newFixture(t)
		f.over = map[types.UID]bool{"over": true, "runs": false}
		f.exited = []*runtimeapi.Container{of("over", "c1"), of("runs", "c2"), of("unknown", "c3"), of("over", "c4")}
		f.listing, f.remove = c.listing, c.remove
		err := f.DeleteDeadContainers(t.Context())
		if got := fmt.Sprint(err); got != c.want && (err != nil || c.want != "") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if !slices.Equal(f.removed, c.removed) {
			t.Errorf("%s: removed %q, want %q", name, f.removed, c.removed)
		}
		if f.filter.GetState().GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
			t.Errorf("%s: asked for %v", name, f.filter)
		}
	}
}
