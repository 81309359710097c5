// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// kept is a backend that stores config maps in a map.
type kept struct {
	resource.Backend

	mu      sync.Mutex
	objects map[string]*corev1.ConfigMap
	changes chan change
	fails   int   // number of changes that still fail
	blind   error // the error of FollowHeld
	mute    error // the error of recording events
	history []string
	events  []*corev1.Event
	begun   time.Time
	metrics *prometheus.Registry
	kind    *resource.Descriptor // nil: its kind is not served
}

// change is the state of an object after a change.
type change struct {
	name string
	is   *corev1.ConfigMap
}

var configMaps = schema.GroupResource{Resource: "configmaps"}

func (k *kept) note(format string, args ...any) {
	k.history = append(k.history, fmt.Sprintf("%v: ", time.Since(k.begun))+fmt.Sprintf(format, args...))
}

// put stores a waiting object; nil: it waits for nothing.
func (k *kept) put(name string, i *v1alpha1.Initializers) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)}}
	if err := v1alpha1.SetInitializers(m, i); err != nil {
		panic(err)
	}
	k.store(name, m)
}

// behind changes an object without a notification; without a UID the object is deleted.
func (k *kept) behind(name string, i *v1alpha1.Initializers, uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: uid}}
	if err := v1alpha1.SetInitializers(m, i); err != nil {
		panic(err)
	}
	if k.objects[name] = m; uid == "" {
		k.objects[name] = nil
	}
}

func (k *kept) store(name string, m *corev1.ConfigMap) {
	k.objects[name] = m
	k.changes <- change{name, m}
}

func (k *kept) FollowHeld(ctx context.Context, tell func(r schema.GroupResource, namespace, name string, obj resource.Object,
	gone bool)) error {
	if k.blind != nil {
		return k.blind
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-k.changes:
			switch {
			case c.is == nil:
				tell(configMaps, "ns", c.name, nil, true)
			case !v1alpha1.Uninitialized(c.is):
				tell(configMaps, "ns", c.name, nil, false)
			default:
				tell(configMaps, "ns", c.name, c.is, false)
			}
		}
	}
}

func (k *kept) SettleHeld(_ context.Context, _ schema.GroupResource, _, name string, edit func(obj resource.Object) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails > 0 {
		k.fails--
		k.note("%s cannot be changed", name)
		return errors.New("the disk is full")
	}
	if k.objects[name] == nil {
		return nil
	}
	m := k.objects[name].DeepCopy()
	if err := edit(m); err != nil {
		return err
	}
	i, err := v1alpha1.InitializersOf(m)
	switch {
	case err != nil:
		return err
	case i == nil:
		k.note("%s is initialised", name)
		k.store(name, m)
	case i.Result != nil:
		k.note("%s is rejected: %d %s %s", name, i.Result.Code, i.Result.Reason, i.Result.Message)
		k.store(name, m)
		k.store(name, nil)
	default:
		k.note("%s waits for %v", name, i.Names())
		k.store(name, m)
	}
	return nil
}

func (k *kept) Create(_ context.Context, _ schema.GroupResource, obj resource.Object, _ bool) (resource.Object, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mute != nil {
		return nil, k.mute
	}
	e := obj.(*corev1.Event)
	k.note("event: %s %s %s", e.InvolvedObject.Name, e.Reason, e.Message)
	k.events = append(k.events, e)
	return obj, nil
}

// logged records errors among the changes of the backend.
type logged struct {
	slog.Handler
	*kept
}

func (logged) Enabled(context.Context, slog.Level) bool { return true }

func (l logged) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note("log: %s", line)
	return nil
}

