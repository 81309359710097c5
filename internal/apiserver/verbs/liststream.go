// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/table"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// respondList answers with a list, spliced from the bytes of its items as it is sent: no more of it is in memory at a time
// than the client is about to take.
func (q *req) respondList(code int, l *registry.Found) error {
	a := q.accept
	q.kind.Listing()
	if err := q.kind.Unreadable(l.Records); err != nil {
		return err
	}
	if sentAsMade(l.Records) {
		if err := watchcache.Verify(q.kind, q.ns, l.Records, l.Revision, l.Whole); err != nil {
			return err
		}
	}
	if err := q.foresee(l.Records); err != nil {
		return err
	}
	if a.target != nil && (a.target.Kind == "PartialObjectMetadata" || a.media != mediaJSON || a.pretty || len(l.Records) == 0 ||
		ordered(q.ver().Columns)) {
		objects := make([]*watchcache.CachedObject, len(l.Records))
		for i, r := range l.Records {
			f, err := q.kind.Cached(r)
			if err != nil {
				return err
			}
			objects[i] = f
		}
		return q.respondAs(code, true, objects, l.Meta)
	}
	if p := (piecewise{q}); p.fits(l.Records, negotiate.AcceptsGzip(q.r)) {
		return p.list(code, l)
	}
	switch {
	case a.target != nil && a.target.Kind == "Table":
		c, err := q.converter(*a.target)
		if err != nil {
			return err
		}
		return q.stream(code, mediaJSON, func(w *answer) error { return q.tableList(w, c, l) })
	case a.target != nil:
		return q.stream(code, mediaJSON, func(w *answer) error { return q.partialList(w, l) })
	case a.media == mediaProtobuf:
		return q.stream(code, mediaProtobuf, func(w *answer) error { return q.protobufList(w, l) })
	case a.media == mediaCBOR:
		return q.stream(code, mediaCBOR, func(w *answer) error { return q.cborList(w, l) })
	case a.media == mediaYAML || a.pretty:
		var buf writerBuffer
		if err := q.jsonList(&buf, l); err != nil {
			return err
		}
		return q.writeJSON(code, buf.b)
	}
	return q.stream(code, mediaJSON, func(w *answer) error { return q.jsonList(w, l) })
}

// sentAsMade reports whether a list of records may be so large that its beginning is sent before its end is made. What is sent is seldom
// more than eight times as large as what is stored.
func sentAsMade(records []*store.Record) bool {
	size := 0
	for _, r := range records {
		if size += len(r.Value); size > sendFrom/8 {
			return true
		}
	}
	return false
}

// foreseen is the number of objects that one call of a version's Foresee converts.
const foreseen = 500

// foresee has the records converted to the version of the request before anything is sent, many at once where the version
// can do that. Metadata is the same in all versions.
func (q *req) foresee(records []*store.Record) error {
	if q.accept.target != nil && q.accept.target.Kind != "Table" {
		return nil
	}
	return q.foreseeAll(records)
}

// foreseeAll is foresee, whatever is to be sent.
func (q *req) foreseeAll(records []*store.Record) error {
	f := q.ver().Foresee
	if f == nil {
		return nil
	}
	for len(records) > 0 {
		n := min(foreseen, len(records))
		hubs := make([]resource.Object, n)
		for i, r := range records[:n] {
			cached, err := q.kind.Cached(r)
			if err != nil {
				return err
			}
			hubs[i] = cached.Hub
		}
		if err := f(q.ctx, hubs); err != nil {
			return err
		}
		records = records[n:]
	}
	return nil
}

type writerBuffer struct{ b []byte }

func (w *writerBuffer) Write(p []byte) (int, error) {
	w.b = append(w.b, p...)
	return len(p), nil
}

func (q *req) item(r *store.Record, m watchcache.Media) ([]byte, error) {
	f, err := q.kind.Listed(r)
	if err != nil {
		return nil, err
	}
	return f.Bytes(q.version, m)
}

func (q *req) jsonList(w io.Writer, l *registry.Found) error {
	head, tail, err := jsonFrame(q, l)
	if err != nil {
		return err
	}
	return jsonItems(w, head, tail, len(l.Records), func(i int) ([]byte, error) { return q.item(l.Records[i], watchcache.JSON) })
}

// partialList is a list of its objects' metadata.
func (q *req) partialList(w io.Writer, l *registry.Found) error {
	t := *q.accept.target
	one := t
	one.Kind = "PartialObjectMetadata"
	head, tail, err := jsonAround(t.GroupVersion(), t.Kind, l.Meta)
	if err != nil {
		return err
	}
	return jsonItems(w, head, tail, len(l.Records), func(i int) ([]byte, error) {
		f, err := q.kind.Listed(l.Records[i])
		if err != nil {
			return nil, err
		}
		return partialJSON(one, f)
	})
}

