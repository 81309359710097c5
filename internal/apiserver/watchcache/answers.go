// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
)

// PieceBytes is [CachedObject.Bytes] for a piece of a list that is kept itself. The encoding is kept the second time.
func (f *CachedObject) PieceBytes(version int, m Media) ([]byte, error) {
	if f.again(&f.pieced, version, m) {
		return f.Bytes(version, m)
	}
	return f.encode(version, m)
}

// AnswerBytes is [CachedObject.Bytes] for the answer to one request. The encoding is kept if watches need it too, and else the second time:
// a hundred thousand new objects are answered with and hardly read again.
func (f *CachedObject) AnswerBytes(version int, m Media) ([]byte, error) {
	if f.keepsAnswer(version, m) {
		return f.Bytes(version, m)
	}
	return f.encode(version, m)
}

// AppendAnswer appends what [CachedObject.AnswerBytes] returns for JSON to dst. It encodes straight into dst what is not kept.
func (f *CachedObject) AppendAnswer(dst []byte, version int) ([]byte, error) {
	if f.keepsAnswer(version, JSON) {
		raw, err := f.Bytes(version, JSON)
		return append(dst, raw...), err
	}
	obj, err := f.Kind.Versioned(version, f.Hub)
	if err != nil {
		return dst, err
	}
	out := appended(dst)
	if err := json.NewEncoder(&out).Encode(content(obj)); err != nil {
		return dst, fmt.Errorf("encode %T: %w", obj, err)
	}
	return out[:len(out)-1], nil // the encoder ends with a line break
}

// appended is what was written, after what was there before.
type appended []byte

// Write implements [io.Writer].
func (a *appended) Write(p []byte) (int, error) {
	*a = append(*a, p...)
	return len(p), nil
}

// keepsAnswer reports whether the encoding of an answer is kept.
func (f *CachedObject) keepsAnswer(version int, m Media) bool {
	return f.Kind.Feed.Encoders[m].Load() > 0 || f.again(&f.answered, version, m)
}

// again reports whether an encoding is kept already, or before is set, which it then is.
func (f *CachedObject) again(before *atomic.Bool, version int, m Media) bool {
	return f.encodings[version*int(mediaCount)+int(m)].Load() != nil || before.Swap(true)
}
