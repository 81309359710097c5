// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// onlyLogErrors removes the handler that delays client-go's errors. That handler keeps a millisecond between two errors, and takes the
// start of the program for the time of the first. The clock of a synctest bubble begins in the year 2000, so the first error would sleep
// for decades.
var onlyLogErrors = sync.OnceFunc(func() { utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] })

// A World is a cluster in which everything fails that can: watches deliver late and twice, and lose their place; writes are refused,
// conflict, or succeed although the client gets an error; and the controllers die before or after any write and start anew. The seed
// decides what fails, together with the action, its object and how often that happened before, but not the order in which goroutines run.
// Each event has a moment of its own, so that no two goroutines wake at once. So a seed replays the same run each time, and much the same
// run when steps are left out.
//
// Nodes and the garbage collector are part of the World: it binds, starts, ends and stops pods after a while, and deletes objects whose
// owner is gone.
type World struct {
	seed    uint64
	api     *api
	client  *fake.Clientset
	counts  map[string]int
	log     []change
	grown   chan struct{}                             // closed when log grows
	ended   map[schema.GroupVersionResource]time.Time // when a watch lost its place
	dead    bool
	life    context.Context // ends when the controllers die
	die     context.CancelFunc
	deaths  int
	clock   clock.RealClock // synctest fakes it
	over    bool
	due     []change           // to be checked
	views   []seen             // the recent views of the informers
	acting  bool               // a controller writes
	checked change             // the change that is being checked
	gone    map[types.UID]bool // deleted objects
	wrong   []string
	told    []string // the last writes
	check   Check
	taken   map[time.Time]bool // moments at which something happens
	story   hash.Hash64        // a hash of the whole run
}

// change is one event of the feed.
type change struct {
	resource     schema.GroupVersionResource
	version      int
	event        Event
	byController bool
}

// Check examines each change at the moment at which it is made, and returns what is wrong with it.
type Check func(w *World, event Event) (wrong string)

// Step is an action of a user.
type Step struct {
	Name string
	Do   func(*World)
}

// Simulate plays steps in a World of that seed. After every few steps it lets the controllers settle, until done holds. It returns what was
// wrong, or nothing, and a hash of all writes and their times, which is the same for each run.
func Simulate(t *testing.T, seed uint64, all []controllers.Controller, steps []Step, check Check, done func(*World) string) (wrong string,
	story uint64) {
	onlyLogErrors()
	synctest.Test(t, func(t *testing.T) { wrong, story = simulate(t, seed, all, steps, check, done) })
	return wrong, story
}

// Shortest leaves out the steps that a failure does not need.
func Shortest(steps []Step, fails func([]Step) bool) []Step {
	for size := len(steps) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(steps); {
			if rest := slices.Concat(steps[:at], steps[at+size:]); fails(rest) {
				steps = rest
			} else {
				at += size
			}
		}
	}
	return steps
}

func simulate(t *testing.T, seed uint64, all []controllers.Controller, steps []Step, check Check, done func(*World) string) (string,
	uint64) {
	w := &World{
		seed: seed, client: fake.NewClientset(), counts: map[string]int{}, grown: make(chan struct{}), check: check,
		taken: map[time.Time]bool{}, ended: map[schema.GroupVersionResource]time.Time{}, story: fnv.New64a(),
	}
	w.api = newAPI(w.client, clock.RealClock{}, func(string, runtime.Object, runtime.Object) {})
	w.api.tracker = clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder()) // this tracker keeps no managed fields
	w.api.stopped = map[types.UID]bool{}
	w.api.feed = w.feed
	w.api.disturb = w.disturb
	w.api.settled = w.settled
	for _, verb := range []string{"create", "update", "patch", "delete"} {
		w.client.PrependReactor(verb, "*", w.late)
	}
	w.client.PrependReactor("get", "*", w.get)
	w.client.PrependReactor("list", "*", w.list)
	w.client.PrependReactor("*", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if create, ok := action.(clienttesting.CreateAction); ok {
			return true, create.GetObject(), nil
		}
		return true, &corev1.Event{}, nil
	})
	w.client.PrependWatchReactor("*", w.watch)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.live(ctx, all) }()
	for i, step := range steps {
		time.Sleep(w.span("step "+step.Name, 3*time.Second))
		w.say("step " + step.Name)
		step.Do(w)
		if i%4 == 3 || i == len(steps)-1 {
			w.settle(done)
		}
	}
	w.api.mu.Lock()
	w.over = true
	story := w.story.Sum64()
	wrong := strings.Join(w.wrong, "\n")
	if wrong != "" {
		wrong += "\nthe last writes:\n  " + strings.Join(w.told, "\n  ")
	}
	w.api.mu.Unlock()
	cancel()
	if err := <-ended; err != nil {
		wrong += err.Error()
	}
	time.Sleep(time.Minute) // timers that client-go has left run out
	return wrong, story
}

// settle waits until done holds.
func (w *World) settle(done func(*World) string) {
	var why string
	for range 40 {
		w.api.mu.Lock()
		wait := w.alone(15*time.Second, "settle")
		w.api.mu.Unlock()
		time.Sleep(wait)
		if why = done(w); why == "" || w.Failed() {
			return
		}
	}
	w.Fail("after ten minutes: " + why)
}

