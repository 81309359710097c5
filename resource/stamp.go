// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import "encoding/binary"

// Tags of the fields on the way to an object's resource version, in Kubernetes' protobuf messages.
const (
	tagObjectMeta      = 1<<3 | 2 // of every object
	tagResourceVersion = 6<<3 | 2 // of ObjectMeta, after name, generateName, namespace, selfLink and uid
)

// Stamped is an object's stored protobuf message, without a resource version, and the position where it belongs. Clients
// get the stored message with the resource version put in, so a list need not decode its items.
type Stamped struct {
	payload         []byte
	revision        []byte
	meta, size, gap int // where ObjectMeta's content begins, how long it is, and where its resource version's length is
}

// Stamp finds the place of the resource version in a stored value; false for values that are no protobuf, or that have one.
func Stamp(value, revision []byte) (Stamped, bool) {
	payload, err := ProtobufPayload(value)
	if err != nil || len(payload) == 0 || payload[0] != tagObjectMeta || len(revision) > 0x7f {
		return Stamped{}, false
	}
	size, n := binary.Uvarint(payload[1:])
	meta := 1 + n
	if n <= 0 || size > uint64(len(payload)-meta) {
		return Stamped{}, false
	}
	s := Stamped{payload: payload, revision: revision, meta: meta, size: int(size)}
	end := meta + s.size
	for at := meta; at < end; {
		tag := payload[at]
		if tag&7 != 2 || tag > tagResourceVersion {
			return s, false
		}
		length, n := binary.Uvarint(payload[at+1 : end])
		if n <= 0 || length > uint64(end-at-1-n) {
			return s, false
		}
		if tag == tagResourceVersion {
			s.gap = at + 1
			return s, length == 0 && n == 1
		}
		at += 1 + n + int(length)
	}
	return s, false
}

// Size of the message with its resource version.
func (s *Stamped) Size() int {
	return 1 + uvarintLen(s.size+len(s.revision)) + s.size + len(s.revision) + len(s.payload) - s.meta - s.size
}

// Append appends the message with its resource version.
func (s *Stamped) Append(b []byte) []byte {
	b = binary.AppendUvarint(append(b, tagObjectMeta), uint64(s.size+len(s.revision)))
	b = append(b, s.payload[s.meta:s.gap]...)
	b = append(append(b, byte(len(s.revision))), s.revision...)
	return append(b, s.payload[s.gap+1:]...)
}
