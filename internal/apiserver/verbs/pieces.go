// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/segments"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/store"
)

// segmentsKept bounds the memory of compressed pieces of lists. 100,000 pods take some 10 MB.
const segmentsKept = 16 << 20

// framing says what stands around the objects of a piece.
type framing int

const (
	firstJSONItems framing = iota // of a list, without a comma before the first one
	jsonItemsAfter                // of a list, with one
	protobufItems
	jsonEvents
	protobufEvents
)

// form tells apart the pieces that are made of the same records.
type form struct {
	kind    *Kind
	version int
	framing framing
}

// piecewise answers a request with pieces.
type piecewise struct{ *req }

// fits reports whether a list of records is compressed in pieces that are kept: the client takes it compressed, and there is so much
// of it that the answer is certainly compressed. What an extension converts may change without a write, so it is not kept.
func (q piecewise) fits(records []*store.Record, gzips bool) bool {
	if !gzips || q.accept.target != nil || q.accept.pretty || q.ver().Foresee != nil {
		return false
	}
	if m := q.accept.media; m != mediaJSON && m != mediaProtobuf {
		return false
	}
	size := 0
	for _, r := range records {
		if size += len(r.Value); size > gzipFrom {
			return true
		}
	}
	return false
}

// scratch is memory to make a piece in.
type scratch struct {
	piece []byte
	items []int32
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

const largeScratch = 4 << 20 // bytes of a piece above which its memory is not kept

// maker appends a record to a piece; first is true for the first one of all.
type maker func(to []byte, r *store.Record, first bool) ([]byte, error)

// each calls do with the segments of records, one after the other. What is not there yet is made. The piece that begins with the first
// record has a framing of its own.
func (q piecewise) each(records []*store.Record, begin, further framing, appendRecord maker, do func(*segments.Segment) error) error {
	f := form{kind: q.kind, version: q.version, framing: begin}
	for first := true; len(records) > 0; first = false {
		n, key := q.segments.Piece(f, len(records), func(i int) segments.Record {
			r := records[i]
			return segments.Record{Key: r.Key, Revision: r.Revision, Size: len(r.Value)}
		})
		s, err := q.segments.Get(key, func() (*segments.Segment, error) { return compressed(records[:n], first, appendRecord) })
		if err != nil {
			return err
		}
		if err := do(s); err != nil {
			return err
		}
		records, f.framing = records[n:], further
	}
	return nil
}

func compressed(records []*store.Record, first bool, appendRecord maker) (*segments.Segment, error) {
	b := scratches.Get().(*scratch)
	defer func() {
		if cap(b.piece) <= largeScratch {
			scratches.Put(b)
		}
	}()
	b.piece, b.items = b.piece[:0], b.items[:0]
	for i, r := range records {
		before := len(b.piece)
		var err error
		if b.piece, err = appendRecord(b.piece, r, first && i == 0); err != nil {
			return nil, err
		}
		b.items = append(b.items, int32(len(b.piece)-before))
	}
	return segments.Compress(b.piece, b.items), nil
}

// list answers with a list whose pieces are compressed and kept.
func (q piecewise) list(code int, l *registry.Found) error {
	if q.accept.media == mediaProtobuf {
		return q.protobufList(code, l)
	}
	head, tail, err := jsonFrame(q.req, l)
	if err != nil {
		return err
	}
	return q.join(code, mediaJSON, head, tail, func(each func(*segments.Segment) error) error {
		return q.each(l.Records, firstJSONItems, jsonItemsAfter, func(to []byte, r *store.Record, first bool) ([]byte, error) {
			b, err := q.pieceItem(r, watchcache.JSON)
			if err != nil {
				return to, err
			}
			if !first {
				to = append(to, ',')
			}
			return append(to, b...), nil
		}, each)
	})
}

// pieceItem encodes a record for a piece.
func (q piecewise) pieceItem(r *store.Record, m watchcache.Media) ([]byte, error) {
	f, err := q.kind.Pieced(r)
	if err != nil {
		return nil, err
	}
	return f.PieceBytes(q.version, m)
}

// protobufList has all pieces before it sends the first one, since a message begins with its size. It holds them compressed.
func (q piecewise) protobufList(code int, l *registry.Found) error {
	meta, err := l.Meta.Marshal()
	if err != nil {
		return fmt.Errorf("encode list metadata: %w", err)
	}
	size := 1 + uvarintLen(len(meta)) + len(meta)
	var all []*segments.Segment
	err = q.each(l.Records, protobufItems, protobufItems, func(to []byte, r *store.Record, _ bool) ([]byte, error) {
		var digits [20]byte
		if s, ok := q.stamp(r, digits[:]); ok {
			return s.Append(binary.AppendUvarint(append(to, 0x12), uint64(s.Size()))), nil
		}
		b, err := q.pieceItem(r, watchcache.Protobuf)
		if err != nil {
			return to, err
		}
		return append(binary.AppendUvarint(append(to, 0x12), uint64(len(b))), b...), nil
	}, func(s *segments.Segment) error {
		all = append(all, s)
		size += s.Size()
		return nil
	})
	if err != nil {
		return err
	}
	head := appendEnvelope(nil, q.kind.GroupVersionKind(q.ver().Name).GroupVersion().String(), q.kind.ListKind, size)
	head = append(binary.AppendUvarint(append(head, 0x0a), uint64(len(meta))), meta...)
	return q.join(code, mediaProtobuf, head, appendEnvelopeEnd(nil), func(each func(*segments.Segment) error) error {
		for _, s := range all {
			if err := each(s); err != nil {
				return err
			}
		}
		return nil
	})
}

// join sends a compressed answer of a head, the segments that run has, and a tail. An error before the first segment is returned.
func (q piecewise) join(code int, media string, head, tail []byte, run func(each func(*segments.Segment) error) error) error {
	return q.stream(code, media, func(w *answer) error {
		w.joins = true
		err := run(func(s *segments.Segment) error {
			if w.out == nil {
				if err := w.begin(); err != nil {
					return err
				}
				if err := w.join(segments.Stored(head)); err != nil {
					return err
				}
			}
			return w.join(s)
		})
		if err != nil {
			return err
		}
		return w.join(segments.Stored(tail))
	})
}

// jsonFrame is what stands before and after the items of a list.
func jsonFrame(q *req, l *registry.Found) (head, tail []byte, err error) {
	apiVersion := q.kind.GroupVersionKind(q.ver().Name).GroupVersion().String()
	var meta any = l.Meta
	if q.kind.Unstructured {
		meta = customListMeta(l.Meta)
	}
	return jsonAround(apiVersion, q.kind.ListKind, meta)
}

// jsonAround is what stands before and after the items of a list with some metadata.
func jsonAround(apiVersion, kind string, meta any) (head, tail []byte, err error) {
	m, err := json.Marshal(meta)
	if err != nil {
		return nil, nil, fmt.Errorf("encode list metadata: %w", err)
	}
	if _, free := meta.(map[string]any); free { // an object without a Go type has its fields in the order of their names
		return fmt.Appendf(nil, `{"apiVersion":%q,"items":[`, apiVersion), fmt.Appendf(nil, `],"kind":%q,"metadata":%s}`+"\n", kind, m), nil
	}
	return fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[`, kind, apiVersion, m), []byte("]}\n"), nil
}

// initialInPieces sends the events of a watch's initial objects, each piece as a gzip member of its own.
func (w *watching) initialInPieces(records []*store.Record) error {
	as := jsonEvents
	if w.accept.media == mediaProtobuf {
		as = protobufEvents
	}
	p := piecewise{w.req}
	return p.each(records, as, as, func(to []byte, r *store.Record, _ bool) ([]byte, error) {
		raw, err := p.pieceItem(r, w.accept.cached())
		if err != nil {
			return to, err
		}
		return w.appendEvent(to, "ADDED", raw)
	}, func(s *segments.Segment) error {
		for _, n := range s.Items() {
			w.sent.Note(int(n))
		}
		w.traffic.Add(&w.sent)
		return w.transmit(func() error {
			_, err := w.out.Write(s.AppendMember(nil))
			return err
		})
	})
}
