// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/internal/apiserver/table"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"

	"github.com/mortise-dev/mortise/store"
)

const (
	minWatch         = 30 * time.Minute // a watch without timeoutSeconds lasts this long or up to twice as long
	bookmarkInterval = time.Minute
	writeTimeout     = 30 * time.Second // a client that takes no bytes for so long is too slow
)

// watch answers with changes as they come.
func watch(q *req) error {
	if err := q.negotiate(true); err != nil {
		return err
	}
	s, err := q.listOptions()
	if err != nil {
		return err
	}
	timeout := time.Duration(float64(minWatch) * (1 + rand.Float64()))
	if s.TimeoutSeconds != nil && *s.TimeoutSeconds > 0 {
		timeout = time.Duration(*s.TimeoutSeconds) * time.Second
	}
	w := &watching{req: q, s: s, under: q.kind.Under(q.ns)}
	if s.name != "" && (q.ns != "" || !q.kind.Namespaced) {
		w.key = q.kind.Key(q.ns, s.name)
	}
	if q.accept.target != nil {
		if w.table, err = q.converter(*q.accept.target); err != nil {
			return err
		}
	}
	cursor, initial, err := w.begin()
	if err != nil {
		return err
	}
	defer cursor.Close()
	w.deadline = timeout
	return w.run(cursor, initial)
}

// watching is one client's watch.
type watching struct {
	*req
	s        *selection
	under    string
	key      string // the only key of interest; empty: all under the prefix
	table    *table.Converter
	deadline time.Duration

	out     *http.ResponseController
	buf     []byte
	pending bool
	told    int64 // revision of the last bookmark
}

// begin finds where the watch starts, and the objects that it is told of first; initial is nil when there are none to tell.
func (w *watching) begin() (*watchcache.Cursor, *found, error) {
	want, err := revision(w.s.ResourceVersion)
	if err != nil {
		return nil, nil, err
	}
	send := w.s.SendInitialEvents != nil && *w.s.SendInitialEvents
	silent := w.s.SendInitialEvents != nil && !*w.s.SendInitialEvents
	if want > 0 && !send {
		now := w.Store.Revision()
		if want > now {
			want = now // nothing newer is known: what comes is after it
		}
		c, err := w.kind.Feed.Cursor(w.ctx, want)
		if errors.Is(err, store.ErrCompacted) {
			return nil, nil, expiredWatch(want, w.Store.Compacted())
		}
		return c, nil, err
	}
	if now := w.Store.Revision(); want > now {
		return nil, nil, status.TooLarge(want, now)
	}
	// the feed is started before the objects are read, so that nothing falls between the two
	if err := w.kind.Feed.Start(); err != nil {
		return nil, nil, err
	}
	if silent {
		c, err := w.kind.Feed.Cursor(w.ctx, w.Store.Revision())
		return c, nil, err
	}
	all := *w.s
	all.ResourceVersion, all.ResourceVersionMatch, all.Limit, all.Continue = "", "", 0, ""
	initial, err := w.find(w.ctx, w.kind, w.ns, &all)
	if err != nil {
		return nil, nil, err
	}
	at, err := revision(initial.meta.ResourceVersion)
	if err != nil {
		return nil, nil, err
	}
	c, err := w.kind.Feed.Cursor(w.ctx, at)
	return c, initial, err
}

func expiredWatch(want, oldest int64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", want, oldest))
}

