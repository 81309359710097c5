// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/internal/kinds/core"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

var (
	configMaps = schema.GroupResource{Resource: "configmaps"}
	secrets    = schema.GroupResource{Resource: "secrets"}
)

// bench is a store with a feed in a bubble of time.
type bench struct {
	t      *testing.T
	engine *memory.Engine
	source Source
	kinds  map[schema.GroupResource]*watchcache.Kind
	feed   *Feed
	group  sync.WaitGroup
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, engine: memory.Open(memory.Options{}), kinds: map[schema.GroupResource]*watchcache.Kind{}}
	b.source = b.engine
	views, lifetime := watchcache.NewViews(1<<20), &watchcache.Lifetime{Context: t.Context()}
	for _, d := range []*resource.Descriptor{core.ConfigMap(), core.Secret()} {
		b.kinds[d.GroupResource()] = watchcache.NewKind(d, b.engine, views, lifetime)
	}
	return b
}

// start starts the feed; end stops it and closes the store.
func (b *bench) start(followers ...Follower) (end func()) {
	b.t.Helper()
	b.feed = New(Options{Source: b.source, Kind: func(r schema.GroupResource) *watchcache.Kind { return b.kinds[r] }}, followers...)
	ctx, cancel := context.WithCancel(b.t.Context())
	if err := b.feed.Start(ctx, &b.group); err != nil {
		b.t.Fatal(err)
	}
	return func() {
		cancel()
		b.group.Wait()
		if err := b.engine.Close(); err != nil {
			b.t.Error(err)
		}
	}
}

// write stores objects in one revision; one whose text is empty is deleted. Names are RESOURCE/NAMESPACE/NAME.
func (b *bench) write(objects map[string]string) int64 {
	b.t.Helper()
	var ops []store.Op
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		parts := strings.Split(name, "/")
		k := b.kinds[schema.GroupResource{Resource: parts[0]}]
		op := store.Op{Key: k.Key(parts[1], parts[2]), Expect: store.Any}
		switch text := objects[name]; text {
		case "":
		case "broken":
			op.Value = []byte("k8s\x00 broken")
		default:
			data, err := k.Codec.Encode(object(parts[0], parts[1], parts[2], text))
			if err != nil {
				b.t.Fatal(err)
			}
			op.Value = data
		}
		ops = append(ops, op)
	}
	revision, _, err := b.engine.Commit(b.t.Context(), ops...)
	if err != nil {
		b.t.Fatal(err)
	}
	return revision
}

// metrics are the gauges of a feed with one follower.
func (b *bench) metrics() map[string]float64 {
	b.t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(b.feed)
	families, err := registry.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		if g := f.GetMetric()[0].GetGauge(); g != nil {
			values[f.GetName()] = g.GetValue()
		}
	}
	return values
}

func object(resource, namespace, name, text string) resource.Object {
	if resource == "secrets" {
		s := &corev1.Secret{Data: map[string][]byte{"text": []byte(text)}}
		s.Namespace, s.Name = namespace, name
		return s
	}
	c := &corev1.ConfigMap{Data: map[string]string{"text": text}}
	c.Namespace, c.Name = namespace, name
	return c
}

func text(obj resource.Object) string {
	switch o := obj.(type) {
	case *corev1.Secret:
		return string(o.Data["text"])
	case *corev1.ConfigMap:
		return o.Data["text"]
	}
	return ""
}

// index is a follower that keeps the texts of objects.
type index struct {
	mu    sync.Mutex
	texts map[string]string
	seen  []int64 // revisions, as they were applied
	loads int
	fails func(c *Change) error
}

func (x *index) follower(name string, resources ...schema.GroupResource) Follower {
	return Follower{
		Name: name, Resources: resources,
		Load: func(ctx context.Context, s *Snapshot) error {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.texts = map[string]string{}
			x.loads++
			for _, r := range resources {
				objs, err := s.List(ctx, r, "")
				if err != nil {
					return err
				}
				for _, obj := range objs {
					if text(obj) == "fails once" {
						s.Fail(r, obj, errors.New("not now"))
					} else {
						x.texts[r.Resource+"/"+obj.GetNamespace()+"/"+obj.GetName()] = text(obj)
					}
				}
			}
			return nil
		},
		Apply: func(_ context.Context, c *Change) error {
			x.mu.Lock()
			defer x.mu.Unlock()
			if x.fails != nil {
				if err := x.fails(c); err != nil {
					return err
				}
			}
			x.seen = append(x.seen, c.Revision)
			key := c.Resource.Resource + "/" + c.Namespace + "/" + c.Name
			if c.Object == nil {
				delete(x.texts, key)
			} else {
				x.texts[key] = text(c.Object)
			}
			return nil
		},
	}
}

