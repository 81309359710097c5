// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/websocket"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/mortise-dev/mortise/internal/apiserver/bufferedconn"
	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/segments"
	"github.com/mortise-dev/mortise/internal/apiserver/table"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/internal/sharedobjects"
	"github.com/mortise-dev/mortise/resource"
)

const (
	maxFromWatcher = 64 << 10 // bytes of a message that a client of a WebSocket may send, none of which is read
	zipEventsFrom  = 4 << 10  // bytes of events that are worth compressing
)

// eventStream is the way to one watcher: events are appended to it, and sent when it is flushed.
type eventStream struct {
	buf      []byte
	pending  bool
	out      http.ResponseWriter
	conn     *http.ResponseController
	own      bool               // the connection is this watch's alone, as with HTTP/1.1
	buffered *bufferedconn.Conn // set when it is, and can be held
	until    time.Time          // when the write deadline passes that was set last
	endless  bool               // there are no deadlines, as in-process
	guard    *writeGuard        // instead of deadlines on an HTTP/2 stream
	zips     bool               // the client takes it compressed
	// ws takes the events as messages, which end at ends; nil: they go out over HTTP, one after the other.
	ws   *websocket.Conn
	ends []int
	// receiver takes the events as they are, when the client is in this process and can.
	receiver *sharedobjects.Receiver
	// sent counts what was appended since the last flush.
	sent    watchcache.Sent
	traffic *watchcache.Traffic
}

// overHTTP begins the answer. A client that asks for the whole state with the changes gets it compressed, if it accepts that.
func (w *watching) overHTTP() error {
	media := w.accept.media
	switch media {
	case mediaProtobuf:
		media += ";stream=watch"
	case mediaCBOR:
		media = negotiate.CBORSequence
	}
	w.headers(media)
	h := w.w.Header()
	h.Set("Transfer-Encoding", "chunked")
	if w.wholeState() && negotiate.AcceptsGzip(w.r) {
		h.Set("Content-Encoding", "gzip")
		h.Add("Vary", "Accept-Encoding")
		w.zips = true
	}
	w.w.WriteHeader(http.StatusOK)
	w.out, w.conn = w.w, http.NewResponseController(w.w)
	if w.own = w.r.ProtoMajor == 1; w.own {
		w.buffered = bufferedconn.FromContext(w.r.Context())
	} else {
		conn := w.conn
		w.guard = &writeGuard{abort: func() { _ = conn.SetWriteDeadline(time.Unix(1, 0)) }} // one that has passed resets the stream
	}
	w.pending = true
	return w.flush()
}

// wholeState reports whether the watch begins with all objects and a bookmark after them.
func (w *watching) wholeState() bool {
	return w.s.SendInitialEvents != nil && *w.s.SendInitialEvents && w.s.AllowWatchBookmarks
}

// overWebSocket upgrades the connection and calls run with a channel that is closed when the client is gone. Each event is
// a message: of text where the medium is text, else binary. A request that is no proper handshake is refused.
func (w *watching) overWebSocket(run func(gone <-chan struct{})) {
	websocket.Handler(func(ws *websocket.Conn) {
		ws.MaxPayloadBytes = maxFromWatcher
		if w.accept.media != mediaJSON {
			ws.PayloadType = websocket.BinaryFrame
		}
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			var data []byte
			for websocket.Message.Receive(ws, &data) == nil {
			}
		}()
		w.ws = ws
		run(gone)
		_ = ws.Close() // the client gets the close frame, if it is still there
		<-gone
	}).ServeHTTP(w.w, w.r)
}

// hand hands an event over. Objects lack their kind and version, as what clients decode does.
func (w *watching) hand(what string, obj runtime.Object, size int) error {
	w.sent.Note(size)
	return w.receiver.Send(w.ctx, apiwatch.Event{Type: apiwatch.EventType(what), Object: obj})
}

// tell appends an event with an object's cached encoding.
func (w *watching) tell(what string, f *watchcache.CachedObject) error {
	if w.accept.target != nil {
		v, err := w.form(f)
		if err != nil {
			return err
		}
		return w.frame(what, v)
	}
	if w.receiver != nil {
		obj, err := f.Share(w.version)
		if err != nil {
			return err
		}
		return w.hand(what, obj, f.Size())
	}
	raw, err := f.Bytes(w.version, w.accept.cached())
	if err != nil {
		return err
	}
	b, err := w.appendEvent(w.room(), what, raw)
	if err != nil {
		return err
	}
	w.took(b)
	return nil
}

