// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"slices"
	"sync/atomic"
)

const (
	alikeSlots = 1 << 8
	largePart  = 2 << 10 // bytes of a part that few objects have
)

// alike has parts of objects that were seen lately, more than once. Like [fieldSets] it is bounded: a part takes the place of another with
// the same slot. It is safe for concurrent use. No one may change a part that was given to it.
type alike[T any] struct {
	slots [alikeSlots]struct {
		last atomic.Uint64 // hash of the last part that was not found
		part atomic.Pointer[T]
	}
}

// find returns a part that was seen before and for which equal is true, or nil; again reports whether it was seen before, and is to be
// kept. The hashes of equal parts are equal. A part that is seen for the first time takes no memory: most are seen never again, or a
// thousand times.
func (a *alike[T]) find(hash uint64, equal func(known *T) bool) (known *T, again bool) {
	slot := &a.slots[hash%alikeSlots]
	if known := slot.part.Load(); known != nil && equal(known) {
		return known, true
	}
	return nil, slot.last.Swap(hash) == hash
}

func (a *alike[T]) keep(hash uint64, part *T) { a.slots[hash%alikeSlots].part.Store(part) }

// same returns the part that [alike.find] finds, or part itself.
func (a *alike[T]) same(hash uint64, part T, equal func(known *T) bool) T {
	known, again := a.find(hash, equal)
	if known != nil {
		return *known
	}
	if again {
		kept := part
		a.keep(hash, &kept)
	}
	return part
}

// encoded is a part with its encoding, by which it is compared.
type encoded[T any] struct {
	raw  string
	part T
}

// message is what the protobuf types of Kubernetes have.
type message[T any] interface {
	*T
	Size() int
	MarshalToSizedBuffer(b []byte) (int, error)
}

// sameList returns the list that is shared by objects with the same elements.
func sameList[T any, M message[T]](s *podParts, a *alike[encoded[[]T]], list []T) []T {
	if len(list) == 0 {
		return list
	}
	// Without room at its end: who appends to it by mistake would change it for others.
	return sameEncoded(s, a, slices.Clip(list), func(b []byte) ([]byte, bool) {
		for i := range list {
			var ok bool
			if b, ok = appendMessage(b, M(&list[i])); !ok {
				return b, false
			}
		}
		return b, true
	})
}

// sameMessage returns the message that is shared by objects with an equal one.
func sameMessage[T any, M message[T]](s *podParts, a *alike[encoded[*T]], m *T) *T {
	if m == nil {
		return nil
	}
	return sameEncoded(s, a, m, func(b []byte) ([]byte, bool) { return appendMessage(b, M(m)) })
}

func sameEncoded[T any](s *podParts, a *alike[encoded[T]], part T, encode func([]byte) ([]byte, bool)) T {
	buf, ok := s.buffers.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
		*buf = make([]byte, 0, largePart)
	}
	defer s.buffers.Put(buf)
	raw, ok := encode((*buf)[:0])
	if !ok {
		return part
	}
	hash := maphash.Bytes(s.seed, raw)
	known, again := a.find(hash, func(known *encoded[T]) bool { return known.raw == string(raw) })
	if known != nil {
		return known.part
	}
	if again {
		a.keep(hash, &encoded[T]{string(raw), part})
	}
	return part
}

// appendMessage appends a message after its length. False: it is too large, or has no encoding.
func appendMessage[T any, M message[T]](b []byte, m M) ([]byte, bool) {
	n := m.Size()
	if len(b)+n+binary.MaxVarintLen32 > largePart {
		return b, false
	}
	b = binary.AppendUvarint(b, uint64(n))
	b = slices.Grow(b, n)[:len(b)+n]
	written, err := m.MarshalToSizedBuffer(b[len(b)-n:])
	return b, err == nil && written == n
}

// sameTexts returns the map that is shared by objects with the same keys and values.
func sameTexts(s *podParts, a *alike[map[string]string], texts map[string]string) map[string]string {
	if len(texts) == 0 {
		return texts
	}
	hash, size := uint64(0), 0
	for k, v := range texts {
		hash += maphash.String(s.seed, k) ^ 31*maphash.String(s.seed, v)
		size += len(k) + len(v)
	}
	if size > largePart {
		return texts
	}
	return a.same(hash, texts, func(known *map[string]string) bool { return maps.Equal(*known, texts) })
}

// sameValue has a text or number take the place of its like.
func sameValue[T comparable](s *podParts, a *alike[T], v T) T {
	return a.same(maphash.Comparable(s.seed, v), v, func(known *T) bool { return *known == v })
}

// samePointer returns a pointer that is shared by objects with an equal value.
func samePointer[T comparable](s *podParts, a *alike[*T], p *T) *T {
	if p == nil {
		return nil
	}
	return a.same(maphash.Comparable(s.seed, *p), p, func(known **T) bool { return **known == *p })
}