// running makes a plug-in follow the backend, and ends it with the test.
func running(t *testing.T, k *kept) *extension.Ledger {
	k.objects, k.changes, k.begun, k.metrics = map[string]*corev1.ConfigMap{}, make(chan change, 100), time.Now(), prometheus.NewRegistry()
	p := New(clock.RealClock{})
	ledger := extension.NewLedger(clock.RealClock{})
	if err := p.Join(&admit.Host{
		Log: slog.New(logged{slog.DiscardHandler, k}), Ledger: ledger, Backend: func() resource.Backend { return k }, Metrics: k.metrics,
		Kind: func(schema.GroupResource) *resource.Descriptor { return k.kind },
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return ledger
}

func pending(since time.Time, of ...v1alpha1.Pending) *v1alpha1.Initializers {
	return &v1alpha1.Initializers{Pending: of, Since: metav1.NewMicroTime(since)}
}

const unsettled = "Could not initialize or reject an object object=configmaps ns/m initializer=a.example.com error=the disk is full"

func TestDeadlinesPass(t *testing.T) {
	a := v1alpha1.Pending{Name: "a.example.com", DeadlineSeconds: 10, FailurePolicy: v1alpha1.Ignore}
	b := v1alpha1.Pending{Name: "b.example.com", DeadlineSeconds: 20, FailurePolicy: v1alpha1.Fail}
	for _, c := range []struct {
		name  string
		fails int
		does  func(k *kept)
		want  []string
	}{
		{"one is passed over, the next rejects", 0, func(k *kept) { k.put("m", pending(time.Now(), a, b)) }, []string{
			"10s: m waits for [b.example.com]",
			"30s: m is rejected: 500 InitializerDeadlineExceeded initializer b.example.com did not finish with configmaps ns/m within 20s",
			"30s: event: m InitializationFailed initializer b.example.com did not finish with configmaps ns/m within 20s",
		}},
		{"the last is passed over", 0, func(k *kept) { k.put("m", pending(time.Now(), a)) }, []string{"10s: m is initialised"}},
		{"the time before a restart counts", 0, func(k *kept) { k.put("m", pending(time.Now().Add(-7*time.Second), a)) },
			[]string{"3s: m is initialised"}},
		{"what is long overdue is settled at once", 0, func(k *kept) { k.put("m", pending(time.Now().Add(-time.Hour), a)) },
			[]string{"0s: m is initialised"}},
		{"a list without settings has the defaults", 0, func(k *kept) {
			k.put("m",
				pending(time.Now(), v1alpha1.Pending{Name: "c.example.com"}))
		}, []string{
			"30s: m is rejected: 500 InitializerDeadlineExceeded initializer c.example.com did not finish with configmaps ns/m within 30s",
			"30s: event: m InitializationFailed initializer c.example.com did not finish with configmaps ns/m within 30s",
		}},
		{"who finishes in time is left alone", 0, func(k *kept) {
			k.put("m", pending(time.Now(), b))
			time.Sleep(19 * time.Second)
			k.put("m", nil)
		}, nil},
		{"each turn has its own time", 0, func(k *kept) {
			k.put("m", pending(time.Now(), b, a))
			time.Sleep(15 * time.Second)
			k.put("m", pending(time.Now(), a))
		}, []string{"25s: m is initialised"}},
		{"the soonest is first, whichever came first", 0, func(k *kept) {
			k.put("late", pending(time.Now(), b))
			k.put("soon", pending(time.Now(), a))
		}, []string{
			"10s: soon is initialised",
			"20s: late is rejected: 500 InitializerDeadlineExceeded initializer b.example.com did not finish with configmaps ns/late within 20s",
			"20s: event: late InitializationFailed initializer b.example.com did not finish with configmaps ns/late within 20s",
		}},
		{"what was rejected when the server went is taken away", 0, func(k *kept) {
			i := pending(time.Now(), b)
			i.Result = &metav1.Status{Status: metav1.StatusFailure, Code: 403, Reason: "Forbidden", Message: "no"}
			k.put("m", i)
		}, []string{"0s: m is rejected: 403 Forbidden no"}},
		{"what cannot be changed is tried again, later and later", 3, func(k *kept) { k.put("m", pending(time.Now(), a)) }, []string{
			"10s: m cannot be changed", "10s: log: " + unsettled, "11s: m cannot be changed", "11s: log: " + unsettled,
			"13s: m cannot be changed", "13s: log: " + unsettled, "17s: m is initialised",
		}},
		{"what cannot be changed keeps nothing else waiting", 1, func(k *kept) {
			k.put("m", pending(time.Now().Add(-time.Hour), a))
			k.put("n", pending(time.Now().Add(-time.Minute), a))
			k.put("o", pending(time.Now().Add(-time.Second), a))
		}, []string{"0s: m cannot be changed", "0s: log: " + unsettled, "0s: n is initialised", "1s: m is initialised", "9s: o is initialised"}},
		{"what has changed unseen is left alone", 0, func(k *kept) {
			since := time.Now()
			k.put("m", pending(since, a))
			for name, i := range map[string]*v1alpha1.Initializers{
				"another comes first": pending(since, b, a), "nobody does": nil, "nobody in particular": {Since: metav1.NewMicroTime(since)},
				"it waits anew": pending(since.Add(time.Second), a),
			} {
				k.put(name, pending(since, a))
				k.behind(name, i, types.UID("uid-"+name))
			}
			k.put("it is another", pending(since, a))
			k.behind("it is another", pending(since, a), "other")
			k.put("it is gone", pending(since, a))
			k.behind("it is gone", nil, "")
		}, []string{"10s: m is initialised"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &kept{fails: c.fails}
				running(t, k)
				c.does(k)
				time.Sleep(time.Minute)
				k.mu.Lock()
				defer k.mu.Unlock()
				if diff := cmp.Diff(c.want, k.history); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// TestWaitingIsTold checks that the ledger lists waiting objects with their remaining time, and records the outcomes.
func TestWaitingIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{}
		ledger := running(t, k)
		since := time.Now()
		k.put("m", pending(since, v1alpha1.Pending{Name: "a.example.com", DeadlineSeconds: 10}))
		k.put("n", pending(since, v1alpha1.Pending{Name: "b.example.com", DeadlineSeconds: 10}))
		time.Sleep(3 * time.Second)
		k.put("n", nil)
		synctest.Wait()
		all := ledger.Snapshot()
		at := func(name string) extension.Entry {
			i := slices.IndexFunc(all, func(e extension.Entry) bool { return e.Name == name })
			if i < 0 {
				t.Fatalf("%s is not told of", name)
			}
			return all[i]
		}
		want := []extension.Waiting{{Object: "configmaps ns/m", Since: since, Until: since.Add(10 * time.Second)}}
		if e := at("a.example.com"); e.State != extension.WaitedFor || cmp.Diff(want, e.Waiting) != "" {
			t.Errorf("it waits: %+v", e)
		}
		if e := at("b.example.com"); e.State != extension.OK || e.Calls != 1 || e.Longest != 3*time.Second || e.Waits != 0 {
			t.Errorf("it has finished: %+v", e)
		}
		time.Sleep(10 * time.Second)
		all = ledger.Snapshot()
		if e := at("a.example.com"); e.State != extension.Failing || e.Waits != 0 {
			t.Errorf("it has failed: %+v", e)
		}
	})
}

// TestTurnsAreCounted checks the metrics of turns by outcome, and of the waiting objects.
func TestTurnsAreCounted(t *testing.T) {
	a := v1alpha1.Pending{Name: "a.example.com", DeadlineSeconds: 10, FailurePolicy: v1alpha1.Ignore}
	b := v1alpha1.Pending{Name: "b.example.com", DeadlineSeconds: 20}
	synctest.Test(t, func(t *testing.T) {
		k := &kept{kind: &resource.Descriptor{Kind: "ConfigMap", Storage: "v1", Versions: []resource.Version{{Name: "v1"}}}}
		ledger := running(t, k)
		since := time.Now()
		k.put("passed over", pending(since, a, b))
		k.put("finished", pending(since, a))
		k.put("gone", pending(since, a))
		k.put("made anew", pending(since, a))
		k.put("waits", pending(since, b))
		k.put("waits longer", pending(since.Add(-5*time.Second), b))
		time.Sleep(2 * time.Second)
		k.put("finished", nil)
		k.mu.Lock()
		k.store("gone", nil)
		anew := k.objects["made anew"].DeepCopy()
		anew.UID = "other"
		k.store("made anew", anew)
		k.mu.Unlock()
		time.Sleep(9 * time.Second)
		synctest.Wait()
		want := []string{
			"mortise_initializer_oldest_since_timestamp_seconds{b.example.com} -5", "mortise_initializer_turn_duration_seconds{a.example.com} 5",
			"mortise_initializer_turns_total{a.example.com,deleted} 2", "mortise_initializer_turns_total{a.example.com,finished} 3",
			"mortise_initializer_waiting_objects{b.example.com} 3",
		}
		if d := cmp.Diff(want, k.counted(t, since)); d != "" {
			t.Errorf("after ten seconds (-want +got):\n%s", d)
		}
		i := slices.IndexFunc(ledger.Snapshot(), func(e extension.Entry) bool { return e.Name == "a.example.com" })
		if e := ledger.Snapshot()[i]; e.Calls != 3 || e.Failures != 2 || !strings.HasSuffix(e.LastError, " waited for 10s") {
			t.Errorf("the ledger has %+v", e)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		want = []string{
			"mortise_initializer_turn_duration_seconds{a.example.com} 5", "mortise_initializer_turn_duration_seconds{b.example.com} 3",
			"mortise_initializer_turns_total{a.example.com,deleted} 2", "mortise_initializer_turns_total{a.example.com,finished} 3",
			"mortise_initializer_turns_total{b.example.com,rejected} 3",
		}
		if d := cmp.Diff(want, k.counted(t, since)); d != "" {
			t.Errorf("in the end (-want +got):\n%s", d)
		}
		if len(k.events) != 3 || k.events[0].Namespace != "ns" {
			t.Errorf("events: %v", k.events)
		} else if about := k.events[0].InvolvedObject; about.Kind != "ConfigMap" || about.APIVersion != "v1" || about.Namespace != "ns" {
			t.Errorf("an event is about %v", about)
		}
	})
}

// counted returns the metrics, with gauges of times as seconds since then.
func (k *kept) counted(t *testing.T, since time.Time) (out []string) {
	t.Helper()
	families, err := k.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			n := m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()) + m.GetGauge().GetValue()
			if strings.HasSuffix(f.GetName(), "timestamp_seconds") {
				n -= float64(since.Unix())
			}
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			out = append(out, fmt.Sprintf("%s{%s} %v", f.GetName(), strings.Join(labels, ","), n))
		}
	}
	return out
}

// TestRunEnds checks that Run returns the error of a backend that cannot follow waiting objects.
func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{blind: errors.New("the disk is full")}
		p := New(clock.RealClock{})
		for want, b := range map[string]resource.Backend{"the disk is full": k,
			"follow uninitialized objects: initializers.empty keeps none": empty{}} {
			if err := p.Join(&admit.Host{Ledger: extension.NewLedger(clock.RealClock{}),
				Backend: func() resource.Backend { return b }}); err != nil {
				t.Fatal(err)
			}
			if err := p.Run(t.Context()); err == nil || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
		}
	})
}

