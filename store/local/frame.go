// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"

	"github.com/mortise-dev/mortise/store"
)

// A frame is one write to the log:
//
//	0   4  length of the body
//	4   4  crc32c of the segment's identity, the frame's offset, the rest of this header, and the body
//	8   8  revision of the first transaction
//	16  8  when it was written, nanoseconds since 1970
//	24     body: entries, one after the other
//
// and zeros to a multiple of eight. An entry is a transaction or a compaction:
//
//	1  count, then count changes
//	2  revision
//
// and a change is one of
//
//	1  key  value            put
//	2  key  expiry  value    put with a time to live, expiry in nanoseconds since 1970, 8 bytes
//	3  key                   delete
//
// Numbers are uvarints, keys and values a length and bytes. Each transaction's revision is one more than that before.
const (
	frameHeader = 24
	frameAlign  = 8

	entryTransaction = 1
	entryCompact     = 2

	changePut      = 1
	changeExpiring = 2
	changeDelete   = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	errIncomplete = errors.New("ends early")
	errChecksum   = errors.New("checksum does not match")
	errMalformed  = errors.New("malformed")
)

// appendTransaction adds the entry of a transaction to a body.
func appendTransaction(b []byte, events []store.Event) []byte {
	b = append(b, entryTransaction)
	b = binary.AppendUvarint(b, uint64(len(events)))
	for _, e := range events {
		switch {
		case e.Record == nil:
			b = appendString(append(b, changeDelete), e.Key)
			continue
		case e.Record.Expires.IsZero():
			b = appendString(append(b, changePut), e.Key)
		default:
			b = appendString(append(b, changeExpiring), e.Key)
			b = binary.LittleEndian.AppendUint64(b, uint64(e.Record.Expires.UnixNano()))
		}
		b = binary.AppendUvarint(b, uint64(len(e.Record.Value)))
		b = append(b, e.Record.Value...)
	}
	return b
}

// appendCompact adds the entry of a compaction to a body.
func appendCompact(b []byte, revision int64) []byte {
	return binary.AppendUvarint(append(b, entryCompact), uint64(revision))
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// seal completes a frame, which begins with room for a header, for its place in a segment.
func seal(frame []byte, seed uint32, offset, revision int64, at time.Time) []byte {
	binary.LittleEndian.PutUint32(frame, uint32(len(frame)-frameHeader))
	binary.LittleEndian.PutUint64(frame[8:], uint64(revision))
	binary.LittleEndian.PutUint64(frame[16:], uint64(at.UnixNano()))
	binary.LittleEndian.PutUint32(frame[4:], checksum(frame, seed, offset))
	for len(frame)%frameAlign != 0 {
		frame = append(frame, 0)
	}
	return frame
}

// checksum returns the checksum of the frame at the beginning of b; b may be longer than the length in its header.
func checksum(b []byte, seed uint32, offset int64) uint32 {
	var place [12]byte
	binary.LittleEndian.PutUint64(place[:], uint64(offset))
	copy(place[8:], b[:4])
	crc := crc32.Update(seed, castagnoli, place[:])
	return crc32.Update(crc, castagnoli, b[8:frameHeader+int(binary.LittleEndian.Uint32(b))])
}

// frame is a decoded frame.
type frame struct {
	revision int64
	at       time.Time
	body     []byte
	size     int64 // in the segment; its padding may be missing
}

// readFrame decodes the frame at an offset of a segment. If all that follows in the segment is zero, size is 0.
func readFrame(segment []byte, seed uint32, offset int64) (frame, error) {
	b := segment[offset:]
	if len(b) < frameHeader {
		if allZero(b) {
			return frame{}, nil
		}
		return frame{}, errIncomplete
	}
	length := int64(binary.LittleEndian.Uint32(b))
	if length == 0 {
		if allZero(b) {
			return frame{}, nil
		}
		return frame{}, errMalformed
	}
	if length > int64(len(b))-frameHeader {
		return frame{}, errIncomplete
	}
	if checksum(b, seed, offset) != binary.LittleEndian.Uint32(b[4:]) {
		return frame{}, errChecksum
	}
	return frame{
		revision: int64(binary.LittleEndian.Uint64(b[8:])),
		at:       time.Unix(0, int64(binary.LittleEndian.Uint64(b[16:]))),
		body:     b[frameHeader : frameHeader+length],
		size:     (frameHeader + length + frameAlign - 1) / frameAlign * frameAlign,
	}, nil
}

func allZero(b []byte) bool {
	for len(b) >= 8 {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// entry is a decoded entry: a transaction's events, without revisions and previous records, or a compaction.
type entry struct {
	events  []store.Event
	compact int64 // 0 for a transaction
}

// arena allocates the keys and values of many records in blocks, which saves allocations. A live record keeps at most one block alive.
type arena struct{ free []byte }

const arenaBlock = 32 << 10

func (a *arena) copy(b []byte) []byte {
	n := len(b)
	if n > arenaBlock/8 {
		return append(make([]byte, 0, n), b...)
	}
	if n > len(a.free) {
		a.free = make([]byte, arenaBlock)
	}
	c := a.free[:n:n]
	a.free = a.free[n:]
	copy(c, b)
	return c
}

// decoder decodes a body.
type decoder struct {
	rest   []byte
	arena  *arena
	events []store.Event // of the last entry
	err    error
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.err = errMalformed
		d.rest = nil
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) byte() byte {
	if len(d.rest) == 0 {
		d.err = errMalformed
		return 0
	}
	c := d.rest[0]
	d.rest = d.rest[1:]
	return c
}

// bytes returns a length and bytes, without a copy.
func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.rest)) {
		d.err = errMalformed
		d.rest = nil
		return nil
	}
	b := d.rest[:n:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) key() string {
	k := d.bytes()
	if len(k) == 0 && d.err == nil {
		d.err = errMalformed
	}
	return string(k)
}

func (d *decoder) fixed() int64 {
	if len(d.rest) < 8 {
		d.err = errMalformed
		d.rest = nil
		return 0
	}
	v := binary.LittleEndian.Uint64(d.rest)
	d.rest = d.rest[8:]
	return int64(v)
}

// entry decodes the next entry. Its slice is valid until the next call; the records and their bytes are copies.
func (d *decoder) entry() (entry, error) {
	switch d.byte() {
	case entryCompact:
		e := entry{compact: int64(d.uvarint())}
		if d.err == nil && e.compact <= 0 {
			d.err = errMalformed
		}
		return e, d.err
	case entryTransaction:
		n := d.uvarint()
		if d.err == nil && (n == 0 || n > uint64(len(d.rest))) {
			d.err = errMalformed
		}
		if d.err != nil {
			return entry{}, d.err
		}
		d.events = d.events[:0]
		for range n {
			d.events = append(d.events, d.change())
			if d.err != nil {
				return entry{}, d.err
			}
		}
		return entry{events: d.events}, nil
	default:
		return entry{}, errMalformed
	}
}

func (d *decoder) change() store.Event {
	kind := d.byte()
	e := store.Event{Key: d.key()}
	switch kind {
	case changeDelete:
		return e
	case changePut, changeExpiring:
		e.Record = &store.Record{Key: e.Key}
		if kind == changeExpiring {
			e.Record.Expires = time.Unix(0, d.fixed())
		}
		e.Record.Value = d.arena.copy(d.bytes())
	default:
		d.err = errMalformed
	}
	return e
}