// appendEvent appends an event with an object's encoding.
func (w *watching) appendEvent(b []byte, what string, raw []byte) ([]byte, error) {
	gv := w.kind.GroupVersionKind(w.ver().Name).GroupVersion().String()
	switch w.accept.media {
	case mediaProtobuf:
		return w.appendProtobufEvent(b, what, gv, w.kind.Descriptor.Kind, raw), nil
	case mediaCBOR:
		return appendCBOR(appendCBOREvent(b, what), w.kind.Unstructured, gv, w.kind.Descriptor.Kind, raw)
	}
	b = appendJSONEvent(b, what)
	if w.kind.Unstructured {
		b = append(b, raw...)
	} else {
		b = append(b, `{"kind":"`...)
		b = append(b, w.kind.Descriptor.Kind...)
		b = append(b, `","apiVersion":"`...)
		b = append(b, gv...)
		b = append(b, `",`...)
		b = append(b, raw[1:]...)
	}
	return append(b, "}\n"...), nil
}

func appendJSONEvent(b []byte, what string) []byte {
	b = append(b, `{"type":"`...)
	b = append(b, what...)
	return append(b, `","object":`...)
}

// took takes the buffer back, to which a whole event was appended.
func (s *eventStream) took(b []byte) {
	s.sent.Note(len(b) - len(s.buf))
	s.buf, s.pending = b, true
	if s.ws != nil {
		s.ends = append(s.ends, len(b))
	}
}

// errNoForm ends a watch whose objects cannot be converted to the requested form. As in kube-apiserver, the client gets no error.
var errNoForm = errors.New("an object has no form as a list")

func (w *watching) form(f *watchcache.CachedObject) (runtime.Object, error) {
	switch w.accept.target.Kind {
	case "Table":
		return w.table.Event(f.Hub)
	case "PartialObjectMetadataList":
		return nil, errNoForm
	}
	return table.Partial(*w.accept.target, f.Hub), nil
}

// frame appends an event with an object that has no kept bytes.
func (w *watching) frame(what string, obj runtime.Object) error {
	if w.receiver != nil {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		return w.hand(what, obj, 0)
	}
	switch w.accept.media {
	case mediaProtobuf:
		m, ok := obj.(interface{ Marshal() ([]byte, error) })
		if !ok {
			return fmt.Errorf("encode %T: it has no protobuf form", obj)
		}
		raw, err := m.Marshal()
		if err != nil {
			return fmt.Errorf("encode event: %w", err)
		}
		av, kind := obj.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
		w.took(w.appendProtobufEvent(w.room(), what, av, kind, raw))
		return nil
	case mediaCBOR:
		b, err := encodeCBOR(obj)
		if err != nil {
			return fmt.Errorf("encode event: %w", err)
		}
		w.took(append(appendCBOREvent(w.room(), what), b...))
		return nil
	}
	b, err := json.Marshal(obj)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	w.took(append(append(appendJSONEvent(w.room(), what), bytes.TrimRight(b, "\n")...), "}\n"...))
	return nil
}

// appendProtobufEvent appends a metav1.WatchEvent whose object is the given message in its envelope. Over HTTP its length
// precedes it.
func (w *watching) appendProtobufEvent(b []byte, what, apiVersion, kind string, raw []byte) []byte {
	object := envelopeLen(apiVersion, kind, len(raw))
	inner := 1 + uvarintLen(object) + object
	size := 1 + uvarintLen(len(what)) + len(what) + 1 + uvarintLen(inner) + inner
	if w.ws == nil {
		b = binary.BigEndian.AppendUint32(b, uint32(size))
	}
	b = binary.AppendUvarint(append(b, 0x0a), uint64(len(what)))
	b = append(b, what...)
	b = binary.AppendUvarint(append(b, 0x12), uint64(inner))
	b = binary.AppendUvarint(append(b, 0x0a), uint64(object))
	return appendEnvelopeEnd(append(appendEnvelope(b, apiVersion, kind, len(raw)), raw...))
}