// TestRejectionsThatCannotBeRecorded checks that they are logged.
func TestRejectionsThatCannotBeRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{mute: errors.New("the disk is full")}
		running(t, k)
		k.put("m", pending(time.Now(), v1alpha1.Pending{Name: "a.example.com", DeadlineSeconds: 10}))
		time.Sleep(time.Minute)
		want := []string{
			"10s: m is rejected: 500 InitializerDeadlineExceeded initializer a.example.com did not finish with configmaps ns/m within 10s",
			"10s: log: Could not record the event of a rejected object object=configmaps ns/m error=the disk is full",
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if d := cmp.Diff(want, k.history); d != "" {
			t.Error(d)
		}
	})
}

// TestHeld checks that an object that no longer waits is not processed again, and the references of objects in
// messages.
func TestHeld(t *testing.T) {
	h, at := newHeld(), objectRef{schema.GroupResource{Group: "example.com", Resource: "widgets"}, "", "w"}
	if at.String() != "widgets.example.com w" {
		t.Errorf("told of as %s", at)
	}
	m := &corev1.ConfigMap{}
	if err := v1alpha1.SetInitializers(m, pending(time.Unix(1000, 0),
		v1alpha1.Pending{Name: "a.example.com", DeadlineSeconds: 10})); err != nil {
		t.Fatal(err)
	}
	h.see(at, m, false)
	if due, again := h.next(time.Unix(1000, 0)); due != nil || !again.Equal(time.Unix(1010, 0)) {
		t.Errorf("due %v, again at %v", due, again)
	}
	h.see(at, nil, true)
	if due, again := h.next(time.Unix(2000, 0)); due != nil || !again.IsZero() {
		t.Errorf("after it has gone: due %v, again at %v", due, again)
	}
}
