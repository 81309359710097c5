// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/store"
)

// list answers with the objects of a kind, all from one revision.
func list(q *req) error {
	if err := q.negotiate(false); err != nil {
		return err
	}
	s, err := q.listOptions()
	if err != nil {
		return err
	}
	found, err := q.find(q.ctx, q.kind, q.ns, s)
	if err != nil {
		return err
	}
	return q.respondList(http.StatusOK, found)
}

// found is what a list came to. Records that need not be decoded to be selected are not.
type found struct {
	records []*store.Record
	meta    metav1.ListMeta
}

// respondList answers with a list, spliced from the bytes of its items.
func (q *req) respondList(code int, l *found) error {
	if q.accept.target != nil {
		forms := make([]*watchcache.Forms, len(l.records))
		for i, r := range l.records {
			f, err := q.kind.Forms(r)
			if err != nil {
				return err
			}
			forms[i] = f
		}
		return q.respondAs(code, true, forms, l.meta)
	}
	switch {
	case q.accept.media == mediaProtobuf:
		return q.protobufList(code, l)
	case q.accept.media == mediaYAML || q.accept.pretty:
		var buf writerBuffer
		if err := q.jsonList(&buf, l); err != nil {
			return err
		}
		return q.writeJSON(code, buf.b)
	}
	// a first item that does not encode is still a clean error; a later one breaks the answer off
	if len(l.records) > 0 {
		if _, err := q.item(l.records[0], watchcache.JSON); err != nil {
			return err
		}
	}
	if len(l.records) <= 64 {
		var buf writerBuffer
		if err := q.jsonList(&buf, l); err != nil {
			return err
		}
		return q.write(code, mediaJSON, buf.b)
	}
	return q.stream(code, mediaJSON, func(w io.Writer) error { return q.jsonList(w, l) })
}

type writerBuffer struct{ b []byte }

func (w *writerBuffer) Write(p []byte) (int, error) {
	w.b = append(w.b, p...)
	return len(p), nil
}

// stream sends an answer as it is made. An error in its middle ends the connection, so that no client takes it for whole.
func (q *req) stream(code int, media string, make func(io.Writer) error) error {
	q.headers(media)
	var out io.Writer = q.w
	var z *gzip.Writer
	if q.gzips() {
		h := q.w.Header()
		h.Set("Content-Encoding", "gzip")
		h.Add("Vary", "Accept-Encoding")
		var err error
		if z, err = gzip.NewWriterLevel(q.w, gzip.BestSpeed); err != nil {
			return fmt.Errorf("compress answer: %w", err)
		}
		out = z
	}
	q.w.WriteHeader(code)
	b := bufio.NewWriterSize(out, 32<<10)
	err := make(b)
	if err == nil {
		err = b.Flush()
	}
	if err == nil && z != nil {
		err = z.Close()
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (q *req) item(r *store.Record, m watchcache.Media) ([]byte, error) {
	f, err := q.kind.Forms(r)
	if err != nil {
		return nil, err
	}
	return f.Bytes(q.version, m)
}

func (q *req) jsonList(w io.Writer, l *found) error {
	gv := q.kind.GroupVersionKind(q.ver().Name).GroupVersion()
	meta, err := q.listMeta(l.meta)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[`, q.kind.ListKind, gv.String(), meta); err != nil {
		return err
	}
	comma := []byte{','}
	for i, r := range l.records {
		b, err := q.item(r, watchcache.JSON)
		if err != nil {
			return err
		}
		if i > 0 {
			if _, err := w.Write(comma); err != nil {
				return err
			}
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	_, err = io.WriteString(w, "]}\n")
	return err
}

// listMeta is a list's metadata as JSON. Lists of custom resources always say where they go on.
func (q *req) listMeta(m metav1.ListMeta) ([]byte, error) {
	if q.kind.Unstructured {
		u := map[string]any{"continue": m.Continue, "resourceVersion": m.ResourceVersion}
		if m.RemainingItemCount != nil {
			u["remainingItemCount"] = *m.RemainingItemCount
		}
		return json.Marshal(u)
	}
	return json.Marshal(m)
}

func (q *req) protobufList(code int, l *found) error {
	meta, err := l.meta.Marshal()
	if err != nil {
		return fmt.Errorf("encode list metadata: %w", err)
	}
	items := make([][]byte, len(l.records))
	size := 1 + uvarintLen(len(meta)) + len(meta)
	for i, r := range l.records {
		if items[i], err = q.item(r, watchcache.Protobuf); err != nil {
			return err
		}
		size += 1 + uvarintLen(len(items[i])) + len(items[i])
	}
	gv := q.kind.GroupVersionKind(q.ver().Name).GroupVersion()
	emit := func(w io.Writer) error {
		head := appendEnvelope(make([]byte, 0, 256+len(meta)), gv.String(), q.kind.ListKind, size)
		head = binary.AppendUvarint(append(head, 0x0a), uint64(len(meta)))
		if _, err := w.Write(append(head, meta...)); err != nil {
			return err
		}
		var tag [1 + binary.MaxVarintLen64]byte
		for _, b := range items {
			tag[0] = 0x12
			n := 1 + binary.PutUvarint(tag[1:], uint64(len(b)))
			if _, err := w.Write(tag[:n]); err != nil {
				return err
			}
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
		_, err := w.Write(appendEnvelopeEnd(nil))
		return err
	}
	if size < gzipFrom {
		buf := writerBuffer{b: make([]byte, 0, size+256)}
		if err := emit(&buf); err != nil {
			return err
		}
		return q.write(code, mediaProtobuf, buf.b)
	}
	return q.stream(code, mediaProtobuf, emit)
}