func (x *index) has() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return fmt.Sprint(x.texts)
}

// TestFollowers see what was stored before the feed began, and each change of their resources in the order of revisions, before Wait
// returns.
func TestFollowers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write(map[string]string{"configmaps/ns/old": "1", "secrets/ns/old": "1"})
		maps, both := &index{}, &index{}
		defer b.start(maps.follower("maps", configMaps), both.follower("both", secrets, configMaps))()
		if maps.has() != "map[configmaps/ns/old:1]" || both.has() != "map[configmaps/ns/old:1 secrets/ns/old:1]" {
			t.Errorf("loaded %s and %s", maps.has(), both.has())
		}
		revision := b.write(map[string]string{"configmaps/ns/new": "2", "secrets/ns/old": ""})
		b.feed.Wait(t.Context(), configMaps, revision)
		if maps.has() != "map[configmaps/ns/new:2 configmaps/ns/old:1]" || both.has() != "map[configmaps/ns/new:2 configmaps/ns/old:1]" {
			t.Errorf("applied %s and %s", maps.has(), both.has())
		}
		for n := range 100 {
			revision = b.write(map[string]string{"configmaps/ns/new": fmt.Sprint(n)})
		}
		b.feed.Wait(t.Context(), configMaps, revision)
		if !slices.IsSorted(both.seen) || len(both.seen) != 102 {
			t.Errorf("%d changes were applied, at revisions %v", len(both.seen), both.seen)
		}
		b.feed.Wait(t.Context(), schema.GroupResource{Resource: "pods"}, 1<<40) // nobody follows pods
	})
}

// TestWait waits for those who follow the resource and for nobody else, and not for a caller that has left.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		held, release := &index{}, make(chan struct{})
		held.fails = func(*Change) error { <-release; return nil }
		defer b.start(held.follower("held", secrets), (&index{}).follower("free", configMaps))()
		secret, config := b.write(map[string]string{"secrets/ns/a": "1"}), b.write(map[string]string{"configmaps/ns/a": "1"})
		b.feed.Wait(t.Context(), configMaps, config)
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { b.feed.Wait(ctx, secrets, secret); close(done) }()
		synctest.Wait()
		select {
		case <-done:
			t.Error("Wait returned before the change was applied")
		default:
		}
		leave()
		<-done
		close(release)
		b.feed.Wait(t.Context(), secrets, secret)
		if held.has() != "map[secrets/ns/a:1]" {
			t.Errorf("Wait returned, and the follower has %s", held.has())
		}
	})
}

// TestWritesOfFollowers wait for nobody: a follower may write what it follows.
func TestWritesOfFollowers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		x := &index{}
		f := x.follower("writer", configMaps)
		apply := f.Apply
		f.Apply = func(ctx context.Context, c *Change) error {
			if c.Name == "cause" {
				b.feed.Wait(ctx, configMaps, b.write(map[string]string{"configmaps/ns/effect": "1"}))
			}
			return apply(ctx, c)
		}
		defer b.start(f)()
		b.feed.Wait(t.Context(), configMaps, b.write(map[string]string{"configmaps/ns/cause": "1"}))
		synctest.Wait()
		if x.has() != "map[configmaps/ns/cause:1 configmaps/ns/effect:1]" {
			t.Errorf("the follower has %s", x.has())
		}
	})
}

// TestFailures are tried again, named meanwhile, and keep no other object back.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		x, broken := &index{}, errors.New("no room")
		x.fails = func(c *Change) error {
			if c.Name == "bad" && broken != nil {
				return broken
			}
			return nil
		}
		defer b.start(x.follower("x", configMaps))()
		b.write(map[string]string{"configmaps/ns/bad": "1"})
		b.feed.Wait(t.Context(), configMaps, b.write(map[string]string{"configmaps/ns/good": "1"}))
		if x.has() != "map[configmaps/ns/good:1]" {
			t.Errorf("the follower has %s", x.has())
		}
		if err := b.feed.Check("x"); err == nil || !strings.Contains(err.Error(), `configmaps "ns/bad": no room`) || !errors.Is(err, broken) {
			t.Errorf("the check says %v", err)
		}
		if got := b.metrics()["mortise_feed_failing_objects"]; got != 1 {
			t.Errorf("the metric counts %v failing objects", got)
		}
		x.mu.Lock()
		broken = nil
		x.mu.Unlock()
		time.Sleep(lastRetry) // of the bubble
		synctest.Wait()
		if err := b.feed.Check("x"); err != nil || x.has() != "map[configmaps/ns/bad:1 configmaps/ns/good:1]" {
			t.Errorf("after another try the follower has %s, and the check says %v", x.has(), err)
		}
		if err := b.feed.Check("y"); err == nil {
			t.Error("there is a follower y")
		}
	})
}

