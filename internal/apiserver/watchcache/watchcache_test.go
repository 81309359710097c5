// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"testing"
	"weak"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

type codec struct{}

func (codec) Encode(obj resource.Object) ([]byte, error) { return json.Marshal(obj) }
func (codec) Decode(data []byte) (resource.Object, error) {
	c := &corev1.ConfigMap{}
	return c, json.Unmarshal(data, c)
}

type fixture struct {
	*Kind
	store *store.Store
}

func newFixture(t *testing.T, viewBytes int64) *fixture {
	t.Helper()
	s := store.New(memory.Open(memory.Options{}))
	ctx, cancel := context.WithCancel(context.Background())
	life := &Lifetime{Context: ctx}
	t.Cleanup(func() {
		cancel()
		life.Group.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	d := &resource.Descriptor{
		Resource: "configmaps", Kind: "ConfigMap", Namespaced: true, Prefix: "configmaps", Storage: "v1", Codec: codec{},
		Versions: []resource.Version{{Name: "v1", New: func() resource.Object { return &corev1.ConfigMap{} }}},
	}
	return &fixture{Kind: NewKind(d, s, NewViews(viewBytes), life), store: s}
}

func (f *fixture) put(t *testing.T, name string) *store.Record {
	t.Helper()
	b, err := codec{}.Encode(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := f.store.Update(t.Context(), f.Key("ns", name), store.Any, b, 0)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// await waits until a cursor has something, and returns false if the test ends before.
func await(t *testing.T, c *Cursor) bool {
	t.Helper()
	woken := make(chan struct{})
	if !c.Await(func() func() { close(woken); return nil }) {
		return true
	}
	select {
	case <-woken:
		return true
	case <-t.Context().Done():
		return false
	}
}

// read reads n events from a cursor.
func read(t *testing.T, c *Cursor, n int) []string {
	t.Helper()
	var got []string
	for len(got) < n {
		if !await(t, c) {
			t.Fatalf("after %v no more came", got)
		}
		events, _, err := c.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range events {
			got = append(got, fmt.Sprint(events[i].Revision))
		}
	}
	return got
}

func TestCursorsBeginAnywhere(t *testing.T) {
	f := newFixture(t, 1<<20)
	f.Feed.capacity = 3
	f.put(t, "before")
	if err := f.Feed.Start(); err != nil {
		t.Fatal(err)
	}
	live, err := f.Feed.Cursor(t.Context(), f.store.Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	for i := range 8 {
		f.put(t, fmt.Sprint("n", i))
	}
	read(t, live, 8) // the feed has them all
	for after := int64(1); after <= f.store.Revision(); after++ {
		c, err := f.Feed.Cursor(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		want := int(f.store.Revision() - after)
		got := read(t, c, want)
		if len(got) != want || want > 0 && got[0] != fmt.Sprint(after+1) {
			t.Errorf("after %d: %v", after, got)
		}
		c.Close()
	}
}

func TestSlowCursorIsEnded(t *testing.T) {
	f := newFixture(t, 1<<20)
	f.Feed.lag = 2
	slow, err := f.Feed.Cursor(t.Context(), f.store.Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	quick, err := f.Feed.Cursor(t.Context(), f.store.Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer quick.Close()
	for i := range 5 {
		f.put(t, fmt.Sprint("n", i))
		read(t, quick, 1)
	}
	if _, _, err := slow.Next(t.Context()); !errors.Is(err, ErrExpired) {
		t.Errorf("slow cursor: %v", err)
	}
}

// TestStuckCursorHoldsLittle has a client that does not read: the list behind it is cut, so that it holds only its own
// node and the nodes before the next milestone.
func TestStuckCursorHoldsLittle(t *testing.T) {
	for name, bound := range map[string]func(*Feed){
		"events": func(f *Feed) { f.lag, f.space = 10, 2 },
		"bytes":  func(f *Feed) { f.lagBytes, f.space = 500, 2 },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, 1<<20)
			bound(f.Feed)
			after := f.store.Revision()
			stuck, err := f.Feed.Cursor(t.Context(), after)
			if err != nil {
				t.Fatal(err)
			}
			defer stuck.Close()
			quick, err := f.Feed.Cursor(t.Context(), after)
			if err != nil {
				t.Fatal(err)
			}
			defer quick.Close()
			for i := range 50 {
				f.put(t, fmt.Sprint("n", i))
				read(t, quick, 1)
			}
			f.put(t, "last")
			read(t, quick, 1) // the feed cuts the list before it returns the batch after the next
			held := 0
			for n := stuck.at; n != nil && n != cut; n = n.next.Load() {
				held += len(n.events)
			}
			if held > 3 {
				t.Errorf("a stuck cursor holds %d of 51 events", held)
			}
			await(t, stuck)
			if _, _, err := stuck.Next(t.Context()); !errors.Is(err, ErrExpired) || stuck.After() != after {
				t.Errorf("a stuck cursor after %d: %v", stuck.After(), err)
			}
			late, err := f.Feed.Cursor(t.Context(), after) // the engine still has these changes
			if err != nil {
				t.Fatal(err)
			}
			defer late.Close()
			if got := read(t, late, 51); len(got) != 51 {
				t.Errorf("a watch that resumes got %d events", len(got))
			}
		})
	}
}

func TestStoppedFeedEndsItsCursors(t *testing.T) {
	f := newFixture(t, 1<<20)
	c, err := f.Feed.Cursor(t.Context(), f.store.Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f.Feed.Stop()
	await(t, c)
	if _, _, err := c.Next(t.Context()); err == nil {
		t.Error("a cursor went on after its feed had stopped")
	}
	if _, err := f.Feed.Cursor(t.Context(), f.store.Revision()); !errors.Is(err, ErrStopped) {
		t.Errorf("a stopped feed started: %v", err)
	}
}

func TestViewsAreBounded(t *testing.T) {
	f := newFixture(t, 8<<10)
	var records []*store.Record
	for i := range 50 {
		r := f.put(t, fmt.Sprint("n", i))
		forms, err := f.Cached(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := forms.Bytes(0, JSON); err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	kept := 0
	for _, r := range records {
		if r.View() != nil {
			kept++
		}
	}
	if kept == 0 || kept > 8 {
		t.Errorf("%d views are kept in 8 KiB", kept)
	}
	if records[0].View() != nil {
		t.Error("the oldest view is still there")
	}
	again, err := f.Cached(records[0])
	if err != nil || again.Hub.GetName() != "n0" || again.Hub.GetResourceVersion() != fmt.Sprint(records[0].Revision) {
		t.Errorf("a dropped view came back as %v, %v", again, err)
	}
}

// TestSharedObjectIsFoundAgain checks that an object that a client still holds is not decoded again after its cached object was
// dropped, and that an object without holders is.
func TestSharedObjectIsFoundAgain(t *testing.T) {
	f := newFixture(t, 1500) // room for one
	f.Versions[0].Weak = func(obj resource.Object) func() resource.Object {
		to := weak.Make(obj.(*corev1.ConfigMap))
		return func() resource.Object {
			if o := to.Value(); o != nil {
				return o
			}
			return nil
		}
	}
	forms := func(r *store.Record) *CachedObject {
		t.Helper()
		got, err := f.Cached(r)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	one, other := f.put(t, "one"), f.put(t, "other")
	private := forms(one).Hub
	if forms(other); forms(one).Hub == private {
		t.Error("an object that was not shared is kept")
	}
	shared, err := forms(one).Share(0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the encodings of a shared object share it, and are counted separately
		if _, err := forms(one).Bytes(0, JSON); err != nil {
			t.Fatal(err)
		}
		forms(other)
		forms(f.put(t, "third"))
		if _, ok := one.View().(*CachedObject); ok {
			t.Fatal("there is room for more than one")
		}
		if once, err := f.Once(one); err != nil || once.Hub != shared {
			t.Errorf("once: %v, %v, which is not the shared object", once, err)
		}
		if _, ok := one.View().(*CachedObject); ok {
			t.Error("forms for one use were kept")
		}
		if forms(one).Hub != shared {
			t.Error("the shared object is not found again")
		}
	}
	forms(other)
	runtime.KeepAlive(shared)
	runtime.KeepAlive(private)
	shared, private = nil, nil
	runtime.GC()
	if got := forms(one).Hub; got.GetName() != "one" {
		t.Errorf("after nobody had it any more it is %v", got)
	}
}

// TestEncodingWritesNothing checks that encoding a shared object for one client writes to no memory that others read.
func TestEncodingWritesNothing(t *testing.T) {
	limit := quantity.MustParse("8Mi")
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}}}}}
	k := newFixture(t, 1<<20).Kind
	k.Codec = resource.ProtobufCodec(corev1.SchemeGroupVersion.WithKind("Pod"), func() resource.Object { return &corev1.Pod{} })
	data, err := k.Codec.Encode(pod)
	if err != nil {
		t.Fatal(err)
	}
	shared, err := k.Decode(&store.Record{Key: "k", Value: data})
	if err != nil {
		t.Fatal(err)
	}
	before := shared.DeepCopyObject()
	if _, err := EncodeBare(shared, Protobuf); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(shared, before) {
		t.Errorf("%#v is changed", shared.(*corev1.Pod).Spec.Volumes[0].EmptyDir.SizeLimit)
	}
}

// TestLargeListsKeepWhatTheyCan lists more objects than fit: each list finds those that the first one cached, and another kind's
// list displaces them when they are not listed any more.
func TestLargeListsKeepWhatTheyCan(t *testing.T) {
	f := newFixture(t, 16<<10)
	var first, second []*store.Record
	for i := range 50 {
		first, second = append(first, f.put(t, fmt.Sprint("a", i))), append(second, f.put(t, fmt.Sprint("b", i)))
	}
	list := func(records []*store.Record) (found int) {
		t.Helper()
		f.Listing()
		for i, r := range records {
			if r.View() != nil {
				found++
			}
			forms, err := f.Listed(r)
			if err != nil || forms.Hub.GetName() != records[i].Key[len("/registry/configmaps/ns/"):] {
				t.Fatalf("%s: %v, %v", r.Key, forms, err)
			}
			if _, err := forms.Bytes(0, JSON); err != nil {
				t.Fatal(err)
			}
		}
		return found
	}
	list(first)
	kept := list(first)
	if kept < 4 || kept > 16 {
		t.Errorf("a list finds %d objects in 16 KiB", kept)
	}
	for range recentLists - 1 {
		if n := list(first); n != kept {
			t.Errorf("a list finds %d objects, the one before found %d", n, kept)
		}
	}
	if n := list(second); n != 0 {
		t.Errorf("a first list finds %d objects", n)
	}
	for range recentLists {
		list(second)
	}
	if n := list(second); n < kept/2 {
		t.Errorf("a list that took over finds %d objects, the other had %d", n, kept)
	}
}
