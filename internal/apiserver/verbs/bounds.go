// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"sync/atomic"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// maxCopied is how many bytes the copies of a JSON patch may add: one of few operations could double an object with each.
const maxCopied = 3 << 20

// boundCopies sets that bound. The library has it in a variable; one that the program set itself stands.
func boundCopies() { atomic.CompareAndSwapInt64(&jsonpatch.AccumulatedCopySizeLimit, 0, maxCopied) }

// maxDepth is the maximum depth of nesting of a protobuf body, the same as that of JSON. The generated decoders recurse without a limit:
// a CustomResourceDefinition of 3 MiB with a chain of "not" schemas would overflow the stack, and so end the process.
const maxDepth = 10_000

var errDepth = errors.New("exceeded max depth")

// checkDepth refuses protobuf that nests too deep. It does not know which fields are messages, and takes all for some that can
// be: each byte is looked at once, and what is too short to be deep not at all. It reads as leniently as the decoders do.
func checkDepth(data []byte) error {
	if len(data) < 2*maxDepth {
		return nil
	}
	open := [][]byte{data} // of each level what is still to be read
	for len(open) > 0 {
		top := &open[len(open)-1]
		inner, ok := nextField(top)
		if !ok {
			open = open[:len(open)-1]
			continue
		}
		if len(inner) == 0 {
			continue
		}
		if len(open) == maxDepth {
			return errDepth
		}
		open = append(open, inner)
	}
	return nil
}

// nextField takes a field off, and gives its bytes where it has a length; false at the end, or where no field is.
func nextField(rest *[]byte) (inner []byte, ok bool) {
	tag, ok := varint(rest)
	if !ok {
		return nil, false
	}
	size := uint64(0)
	switch tag & 7 {
	case 0:
		_, ok = varint(rest)
		return nil, ok
	case 1:
		size = 8
	case 5:
		size = 4
	case 2:
		if size, ok = varint(rest); !ok || size > uint64(len(*rest)) {
			return nil, false
		}
		inner = (*rest)[:size]
	case 3, 4: // a group's begin and end: what is between is read as if it were of this level
	default:
		return nil, false
	}
	if size > uint64(len(*rest)) {
		return nil, false
	}
	*rest = (*rest)[size:]
	return inner, true
}

func varint(rest *[]byte) (v uint64, ok bool) {
	for i, b := range *rest {
		if i == 10 {
			return 0, false
		}
		if v |= uint64(b&0x7f) << (7 * i); b < 0x80 {
			*rest = (*rest)[i+1:]
			return v, true
		}
	}
	return 0, false
}
