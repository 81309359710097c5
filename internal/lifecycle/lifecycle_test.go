// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// record notes what the steps of a table do.
type record struct {
	process *Process
	group   *Group
	told    []string
}

// table has four steps: the second makes a group, the third and the fourth run a part in it.
func table(part func(ctx context.Context) error) []Step[*record] {
	note := func(text string) func(*record) error {
		return func(r *record) error { r.told = append(r.told, text); return nil }
	}
	return []Step[*record]{
		{Name: "open", Start: func(_ context.Context, r *record) error { return note("open")(r) }, Stop: note("close")},
		{
			Name: "group", Start: func(_ context.Context, r *record) error { r.group = r.process.Dependents(); return nil },
			Stop: func(r *record) error { r.group.Stop(); return note("stop group")(r) },
		},
		{Name: "run", Start: func(ctx context.Context, r *record) error {
			r.group.Run(ctx, "part", part)
			return note("run")(r)
		}},
		{Name: "write", Start: func(ctx context.Context, r *record) error {
			r.group.Go(ctx, func(ctx context.Context) { <-ctx.Done() })
			return note("write")(r)
		}},
	}
}

func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func start(ctx context.Context, steps []Step[*record]) (*Process, *record, error) {
	r := &record{}
	p, err := Start(ctx, steps, func(p *Process) *record { r.process = p; return r })
	return p, r, err
}

func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p, r, err := start(ctx, table(untilDone))
		if err != nil {
			t.Fatal(err)
		}
		cancel() // it has no effect any more
		synctest.Wait()
		waited := make(chan error)
		go func() { waited <- p.Wait() }()
		for range 2 {
			if err := p.Stop(); err != nil {
				t.Error(err)
			}
		}
		if err := <-waited; err != nil {
			t.Errorf("Wait answers %v after Stop", err)
		}
		if want := []string{"open", "run", "write", "stop group", "close"}; !slices.Equal(r.told, want) {
			t.Errorf("the steps did %q, want %q", r.told, want)
		}
	})
}

// TestFailingSteps fails each step in turn: what was started is stopped, the last first. A goroutine that stayed would keep the bubble
// from ending.
func TestFailingSteps(t *testing.T) {
	broken := errors.New("broken on purpose")
	for at := range len(table(nil)) {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				steps := table(untilDone)
				steps[at].Start = func(context.Context, *record) error { return broken }
				p, r, err := start(t.Context(), steps)
				if p != nil || !errors.Is(err, broken) {
					t.Errorf("Start answers %v, %v", p, err)
				}
				want := [][]string{nil, {"open", "close"}, {"open", "stop group", "close"}, {"open", "run", "stop group", "close"}}[at]
				if !slices.Equal(r.told, want) {
					t.Errorf("the steps did %q, want %q", r.told, want)
				}
			})
		})
	}
}

func TestAbandonedStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	steps := table(untilDone)
	open := steps[0].Start
	steps[0].Start = func(ctx context.Context, r *record) error { cancel(); return open(ctx, r) }
	_, r, err := start(ctx, steps)
	if !errors.Is(err, context.Canceled) || !slices.Equal(r.told, []string{"open", "close"}) {
		t.Errorf("Start answers %v after %q", err, r.told)
	}
}

// TestPartEnds: a part that ends by itself ends the group that depends on all parts, and Wait returns the reason.
func TestPartEnds(t *testing.T) {
	for want, part := range map[string]func(context.Context) error{
		"run part: ended":  func(context.Context) error { return nil },
		"run part: broken": func(context.Context) error { return errors.New("broken") },
	} {
		synctest.Test(t, func(t *testing.T) {
			steps := table(part)
			p, r, err := start(t.Context(), steps)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Wait(); err == nil || err.Error() != want {
				t.Errorf("Wait answers %v, want %q", err, want)
			}
			r.group.running.Wait() // without Stop
			late := make(chan error, 1)
			r.group.Go(t.Context(), func(ctx context.Context) { late <- untilDone(ctx) })
			<-late
			if err := p.Stop(); err != nil || strings.Contains(fmt.Sprint(p.Wait()), "context") {
				t.Errorf("Stop answers %v", err)
			}
		})
	}
}

// TestStopsErrors: all steps are stopped, whatever one of them says.
func TestStopErrors(t *testing.T) {
	broken := errors.New("broken on purpose")
	steps := table(untilDone)
	stop := steps[1].Stop
	steps[1].Stop = func(r *record) error { return errors.Join(stop(r), broken) }
	p, r, err := start(t.Context(), steps)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); !errors.Is(err, broken) || r.told[len(r.told)-1] != "close" {
		t.Errorf("Stop answers %v after %q", err, r.told)
	}
}

func TestAnnounced(t *testing.T) {
	var said []string
	steps := Announced([]Step[int]{
		{Name: "first", Start: func(context.Context, int) error { said = append(said, "starts"); return nil }}, {Name: "second"},
	}, func(name string) { said = append(said, name) })
	p, err := Start(t.Context(), steps, func(*Process) int { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if got := strings.Join(said, " "); got != "first starts second" {
		t.Errorf("got %s", got)
	}
}