// live runs the controllers, and restarts them after each death.
func (w *World) live(ctx context.Context, all []controllers.Controller) error {
	definitions := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(definitions); err != nil {
		return err
	}
	for ctx.Err() == nil {
		objects := metadatafake.NewSimpleMetadataClient(definitions)
		w.api.share(objects)
		life, die := context.WithCancel(ctx)
		w.api.mu.Lock()
		w.dead, w.life, w.die = false, life, die
		clear(w.ended)
		w.api.mu.Unlock()
		ended := watchOver(w, life)
		err := controllers.RunWith(life, all, &controllers.Deps{
			Client: w.client, Discovery: w.client.Discovery(), Metadata: objects, Dynamic: dynamicfake.NewSimpleDynamicClient(definitions),
		}, controllers.Options{Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler), Turn: w.turn})
		die()
		ended()
		if err != nil {
			return err
		}
	}
	return nil
}

// lastBreath is how long the controllers may take to end.
const lastBreath = 10 * time.Minute

// watchOver makes the simulation fail if controllers do not end after their death, with what all goroutines do. The caller calls the
// returned function when they have ended.
func watchOver(w *World, life context.Context) func() {
	ended := make(chan struct{})
	context.AfterFunc(life, func() {
		select {
		case <-ended:
		case <-w.clock.After(lastBreath):
			stacks := make([]byte, 4<<20)
			w.Fail(fmt.Sprintf("the controllers have not ended %v after their death:\n%s", lastBreath, stacks[:goruntime.Stack(stacks, true)]))
		}
	})
	return func() { close(ended) }
}

// roll returns a number below n that depends on the seed, on what, and on how often roll was called for what.
func (w *World) roll(n int, what string) int {
	w.counts[what]++
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", w.seed, what, w.counts[what])
	return rand.New(rand.NewPCG(h.Sum64(), w.seed)).IntN(n)
}

// span returns a duration: often none, mostly short, at times long.
func (w *World) span(what string, longest time.Duration) time.Duration {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	return w.spanLocked(what, longest)
}

func (w *World) spanLocked(what string, longest time.Duration) time.Duration {
	d := longest
	switch n := w.roll(1000, what); {
	case n < 500:
		d = 0
	case n < 950:
		d = longest * time.Duration(n) / 10000
	}
	return w.alone(d, what)
}

// alone waits for d and then until a moment at which nothing else happens. The woken goroutine then runs alone, with everything that
// follows: the order never depends on which of two goroutines is faster.
func (w *World) alone(d time.Duration, what string) time.Duration {
	d += time.Duration(1 + w.roll(1_000_000, "moment "+what))
	now := w.clock.Now()
	for w.taken[now.Add(d)] {
		d += time.Nanosecond
	}
	w.taken[now.Add(d)] = true
	return d
}

// disturb decides how a write fails, if it does.
func (w *World) disturb(action clienttesting.Action) (refused, late error) {
	if w.dead {
		return context.Canceled, nil
	}
	gvr := action.GetResource()
	what, name := written(action)
	switch n := w.roll(200, what); {
	case n < 8 && (action.GetVerb() == "update" || action.GetVerb() == "patch"):
		w.sayLocked(what + ": conflict")
		return apierrors.NewConflict(gvr.GroupResource(), name, errors.New("the object has been modified")), nil
	case n < 16:
		w.sayLocked(what + ": refused")
		return apierrors.NewInternalError(errors.New("not today")), nil
	case n < 20 && name != "": // a generated name differs each time
		w.sayLocked(what + ": done, and said to have failed")
		w.acting = true
		return nil, apierrors.NewTimeoutError("too slow", 0)
	case n < 22 && w.deaths < 4:
		w.sayLocked(what + ": death before")
		w.kill()
		return context.Canceled, nil
	case n < 24 && w.deaths < 4:
		w.sayLocked(what + ": death after")
		w.kill()
		w.acting = true
		return nil, context.Canceled
	}
	w.sayLocked(what)
	w.acting = true
	return nil, nil
}

// written returns a write's description, and the object's name if it is known.
func written(action clienttesting.Action) (what, name string) {
	made := ""
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		if o, err := meta.Accessor(action.GetObject()); err == nil {
			name, made = o.GetName(), o.GetGenerateName()
		}
		if pod, ok := action.GetObject().(*corev1.Pod); ok {
			made += pinned(pod)
		}
	case clienttesting.UpdateActionImpl:
		if o, err := meta.Accessor(action.GetObject()); err == nil {
			name = o.GetName()
		}
	case clienttesting.PatchActionImpl:
		name = action.GetName()
	case clienttesting.DeleteActionImpl:
		name = action.GetName()
	}
	return strings.Join([]string{action.GetVerb(), action.GetResource().Resource, action.GetSubresource(), name + made}, " "), name
}