// TestNewerChangeEndsFailure: what failed is forgotten when a newer state of the object could be applied.
func TestNewerChangeEndsFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		x := &index{}
		x.fails = func(c *Change) error {
			if text(c.Object) == "bad" {
				return errors.New("bad")
			}
			return nil
		}
		defer b.start(x.follower("x", configMaps))()
		b.write(map[string]string{"configmaps/ns/a": "bad"})
		b.feed.Wait(t.Context(), configMaps, b.write(map[string]string{"configmaps/ns/a": "good"}))
		time.Sleep(2 * lastRetry) // of the bubble
		synctest.Wait()
		if err := b.feed.Check("x"); err != nil || x.has() != "map[configmaps/ns/a:good]" {
			t.Errorf("the follower has %s, and the check says %v", x.has(), err)
		}
	})
}

// TestUndecodable objects are named, at the start and later, and the others are applied.
func TestUndecodable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write(map[string]string{"configmaps/ns/a": "broken", "configmaps/ns/b": "1"})
		x := &index{}
		defer b.start(x.follower("x", configMaps))()
		if err := b.feed.Check("x"); err == nil || !strings.Contains(err.Error(), `configmaps "ns/a"`) || x.has() != "map[configmaps/ns/b:1]" {
			t.Errorf("the follower has %s, and the check says %v", x.has(), err)
		}
		b.write(map[string]string{"configmaps/ns/b": "broken"})
		b.feed.Wait(t.Context(), configMaps, b.write(map[string]string{"configmaps/ns/a": "2", "configmaps/ns/c": "2"}))
		if err := b.feed.Check("x"); err == nil || !strings.Contains(err.Error(), `configmaps "ns/b"`) ||
			x.has() != "map[configmaps/ns/a:2 configmaps/ns/b:1 configmaps/ns/c:2]" {
			t.Errorf("the follower has %s, and the check says %v", x.has(), err)
		}
		b.feed.Wait(t.Context(), configMaps, b.write(map[string]string{"configmaps/ns/b": ""}))
		if err := b.feed.Check("x"); err != nil || x.has() != "map[configmaps/ns/a:2 configmaps/ns/c:2]" {
			t.Errorf("the follower has %s, and the check says %v", x.has(), err)
		}
	})
}

// TestStartFails when a follower cannot be loaded, and names it.
func TestStartFails(t *testing.T) {
	b := newBench(t)
	defer b.engine.Close()
	f := New(Options{Source: b.engine, Kind: func(r schema.GroupResource) *watchcache.Kind { return b.kinds[r] }}, Follower{
		Name: "x", Resources: []schema.GroupResource{configMaps}, Load: func(context.Context, *Snapshot) error { return errors.New("no room") },
	})
	if err := f.Start(t.Context(), &b.group); err == nil || err.Error() != "load x: no room" {
		t.Errorf("Start: %v", err)
	}
	f.Wait(t.Context(), configMaps, 1<<40) // it does not follow
}

// breaking is a source whose watches can be broken.
type breaking struct {
	Source
	mu    sync.Mutex
	err   error // what the next call of Next and Watch returns
	wakes []context.CancelFunc
}

type breakingWatcher struct {
	store.Watcher
	of *breaking
}

func (s *breaking) take() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.err
	s.err = nil
	return err
}

// fail breaks all watches.
func (s *breaking) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	for _, wake := range s.wakes {
		wake()
	}
	s.wakes = nil
}

func (s *breaking) Watch(ctx context.Context, prefix string, after int64) (store.Watcher, error) {
	w, err := s.Source.Watch(ctx, prefix, after)
	return &breakingWatcher{w, s}, err
}

func (w *breakingWatcher) Next(ctx context.Context) (store.Batch, error) {
	ctx, wake := context.WithCancel(ctx)
	w.of.mu.Lock()
	w.of.wakes = append(w.of.wakes, wake)
	w.of.mu.Unlock()
	defer wake()
	b, err := w.Watcher.Next(ctx)
	if e := w.of.take(); e != nil {
		return store.Batch{}, e
	}
	return b, err
}

// TestBrokenWatch is opened again; after a compaction the followers load what they have missed, deletions too.
func TestBrokenWatch(t *testing.T) {
	for _, cause := range []error{errors.New("connection lost"), store.ErrCompacted} {
		t.Run(cause.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				source := &breaking{Source: b.engine}
				b.source = source
				x := &index{}
				defer b.start(x.follower("x", configMaps))()
				b.feed.Wait(t.Context(), configMaps, b.write(map[string]string{"configmaps/ns/a": "1"}))
				source.fail(cause)
				synctest.Wait()
				revision := b.write(map[string]string{"configmaps/ns/a": "", "configmaps/ns/b": "2"})
				b.feed.Wait(t.Context(), configMaps, revision)
				if x.has() != "map[configmaps/ns/b:2]" {
					t.Errorf("the follower has %s", x.has())
				}
				if loads := map[bool]int{true: 2, false: 1}[errors.Is(cause, store.ErrCompacted)]; x.loads != loads {
					t.Errorf("the follower was loaded %d times, want %d", x.loads, loads)
				}
			})
		})
	}
}

