// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/mortise-dev/mortise/store"
)

// A checkpoint is all keys as of one revision; a backup is the same, elsewhere:
//
//	0   8  "mortckp1"
//	8   8  revision
//	16  8  when it was written, nanoseconds since 1970
//	24  4  zero
//	28  4  crc32c of the above
//
// and blocks, each
//
//	0   4  length of the body
//	4   4  how many records it holds; 0 in the last block
//	8   4  crc32c of the block before (at first: of the header), the first eight bytes of this one, and the body
//	12     body: records: key, revision, created, expiry (0: none), value
//
// The body of the last block is the number of records and of their bytes. Numbers are uvarints. What follows the last
// block is not looked at.
const (
	checkpointMagic  = "mortckp1"
	checkpointHeader = 32
	blockHeader      = 12
	blockSize        = 256 << 10
	maxBlock         = 1 << 30
)

// checkpointWriter writes a checkpoint to a stream.
type checkpointWriter struct {
	w       io.Writer
	block   []byte
	inBlock uint32
	crc     uint32
	records uint64
	bytes   uint64
}

func newCheckpointWriter(w io.Writer, revision int64, at time.Time) (*checkpointWriter, error) {
	header := make([]byte, checkpointHeader)
	copy(header, checkpointMagic)
	binary.LittleEndian.PutUint64(header[8:], uint64(revision))
	binary.LittleEndian.PutUint64(header[16:], uint64(at.UnixNano()))
	crc := crc32.Checksum(header[:checkpointHeader-4], castagnoli)
	binary.LittleEndian.PutUint32(header[checkpointHeader-4:], crc)
	if _, err := w.Write(header); err != nil {
		return nil, fmt.Errorf("write checkpoint: %w", err)
	}
	return &checkpointWriter{w: w, crc: crc, block: make([]byte, blockHeader, blockSize+blockSize/4)}, nil
}

// add writes a record; they come in key order.
func (c *checkpointWriter) add(r *store.Record) error {
	b := appendString(c.block, r.Key)
	b = binary.AppendUvarint(b, uint64(r.Revision))
	b = binary.AppendUvarint(b, uint64(r.Created))
	var expiry uint64
	if !r.Expires.IsZero() {
		expiry = uint64(r.Expires.UnixNano())
	}
	b = binary.AppendUvarint(b, expiry)
	b = binary.AppendUvarint(b, uint64(len(r.Value)))
	c.block = append(b, r.Value...)
	c.inBlock++
	c.records++
	c.bytes += uint64(len(r.Key) + len(r.Value))
	if len(c.block) < blockSize {
		return nil
	}
	return c.flush()
}

func (c *checkpointWriter) flush() error {
	binary.LittleEndian.PutUint32(c.block, uint32(len(c.block)-blockHeader))
	binary.LittleEndian.PutUint32(c.block[4:], c.inBlock)
	c.crc = crc32.Update(c.crc, castagnoli, c.block[:8])
	c.crc = crc32.Update(c.crc, castagnoli, c.block[blockHeader:])
	binary.LittleEndian.PutUint32(c.block[8:], c.crc)
	if _, err := c.w.Write(c.block); err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	c.block, c.inBlock = c.block[:blockHeader], 0
	return nil
}

// finish writes the last block.
func (c *checkpointWriter) finish() error {
	if c.inBlock > 0 {
		if err := c.flush(); err != nil {
			return err
		}
	}
	c.block = binary.AppendUvarint(c.block, c.records)
	c.block = binary.AppendUvarint(c.block, c.bytes)
	return c.flush()
}

// checkpointReader reads a checkpoint from a stream, and knows how far it has come.
type checkpointReader struct {
	r        io.Reader
	revision int64
	at       time.Time
	offset   int64 // of the block that is being read
	crc      uint32
	block    []byte
	records  uint64
	bytes    uint64
	last     string
}

func newCheckpointReader(r io.Reader) (*checkpointReader, error) {
	header := make([]byte, checkpointHeader)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, ended(err)
	}
	if string(header[:8]) != checkpointMagic {
		return nil, fmt.Errorf("%w: not a checkpoint", store.ErrFormat)
	}
	crc := crc32.Checksum(header[:checkpointHeader-4], castagnoli)
	if crc != binary.LittleEndian.Uint32(header[checkpointHeader-4:]) {
		return nil, errChecksum
	}
	c := &checkpointReader{
		r: r, crc: crc, offset: checkpointHeader,
		revision: int64(binary.LittleEndian.Uint64(header[8:])),
		at:       time.Unix(0, int64(binary.LittleEndian.Uint64(header[16:]))),
	}
	if c.revision < 1 {
		return nil, errMalformed
	}
	return c, nil
}

func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errIncomplete
	}
	return err
}

// each calls f for every record of the next block. It returns io.EOF after the last block.
func (c *checkpointReader) each(arena *arena, f func(*store.Record) error) error {
	var header [blockHeader]byte
	if _, err := io.ReadFull(c.r, header[:]); err != nil {
		return ended(err)
	}
	length, count := binary.LittleEndian.Uint32(header[:]), binary.LittleEndian.Uint32(header[4:])
	if length > maxBlock {
		return errMalformed
	}
	if err := c.fill(int(length)); err != nil {
		return err
	}
	c.crc = crc32.Update(c.crc, castagnoli, header[:8])
	c.crc = crc32.Update(c.crc, castagnoli, c.block)
	if c.crc != binary.LittleEndian.Uint32(header[8:]) {
		return errChecksum
	}
	d := decoder{rest: c.block, arena: arena}
	if count == 0 {
		if records, bytes := d.uvarint(), d.uvarint(); d.err != nil || records != c.records || bytes != c.bytes {
			return errMalformed
		}
		return io.EOF
	}
	for range count {
		r, err := c.record(&d)
		if err != nil {
			return err
		}
		if err := f(r); err != nil {
			return err
		}
	}
	if len(d.rest) > 0 {
		return errMalformed
	}
	c.offset += blockHeader + int64(length)
	return nil
}

// fill reads the body of a block. It does not believe the length before the bytes are there.
func (c *checkpointReader) fill(length int) error {
	c.block = c.block[:0]
	for len(c.block) < length {
		n := min(length-len(c.block), 4*blockSize)
		at := len(c.block)
		if cap(c.block) < at+n {
			c.block = append(make([]byte, 0, 2*at+n), c.block...)
		}
		c.block = c.block[:at+n]
		if _, err := io.ReadFull(c.r, c.block[at:]); err != nil {
			return ended(err)
		}
	}
	return nil
}

func (c *checkpointReader) record(d *decoder) (*store.Record, error) {
	r := &store.Record{Key: d.key()}
	r.Revision, r.Created = int64(d.uvarint()), int64(d.uvarint())
	if expiry := d.uvarint(); expiry != 0 {
		r.Expires = time.Unix(0, int64(expiry))
	}
	r.Value = d.arena.copy(d.bytes())
	if d.err != nil {
		return nil, d.err
	}
	if r.Key <= c.last || r.Revision > c.revision || r.Created > r.Revision || r.Created < 1 {
		return nil, errMalformed
	}
	c.last = r.Key
	c.records++
	c.bytes += uint64(len(r.Key) + len(r.Value))
	return r, nil
}

// all calls f for every record, and has verified the whole checkpoint when it returns nil.
func (c *checkpointReader) all(f func(*store.Record) error) error {
	arena := &arena{}
	for {
		switch err := c.each(arena, f); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