func (w *watching) run(c *watchcache.Cursor, initial *found) error {
	media := w.accept.media
	if media == mediaProtobuf {
		media += ";stream=watch"
	}
	w.headers(media)
	w.w.Header().Set("Transfer-Encoding", "chunked")
	w.w.WriteHeader(http.StatusOK)
	w.out = http.NewResponseController(w.w)
	w.pending = true
	if err := w.flush(); err != nil {
		return nil
	}
	if initial != nil {
		if err := w.tellInitial(initial); err != nil {
			return nil
		}
	}
	end := time.NewTimer(w.deadline)
	defer end.Stop()
	var bookmarks <-chan time.Time
	if w.s.AllowWatchBookmarks {
		t := time.NewTicker(bookmarkInterval)
		defer t.Stop()
		bookmarks = t.C
	}
	for {
		select {
		case <-w.ctx.Done():
			return nil
		case <-w.lifetime.Context.Done():
			return nil
		case <-end.C:
			return nil
		case <-bookmarks:
			if seen := c.Seen(); seen > w.told {
				if w.bookmark(seen, false) != nil || w.flush() != nil {
					return nil
				}
			}
		case <-c.Ready():
			if !w.drain(c) {
				return nil
			}
		}
	}
}

// drain tells all that is there, and flushes once.
func (w *watching) drain(c *watchcache.Cursor) bool {
	for {
		events, _, err := c.Next(w.ctx)
		if err != nil {
			w.fail(err)
			return false
		}
		for i := range events {
			if err := w.event(&events[i]); err != nil {
				w.fail(err)
				return false
			}
		}
		if len(w.buf) > 64<<10 || !c.More() {
			if w.flush() != nil {
				return false
			}
			if !c.More() {
				return true
			}
		}
	}
}