// partialJSON is an object's metadata as a PartialObjectMetadata of the target's version.
func partialJSON(t table.Target, f *watchcache.CachedObject) ([]byte, error) {
	if !table.HasPlainMetadata(f.Hub) {
		return json.Marshal(table.Partial(t, f.Hub))
	}
	m, err := f.Metadata()
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(m)+100)
	b = append(b, `{"kind":"PartialObjectMetadata","apiVersion":"`...)
	b = append(b, t.GroupVersion()...)
	b = append(b, `","metadata":`...)
	return append(append(b, m...), '}'), nil
}

// ordered reports whether columns need all rows together.
func ordered(c resource.Columns) bool {
	_, ok := c.(table.Orderer)
	return ok
}

// tableList is a table, made and sent row by row. There is a row at least.
func (q *req) tableList(w io.Writer, c *table.Converter, l *registry.Found) error {
	const closing, noObject = "]}", "null}"
	c.WithoutObjects = c.IncludesMetadata()
	for i, r := range l.Records {
		f, err := q.kind.Listed(r)
		if err != nil {
			return err
		}
		t, err := c.List([]resource.Object{f.Hub}, l.Meta)
		if err != nil {
			return err
		}
		row, err := json.Marshal(t.Rows[0])
		if err != nil {
			return fmt.Errorf("encode row: %w", err)
		}
		if c.WithoutObjects {
			object, err := partialJSON(c.Target, f)
			if err != nil {
				return err
			}
			row = append(append(bytes.TrimSuffix(row, []byte(noObject)), object...), '}')
		}
		before := []byte{','}
		if i == 0 {
			t.Rows = []metav1.TableRow{}
			if before, err = json.Marshal(t); err != nil {
				return fmt.Errorf("encode table: %w", err)
			}
			before = bytes.TrimSuffix(before, []byte(closing))
			c.NoHeaders = true // they have been sent
		}
		if _, err := w.Write(before); err != nil {
			return err
		}
		if _, err := w.Write(row); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, closing+"\n")
	return err
}

// jsonItems writes a list of n items.
func jsonItems(w io.Writer, head, tail []byte, n int, item func(i int) ([]byte, error)) error {
	if _, err := w.Write(head); err != nil {
		return err
	}
	comma := []byte{','}
	for i := range n {
		b, err := item(i)
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
	_, err := w.Write(tail)
	return err
}

// stamp returns a record's protobuf form without decoding it, if the requested version is the stored one.
func (q *req) stamp(r *store.Record, scratch []byte) (resource.Stamped, bool) {
	if v := q.ver(); v.FromHub != nil || q.kind.Unstructured || !v.Protobuf {
		return resource.Stamped{}, false
	}
	return resource.Stamp(r.Value, strconv.AppendInt(scratch[:0], r.Revision, 10))
}

// protobufList goes through the items twice, since a message begins with its size. What is stored is sent as it is, with the
// resource version put in; items that need conversion are kept by their forms as far as those are bounded, and else made
// again.
func (q *req) protobufList(w *answer, l *registry.Found) error {
	meta, err := l.Meta.Marshal()
	if err != nil {
		return fmt.Errorf("encode list metadata: %w", err)
	}
	var scratch [20]byte
	size := 1 + uvarintLen(len(meta)) + len(meta)
	for _, r := range l.Records {
		n := 0
		if s, ok := q.stamp(r, scratch[:]); ok {
			n = s.Size()
		} else {
			b, err := q.item(r, watchcache.Protobuf)
			if err != nil {
				return err
			}
			n = len(b)
		}
		size += 1 + uvarintLen(n) + n
	}
	gv := q.kind.GroupVersionKind(q.ver().Name).GroupVersion()
	w.buf = appendEnvelope(w.buf, gv.String(), q.kind.ListKind, size)
	w.buf = append(binary.AppendUvarint(append(w.buf, 0x0a), uint64(len(meta))), meta...)
	for _, r := range l.Records {
		if s, ok := q.stamp(r, scratch[:]); ok {
			w.buf = s.Append(binary.AppendUvarint(append(w.buf, 0x12), uint64(s.Size())))
		} else {
			b, err := q.item(r, watchcache.Protobuf)
			if err != nil {
				return err
			}
			w.buf = append(binary.AppendUvarint(append(w.buf, 0x12), uint64(len(b))), b...)
		}
		if err := w.spill(); err != nil {
			return err
		}
	}
	w.buf = appendEnvelopeEnd(w.buf)
	return nil
}