// late delays a write.
func (w *World) late(action clienttesting.Action) (bool, runtime.Object, error) {
	what, _ := written(action)
	if !w.wait("way of "+what, 200*time.Millisecond) {
		return true, nil, context.Canceled
	}
	return false, nil, nil
}

// turn starts each sync at a moment of its own, when the informers have received all events.
func (w *World) turn(what string) time.Duration {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	if w.dead {
		return 0
	}
	return w.spanLocked("turn of "+what, 100*time.Millisecond)
}

// wait waits while others use the client, which holds its lock during a request. It returns false when the controllers have died.
func (w *World) wait(what string, longest time.Duration) bool {
	w.api.mu.Lock()
	if w.dead {
		w.api.mu.Unlock()
		return false
	}
	wait, life := w.spanLocked(what, longest), w.life
	w.api.mu.Unlock()
	return w.sleep(life, wait)
}

// sleep sleeps without the client's lock, and ends early when life ends.
func (w *World) sleep(life context.Context, d time.Duration) bool {
	w.client.Unlock()
	defer w.client.Lock()
	select {
	case <-w.clock.After(d):
		return true
	case <-life.Done():
		return false
	}
}

func (w *World) kill() {
	w.dead = true
	w.deaths++
	w.die()
}

func (w *World) say(what string) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.sayLocked(what)
}

func (w *World) sayLocked(what string) {
	if len(w.wrong) > 0 {
		return
	}
	what = w.clock.Now().Format("04:05.000000 ") + what
	fmt.Fprintln(w.story, what)
	w.told = append(w.told, what)
	if len(w.told) > 60 {
		w.told = w.told[1:]
	}
}

// Fail records a failure.
func (w *World) Fail(why string) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.failLocked(why)
}

func (w *World) failLocked(why string) {
	if len(w.wrong) < 5 {
		w.wrong = append(w.wrong, w.clock.Now().Format("04:05.000 ")+why)
	}
}

// Failed reports whether there was a failure.
func (w *World) Failed() bool {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	return len(w.wrong) > 0
}

// Chance returns a number below n for a step.
func (w *World) Chance(n int, what string) int {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	return w.roll(n, what)
}

// Put creates or replaces an object; a replaced object keeps its status.
func (w *World) Put(gvr schema.GroupVersionResource, namespace string, obj runtime.Object) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	_, err := w.api.create(gvr, namespace, obj.DeepCopyObject())
	if apierrors.IsAlreadyExists(err) {
		_, err = w.api.update(gvr, namespace, "", obj.DeepCopyObject(), false)
	}
	w.settled()
	if err != nil {
		w.failLocked(fmt.Sprintf("put %s: %v", gvr.Resource, err))
	}
}

// Change changes an existing object.
func (w *World) Change(gvr schema.GroupVersionResource, namespace, name, subresource string, change func(runtime.Object)) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.changeLocked(gvr, namespace, name, subresource, change)
	w.settled()
}

func (w *World) changeLocked(gvr schema.GroupVersionResource, namespace, name, subresource string, change func(runtime.Object)) {
	obj, err := w.api.tracker.Get(gvr, namespace, name)
	if err != nil {
		return
	}
	obj = obj.DeepCopyObject()
	change(obj)
	_, _ = w.api.update(gvr, namespace, subresource, obj, false) // it existed a moment ago, and no other goroutine runs
}

// Remove deletes an object.
func (w *World) Remove(gvr schema.GroupVersionResource, namespace, name string) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	_ = w.api.remove(gvr, namespace, name) // it may not exist
	w.settled()
}

// All returns the current objects of a kind, by name.
func All[L runtime.Object](w *World, gvr schema.GroupVersionResource, kind string) L {
	list, err := w.api.tracker.List(gvr, gvr.GroupVersion().WithKind(kind), metav1.NamespaceAll)
	if err == nil {
		err = meta.SetList(list, w.allLocked(gvr, gvr.GroupVersion().WithKind(kind)))
	}
	if err != nil {
		panic(fmt.Sprintf("list %s: %v", gvr.Resource, err))
	}
	return list.(L)
}

// allLocked returns the objects of a kind in a fixed order; the tracker's own order differs each time.
func (w *World) allLocked(gvr schema.GroupVersionResource, gvk schema.GroupVersionKind) []runtime.Object {
	list, err := w.api.tracker.List(gvr, gvk, metav1.NamespaceAll)
	if err != nil {
		return nil
	}
	objects, err := meta.ExtractList(list)
	if err != nil {
		return nil
	}
	name := func(o runtime.Object) string {
		if m, err := meta.Accessor(o); err == nil {
			return m.GetNamespace() + "/" + m.GetName()
		}
		return ""
	}
	slices.SortFunc(objects, func(a, b runtime.Object) int { return strings.Compare(name(a), name(b)) })
	return objects
}

// Locked calls f without concurrent writes.
func (w *World) Locked(f func() string) string {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	return f()
}

var podsResource = corev1.SchemeGroupVersion.WithResource("pods")

// Kill kills the controllers of a World, which start anew.
func Kill(w *World) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	if !w.dead && w.die != nil {
		w.sayLocked("death")
		w.dead = true
		w.die()
	}
}