// bookmark sends a bookmark of the revision up to which the client has seen all events.
func (w *watching) bookmark(at int64, initialEnd bool) error {
	obj := blank(w.ver().New())
	obj.SetResourceVersion(strconv.FormatInt(at, 10))
	if initialEnd {
		notes := obj.GetAnnotations()
		if notes == nil {
			notes = map[string]string{}
		}
		notes[metav1.InitialEventsAnnotationKey] = "true"
		obj.SetAnnotations(notes)
	}
	gvk := w.kind.GroupVersionKind(w.ver().Name)
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	var tell runtime.Object = obj
	if w.accept.target != nil {
		v, err := w.form(w.kind.NewCachedObject(obj))
		if err != nil {
			return err
		}
		tell = v
	} else if _, ok := obj.(interface{ Marshal() ([]byte, error) }); !ok && w.accept.media == mediaProtobuf {
		return fmt.Errorf("encode %T: it has no protobuf form", obj)
	}
	return w.frame("BOOKMARK", tell)
}

// blank returns an empty object as upstream encodes an unversioned one, whose fields that are no pointers are set.
func blank(obj resource.Object) resource.Object {
	switch o := obj.(type) {
	case *appsv1.DaemonSet:
		o.Annotations = map[string]string{appsv1.DeprecatedTemplateGeneration: "0"}
	case *appsv1.Deployment:
		o.Spec.Replicas = new(int32)
	case *appsv1.ReplicaSet:
		o.Spec.Replicas = new(int32)
	case *appsv1.StatefulSet:
		o.Spec.Replicas = new(int32)
	}
	return obj
}

// flush sends what was appended.
func (s *eventStream) flush() error {
	if !s.pending {
		s.traffic.Add(&s.sent) // what was handed over
		return nil
	}
	s.pending = false
	s.traffic.Add(&s.sent)
	var err error
	if s.ws != nil {
		err = s.messages()
	} else {
		err = s.chunk()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.traffic.End()
	}
	giveBatch(s.buf)
	s.buf, s.ends = nil, nil // an idle watch holds little
	return err
}

// largeBatch is the size of the largest buffers that are used again.
const largeBatch = 256 << 10

var batches sync.Pool

// room is what events are appended to.
func (s *eventStream) room() []byte {
	if s.buf == nil {
		if b, ok := batches.Get().(*[]byte); ok {
			s.buf = *b
		}
	}
	return s.buf
}

func giveBatch(b []byte) {
	if b = b[:0]; 0 < cap(b) && cap(b) <= largeBatch {
		batches.Put(&b)
	}
}

func (s *eventStream) chunk() error {
	return s.transmit(func() error {
		if len(s.buf) == 0 {
			return nil
		}
		return s.write(s.buf)
	})
}

// transmit has the client get what write writes.
func (s *eventStream) transmit(write func() error) error {
	s.begin()
	s.buffered.Hold()
	err := write()
	if err == nil {
		err = s.conn.Flush()
	}
	if e := s.buffered.Release(); err == nil {
		err = e
	}
	if s.guard != nil {
		s.guard.end()
	}
	return err
}

// begin gives the client until writeTimeout, or nearly that, to take what is written next.
func (s *eventStream) begin() {
	if s.guard != nil {
		s.guard.begin()
		return
	}
	now := time.Now()
	if s.endless || s.until.Sub(now) > writeTimeout*3/4 {
		return
	}
	s.until = now.Add(writeTimeout)
	s.endless = errors.Is(s.conn.SetWriteDeadline(s.until), http.ErrNotSupported)
}

// close leaves no deadline behind: a connection may serve further requests.
func (s *eventStream) close() {
	if s.guard != nil {
		s.guard.close()
		return
	}
	if s.conn != nil && !s.endless {
		_ = s.conn.SetWriteDeadline(time.Time{})
		s.until = time.Time{}
	}
}

// write sends bytes as they are, or as a gzip member of their own, so that a watch holds no compressor while it is idle.
// Few bytes are not worth the work: their member has them as they are.
func (s *eventStream) write(b []byte) error {
	switch {
	case !s.zips:
	case len(b) < zipEventsFrom:
		b = segments.Stored(b).AppendMember(nil)
	default:
		b = segments.Compress(b, nil).AppendMember(nil)
	}
	_, err := s.out.Write(b)
	return err
}

// messages sends each event as a separate message.
func (s *eventStream) messages() error {
	defer func() { _ = s.ws.SetWriteDeadline(time.Time{}) }()
	from := 0
	for _, end := range s.ends {
		if err := s.ws.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if _, err := s.ws.Write(s.buf[from:end]); err != nil {
			return err
		}
		from = end
	}
	return nil
}
