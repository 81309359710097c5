// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"reflect"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
)

// both runs a script with client-go's broadcaster and with a recorder, each in a bubble of its own and thus at the same times, and returns
// what the two asked.
func both(t *testing.T, answer func(*request) error, script func(events.EventRecorderLogger)) (theirs, ours []*request) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: answer}
		b := events.NewBroadcaster(&events.EventSinkImpl{Interface: s})
		defer b.Shutdown()
		if err := b.StartRecordingToSinkWithContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		script(b.NewRecorder(scheme.Scheme, "the-scheduler").WithLogger(klog.Logger{}))
		synctest.Wait()
		theirs = s.asked()
	})
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: answer}
		r := New(s, Options{})
		start(t, r)
		script(r.For("the-scheduler").WithLogger(klog.Logger{}))
		synctest.Wait()
		ours = s.asked()
	})
	return theirs, ours
}

// uuid is what an event is called whose object has a name that events cannot have.
var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// same says that two clients asked the same, random names apart.
func same(t *testing.T, theirs, ours []*request) {
	t.Helper()
	random := cmp.FilterValues(func(a, b string) bool { return uuid.MatchString(a) && uuid.MatchString(b) }, cmp.Ignore())
	if diff := cmp.Diff(theirs, ours, random, cmpopts.IgnoreUnexported(request{})); diff != "" {
		t.Errorf("client-go asks otherwise (-) than the recorder (+):\n%s", diff)
	}
	for _, r := range ours {
		if r.Verb == "patch" && r.kind != types.StrategicMergePatchType {
			t.Errorf("patched by %s", r.kind)
		}
	}
}

// TestEventsAreClientGos: name, times and all fields are what client-go writes for the same calls.
func TestEventsAreClientGos(t *testing.T) {
	custom := &unstructured.Unstructured{}
	custom.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Thing"))
	custom.SetName("thing")
	type call struct {
		regarding, related         runtime.Object
		annotations                map[string]string
		kind, reason, action, note string
		args                       []any
	}
	calls := map[string]call{
		"pod": {regarding: pod("a"), kind: "Normal", reason: "Scheduled", action: "Binding", note: "assigned %s to %d",
			args: []any{"a", 3}},
		"warning": {regarding: pod("a"), kind: "Warning", reason: "FailedScheduling", action: "Scheduling", note: "%s",
			args: []any{"100% full"}},
		"no arguments": {regarding: pod("a"), kind: "Normal", reason: "R", action: "A", note: "100% full"},
		"related":      {regarding: pod("a"), related: pod("b"), kind: "Normal", reason: "Preempted", action: "Preempting", note: "n"},
		"no namespace": {regarding: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, kind: "Normal", reason: "R", action: "A",
			note: "n"},
		"reference": {regarding: &corev1.ObjectReference{Kind: "Pod", Name: "a", Namespace: "ns", FieldPath: "spec.containers{c}"},
			kind: "Normal", reason: "R", action: "A"},
		"custom": {regarding: custom, kind: "Normal", reason: "R", action: "A", note: "n"},
		"list": {regarding: &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}}, kind: "Normal", reason: "R", action: "A",
			note: "n"},
		"strange name": {regarding: &corev1.ObjectReference{Kind: "User", Name: "system:kube-scheduler"}, kind: "Normal", reason: "R",
			action: "A", note: "n"},
		"annotated":     {regarding: pod("a"), annotations: map[string]string{"k": "v"}, kind: "Normal", reason: "R", action: "A", note: "n"},
		"empty fields":  {regarding: pod("a"), kind: "Normal"},
		"other type":    {regarding: pod("a"), kind: "Other", reason: "R", action: "A", note: "n"},
		"nothing":       {kind: "Normal", reason: "R", action: "A", note: "n"},
		"not an object": {regarding: &runtime.Unknown{}, kind: "Normal", reason: "R", action: "A", note: "n"},
		"related to no object": {regarding: pod("a"), related: &runtime.Unknown{}, kind: "Normal", reason: "R", action: "A",
			note: "n"},
	}
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			theirs, ours := both(t, nil, func(r events.EventRecorderLogger) {
				time.Sleep(1234567 * time.Nanosecond)
				if c.annotations != nil {
					r.(events.AnnotatedEventRecorder).AnnotatedEventf(c.regarding, c.related, c.annotations, c.kind, c.reason, c.action, c.note, c.args...)
				} else {
					r.Eventf(c.regarding, c.related, c.kind, c.reason, c.action, c.note, c.args...)
				}
			})
			same(t, theirs, ours)
			refused := map[string]bool{"other type": true, "nothing": true, "not an object": true}
			if want := 1; !refused[name] && len(ours) != want || refused[name] && len(ours) != 0 {
				t.Errorf("%d requests", len(ours))
			}
			for _, r := range ours {
				if r.Namespace == "" || r.Event.Namespace != r.Namespace || r.Event.DeprecatedCount != 0 || !r.Event.DeprecatedFirstTimestamp.IsZero() {
					t.Errorf("asked for %+v in namespace %q", r.Event, r.Namespace)
				}
			}
		})
	}
}