// TestSlowFollower that is too far behind loads a snapshot instead of what has queued up.
func TestSlowFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		x, release := &index{}, make(chan struct{})
		x.fails = func(*Change) error { <-release; return nil }
		defer b.start(x.follower("x", configMaps))()
		var revision int64
		for n := range maxQueued/100 + 50 {
			objects := map[string]string{}
			for i := range 100 {
				objects[fmt.Sprint("configmaps/ns/", i)] = fmt.Sprint(n)
			}
			revision = b.write(objects)
		}
		synctest.Wait()
		close(release)
		b.feed.Wait(t.Context(), configMaps, revision)
		if want := fmt.Sprint(maxQueued/100 + 49); x.loads != 2 || len(x.texts) != 100 || x.texts["configmaps/ns/99"] != want {
			t.Errorf("the follower was loaded %d times, and has %d objects", x.loads, len(x.texts))
		}
	})
}

// step is one of a random history.
type step struct {
	what     int
	objects  map[string]string
	failures int64
	pause    time.Duration
}

// TestFollowersEqualTheStore drives random histories: writers that leave, changes that fail for a while, broken and
// compacted watches. In the end each follower has what the store has.
func TestFollowersEqualTheStore(t *testing.T) {
	name := rapid.SampledFrom([]string{"configmaps/a/x", "configmaps/a/y", "configmaps/b/x", "secrets/a/x", "secrets/b/y"})
	history := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) step {
		return step{
			what:     rapid.IntRange(0, 9).Draw(r, "what"),
			objects:  rapid.MapOfN(name, rapid.SampledFrom([]string{"", "1", "2", "3"}), 1, 3).Draw(r, "objects"),
			failures: rapid.Int64Range(0, 3).Draw(r, "failures"),
			pause:    time.Duration(rapid.IntRange(1, 1000).Draw(r, "ms")) * time.Millisecond,
		}
	}), 1, 30)
	rapid.Check(t, func(r *rapid.T) {
		steps, wrong := history.Draw(r, "history"), ""
		synctest.Test(t, func(t *testing.T) { wrong = follow(t, steps) })
		if wrong != "" {
			r.Fatal(wrong)
		}
	})
}

// follow goes through a history, and says what followers have that the store has not.
func follow(t *testing.T, steps []step) (wrong string) {
	b := newBench(t)
	source := &breaking{Source: b.engine}
	b.source = source
	want := map[string]string{}
	write := func(objects map[string]string) int64 {
		for name, text := range objects {
			if want[name] = text; text == "" {
				delete(want, name)
			}
		}
		return b.write(objects)
	}
	write(map[string]string{"configmaps/a/x": "0", "secrets/a/x": "0"})
	var failures atomic.Int64
	all := []*index{{}, {}, {}}
	for _, x := range all {
		x.fails = func(*Change) error {
			if failures.Add(-1) >= 0 {
				return errors.New("not now")
			}
			return nil
		}
	}
	defer b.start(all[0].follower("maps", configMaps), all[1].follower("secrets", secrets), all[2].follower("all", secrets, configMaps))()
	for _, s := range steps {
		switch s.what {
		case 0:
			source.fail(errors.New("connection lost"))
		case 1:
			source.fail(store.ErrCompacted)
		case 2:
			synctest.Wait()
			failures.Store(s.failures)
		case 3:
			time.Sleep(s.pause) // of the bubble
		case 4, 5:
			b.feed.Wait(t.Context(), configMaps, write(s.objects))
		default:
			write(s.objects)
		}
	}
	time.Sleep(10 * lastRetry) // of the bubble: all is tried again
	synctest.Wait()
	for i, prefix := range []string{"configmaps/", "secrets/", ""} {
		wanted := maps.Clone(want)
		maps.DeleteFunc(wanted, func(name, _ string) bool { return !strings.HasPrefix(name, prefix) })
		if all[i].has() != fmt.Sprint(wanted) {
			wrong += fmt.Sprintf("follower %d has %s, want %v\n", i, all[i].has(), wanted)
		}
		if err := b.feed.Check([]string{"maps", "secrets", "all"}[i]); err != nil {
			wrong += err.Error() + "\n"
		}
	}
	return wrong
}
