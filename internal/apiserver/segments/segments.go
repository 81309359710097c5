// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package segments makes gzip streams of pieces that were compressed before.
//
// A [Segment] is a piece of an answer, compressed on its own: it refers to nothing before it, and ends at a byte's boundary (RFC 1951,
// section 3.2.4). So segments can be joined in any order. A [Writer] joins them to one gzip member (RFC 1952), whose checksum follows
// from those of the segments. A [Cache] keeps segments, so that a list of objects that did not change compresses nothing anew.
package segments

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"sync"

	"github.com/klauspost/compress/flate"
)

// Segment is a compressed piece of a stream. It does not change.
type Segment struct {
	deflated []byte
	crc      uint32
	size     int
	items    []int32
}

// Size is the number of bytes before compression.
func (s *Segment) Size() int { return s.size }

// Items returns the size of each item of the segment before compression, in bytes; nil if [Compress] was not given them.
func (s *Segment) Items() []int32 { return s.items }

// cost is the memory that the segment takes, in bytes.
func (s *Segment) cost() int64 { return int64(cap(s.deflated)+4*cap(s.items)) + segmentCost }

const segmentCost = 200 // bytes of a segment in the cache besides its slices

// compressors are of the fastest level: it compresses lists of objects, which are alike, to some 4 %.
var compressors = sync.Pool{New: func() any {
	z, err := flate.NewWriter(io.Discard, flate.BestSpeed)
	if err != nil {
		panic(err) // the level exists
	}
	return z
}}

// Compress makes a segment of a piece that consists of items of the given numbers of bytes; nil: they are not kept. It keeps neither slice.
func Compress(piece []byte, items []int32) *Segment {
	var to bytes.Buffer
	to.Grow(len(piece)/8 + 64)
	z := compressors.Get().(*flate.Writer)
	z.Reset(&to)
	_, _ = z.Write(piece) // a buffer takes everything
	_ = z.Flush()
	z.Reset(io.Discard)
	compressors.Put(z)
	return &Segment{
		deflated: bytes.Clone(to.Bytes()), crc: crc32.ChecksumIEEE(piece), size: len(piece), items: append([]int32(nil), items...),
	}
}

// Stored makes a segment of a short piece that is not worth compressing. Like a compressed one it ends with an empty block.
func Stored(piece []byte) *Segment {
	s := &Segment{crc: crc32.ChecksumIEEE(piece), size: len(piece)}
	const overhead = 5 // bytes of a block besides its contents
	s.deflated = make([]byte, 0, len(piece)+overhead*(len(piece)/math.MaxUint16+2))
	for {
		n := min(len(piece), math.MaxUint16)
		s.deflated = append(s.deflated, 0)
		s.deflated = binary.LittleEndian.AppendUint16(s.deflated, uint16(n))
		s.deflated = binary.LittleEndian.AppendUint16(s.deflated, ^uint16(n))
		if n == 0 {
			return s
		}
		s.deflated = append(s.deflated, piece[:n]...)
		piece = piece[n:]
	}
}

// AppendMember appends the segment as a gzip member of its own. The empty block at its end makes decoders give out what they have: Go's
// would first wait for the next member.
func (s *Segment) AppendMember(to []byte) []byte {
	to = slices.Grow(to, len(header)+len(s.deflated)+len(last)+8)
	return appendEnd(append(append(to, header...), s.deflated...), s.crc, uint32(s.size))
}

var (
	header = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255} // no name, no time, the fastest level, an unknown system
	last   = []byte{1, 0, 0, 0xff, 0xff}                  // an empty block that is the last one
)

// appendEnd appends the end of a member: the last block, the checksum and the size of what it holds.
func appendEnd(to []byte, crc, size uint32) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(append(to, last...), crc), size)
}

// Writer writes one gzip member of segments. The zero value with W set is ready. An error of W is returned as it is.
type Writer struct {
	W     io.Writer
	begun bool
	crc   uint32
	size  uint32
}

// Add writes a segment.
func (w *Writer) Add(s *Segment) error {
	if err := w.begin(); err != nil {
		return err
	}
	w.crc = joined(w.crc, s.crc, s.size)
	w.size += uint32(s.size)
	_, err := w.W.Write(s.deflated)
	return err
}

// Close ends the member. It does not close W.
func (w *Writer) Close() error {
	if err := w.begin(); err != nil {
		return err
	}
	_, err := w.W.Write(appendEnd(nil, w.crc, w.size))
	return err
}

func (w *Writer) begin() error {
	if w.begun {
		return nil
	}
	w.begun = true
	_, err := w.W.Write(header)
	return err
}

// joined is the CRC-32 of two pieces one after the other, from that of each and the length of the second: the first one's remainder is
// multiplied by x to the number of the second one's bits, modulo the polynomial. Polynomials over GF(2) are kept with the highest power
// in the lowest bit, as in the checksum itself.
func joined(first, second uint32, length int) uint32 {
	power := uint32(1) << 31 // x to the 0
	for i, n := 3, uint64(length); n > 0; i, n = i+1, n>>1 {
		if n&1 != 0 {
			power = product(powers[i%len(powers)], power)
		}
	}
	return product(power, first) ^ second
}

// powers are x to the 2 to the i, modulo the polynomial. The order of x divides 2 to the 32 less 1, so they repeat.
var powers = func() (p [32]uint32) {
	p[0] = 1 << 30
	for i := range p[1:] {
		p[i+1] = product(p[i], p[i])
	}
	return p
}()

// product multiplies two polynomials modulo the one of the checksum.
func product(a, b uint32) uint32 {
	var p uint32
	for bit := uint32(1) << 31; bit != 0; bit >>= 1 {
		if a&bit != 0 {
			p ^= b
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= crc32.IEEE
		}
	}
	return p
}