// TestSeriesAreClientGos: so are the requests of series, from their first repetition to their last count.
func TestSeriesAreClientGos(t *testing.T) {
	gone := func(r *request) error {
		if r.Verb == "patch" {
			return apierrors.NewNotFound(corev1.Resource("events"), r.Name)
		}
		return nil
	}
	for name, answer := range map[string]func(*request) error{"kept": nil, "gone from the server": gone} {
		t.Run(name, func(t *testing.T) {
			theirs, ours := both(t, answer, func(r events.EventRecorderLogger) {
				say := func(who string, related runtime.Object) {
					time.Sleep(time.Millisecond) // the recorder gives no two events the same nanosecond
					r.Eventf(pod(who), related, "Warning", "FailedScheduling", "Scheduling", "no room")
					synctest.Wait()
				}
				for minute := range 60 {
					time.Sleep(time.Minute - time.Second - 987654*time.Nanosecond)
					if minute < 4 {
						say("short", nil) // ends at minute 12
					}
					if minute%5 == 0 && minute < 40 {
						say("long", pod("other")) // is refreshed at minute 30
					}
					if minute == 2 || minute == 20 {
						say("single", nil)
					}
					time.Sleep(time.Second + 987654*time.Nanosecond)
				}
			})
			same(t, theirs, ours)
			if len(ours) < 9 {
				t.Errorf("%d requests", len(ours))
			}
		})
	}
}

// TestOneNanosecond: no two events of a pod have one name, however fast they come.
func TestOneNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		r := New(s, Options{})
		start(t, r)
		for _, reason := range []string{"A", "B", "C"} {
			r.For("x").Event(pod("p"), nil, "Normal", reason, "", "")
		}
		synctest.Wait()
		names := map[string]bool{}
		for _, q := range s.asked() {
			names[q.Name] = true
		}
		if len(names) != 3 {
			t.Errorf("names are %v", names)
		}
	})
}

// TestReferencesAreCopied: what the caller does with a reference later is no matter.
func TestReferencesAreCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		r := New(s, Options{})
		a, b := &corev1.ObjectReference{Name: "a"}, &corev1.ObjectReference{Name: "b"}
		notes := map[string]string{"k": "v"}
		r.For("x").AnnotatedEventf(a, b, notes, "Normal", "R", "A", "n")
		a.Name, b.Name, notes["k"] = "c", "c", "c"
		start(t, r)
		if e := s.asked()[0].Event; e.Regarding.Name != "a" || e.Related.Name != "b" || e.Annotations["k"] != "v" {
			t.Errorf("wrote %+v", e)
		}
	})
}

// TestKeyCoversAllFields: each string of what makes events alike counts, where it stands, and nothing else does.
func TestKeyCoversAllFields(t *testing.T) {
	fresh := func() *happening {
		return &happening{from: &source{}, regarding: &corev1.ObjectReference{}, related: &corev1.ObjectReference{}}
	}
	one := fresh()
	seen := map[key]string{one.key(): "none"}
	set := func(name string, change func(*happening, string)) {
		for _, value := range []string{"x", "xx"} {
			h := fresh()
			change(h, value)
			if other, ok := seen[h.key()]; ok {
				t.Errorf("%s %q has the key of %s", name, value, other)
			}
			seen[h.key()] = name + " " + value
		}
	}
	set("type", func(h *happening, v string) { h.kind = v })
	set("action", func(h *happening, v string) { h.action = v })
	set("reason", func(h *happening, v string) { h.reason = v })
	set("controller", func(h *happening, v string) { h.from.controller = v })
	set("instance", func(h *happening, v string) { h.from.instance = v })
	fields := reflect.TypeFor[corev1.ObjectReference]()
	for i := range fields.NumField() {
		set("regarding "+fields.Field(i).Name, func(h *happening, v string) { reflect.ValueOf(h.regarding).Elem().Field(i).SetString(v) })
		set("related "+fields.Field(i).Name, func(h *happening, v string) { reflect.ValueOf(h.related).Elem().Field(i).SetString(v) })
	}
	h := fresh()
	h.related, h.note, h.at, h.annotations = nil, "note", 3, map[string]string{"k": "v"}
	if h.key() != one.key() {
		t.Error("what is none of the key changes it")
	}
}