func (w *watching) tellInitial(initial *found) error {
	for _, rec := range initial.records {
		f, err := w.kind.Forms(rec)
		if err == nil {
			err = w.tell("ADDED", f)
		}
		if err != nil {
			w.fail(err)
			return err
		}
		if len(w.buf) > 64<<10 {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	if w.s.SendInitialEvents != nil && *w.s.SendInitialEvents && w.s.AllowWatchBookmarks {
		at, err := revision(initial.meta.ResourceVersion)
		if err == nil {
			err = w.bookmark(at, true)
		}
		if err != nil {
			return err
		}
	}
	return w.flush()
}

// event tells one change as this watch's selectors see it.
func (w *watching) event(e *watchcache.Event) error {
	if w.key != "" && e.Key != w.key || w.key == "" && !strings.HasPrefix(e.Key, w.under) {
		return nil
	}
	is, was := e.Record != nil, e.Previous != nil
	var err error
	if !w.s.all() || w.s.name != "" {
		if is {
			if is, err = w.s.picks(w.kind, e.Record); err != nil {
				return err
			}
		}
		if was {
			if was, err = w.s.picks(w.kind, e.Previous); err != nil {
				return err
			}
		}
	}
	var f *watchcache.Forms
	what := ""
	switch {
	case is:
		what = "MODIFIED"
		if !was {
			what = "ADDED"
		}
		f, err = w.kind.Forms(e.Record)
	case was:
		what = "DELETED"
		f, err = e.Gone(w.kind)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return w.tell(what, f)
}

// tell appends an event to what will be flushed.
func (w *watching) tell(what string, f *watchcache.Forms) error {
	if w.accept.target != nil {
		v, err := w.form(f)
		if err != nil {
			return err
		}
		return w.frame(what, v)
	}
	gv := w.kind.GroupVersionKind(w.ver().Name).GroupVersion().String()
	if w.accept.media == mediaProtobuf {
		raw, err := f.Bytes(w.version, watchcache.Protobuf)
		if err != nil {
			return err
		}
		w.protobufFrame(what, envelope(gv, w.kind.Descriptor.Kind, raw))
		return nil
	}
	raw, err := f.Bytes(w.version, watchcache.JSON)
	if err != nil {
		return err
	}
	w.buf = append(w.buf, `{"type":"`...)
	w.buf = append(w.buf, what...)
	w.buf = append(w.buf, `","object":`...)
	if w.kind.Unstructured {
		w.buf = append(w.buf, raw...)
	} else {
		w.buf = append(w.buf, `{"kind":"`...)
		w.buf = append(w.buf, w.kind.Descriptor.Kind...)
		w.buf = append(w.buf, `","apiVersion":"`...)
		w.buf = append(w.buf, gv...)
		w.buf = append(w.buf, `",`...)
		w.buf = append(w.buf, raw[1:]...)
	}
	w.buf = append(w.buf, "}\n"...)
	w.pending = true
	return nil
}

func (w *watching) form(f *watchcache.Forms) (runtime.Object, error) {
	if w.accept.target.Kind == "Table" {
		return w.table.Event(f.Hub)
	}
	t := *w.accept.target
	t.Kind = "PartialObjectMetadata"
	return table.Partial(t, f.Hub), nil
}

// frame appends an event with an object that has no kept bytes.
func (w *watching) frame(what string, obj runtime.Object) error {
	if w.accept.media == mediaProtobuf {
		m, ok := obj.(interface{ Marshal() ([]byte, error) })
		if !ok {
			return fmt.Errorf("encode %T: it has no protobuf form", obj)
		}
		raw, err := m.Marshal()
		if err != nil {
			return fmt.Errorf("encode event: %w", err)
		}
		av, kind := obj.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
		w.protobufFrame(what, envelope(av, kind, raw))
		return nil
	}
	b, err := json.Marshal(obj)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	w.buf = append(w.buf, `{"type":"`...)
	w.buf = append(w.buf, what...)
	w.buf = append(w.buf, `","object":`...)
	w.buf = append(w.buf, bytes.TrimRight(b, "\n")...)
	w.buf = append(w.buf, "}\n"...)
	w.pending = true
	return nil
}

// protobufFrame appends a length and a metav1.WatchEvent whose object is given.
func (w *watching) protobufFrame(what string, object []byte) {
	inner := 1 + uvarintLen(len(object)) + len(object)
	size := 1 + uvarintLen(len(what)) + len(what) + 1 + uvarintLen(inner) + inner
	b := binary.BigEndian.AppendUint32(w.buf, uint32(size))
	b = binary.AppendUvarint(append(b, 0x0a), uint64(len(what)))
	b = append(b, what...)
	b = binary.AppendUvarint(append(b, 0x12), uint64(inner))
	b = binary.AppendUvarint(append(b, 0x0a), uint64(len(object)))
	w.buf = append(b, object...)
	w.pending = true
}

// bookmark tells how far the client has seen.
func (w *watching) bookmark(at int64, initialEnd bool) error {
	obj := w.ver().New()
	obj.SetResourceVersion(strconv.FormatInt(at, 10))
	if initialEnd {
		obj.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	gvk := w.kind.GroupVersionKind(w.ver().Name)
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	w.told = at
	var tell runtime.Object = obj
	if w.accept.target != nil {
		v, err := w.form(w.kind.NewForms(obj))
		if err != nil {
			return err
		}
		tell = v
	} else if _, ok := obj.(interface{ Marshal() ([]byte, error) }); !ok && w.accept.media == mediaProtobuf {
		return fmt.Errorf("encode %T: it has no protobuf form", obj)
	}
	return w.frame("BOOKMARK", tell)
}

// fail tells why the watch ends.
func (w *watching) fail(err error) {
	switch {
	case errors.Is(err, store.ErrCompacted), errors.Is(err, watchcache.ErrExpired):
		err = expiredWatch(w.told, w.Store.Compacted())
	case errors.Is(err, context.Canceled), errors.Is(err, store.ErrClosed):
		return // the server or the client ends: no error of the watch
	}
	if w.frame("ERROR", status.Of(err)) == nil {
		_ = w.flush() // the connection ends either way
	}
}

func (w *watching) flush() error {
	if !w.pending {
		return nil
	}
	w.pending = false
	// In-process answers have no deadline. An HTTP/2 stream is reset when one passes, written to or not: none is left behind.
	_ = w.out.SetWriteDeadline(time.Now().Add(writeTimeout))
	defer func() { _ = w.out.SetWriteDeadline(time.Time{}) }()
	if len(w.buf) > 0 {
		if _, err := w.w.Write(w.buf); err != nil {
			return err
		}
		if w.buf = w.buf[:0]; cap(w.buf) > 16<<10 {
			w.buf = nil // an idle watch holds little
		}
	}
	return w.out.Flush()
}
