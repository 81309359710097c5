// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"encoding/json"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// PieceBytes is [CachedObject.Bytes] for a piece of a list that is kept itself. The encoding is kept the second time.
func (f *CachedObject) PieceBytes(version int, m Media) ([]byte, error) {
	return f.again(&f.pieced, version, m)
}

// AnswerBytes is [CachedObject.Bytes] for the answer to one request. The encoding is kept if watches need it too, and else the second time:
// a hundred thousand new objects are answered with and hardly read again.
func (f *CachedObject) AnswerBytes(version int, m Media) ([]byte, error) {
	if f.Kind.Feed.Encoders[m].Load() > 0 {
		return f.Bytes(version, m)
	}
	return f.again(&f.answered, version, m)
}

// AppendAnswer appends what [CachedObject.AnswerBytes] returns for JSON to dst.
func (f *CachedObject) AppendAnswer(dst []byte, version int) ([]byte, error) {
	if f.Kind.Feed.Encoders[JSON].Load() > 0 || f.kept(version, JSON) || f.answered.Swap(true) {
		raw, err := f.Bytes(version, JSON)
		return append(dst, raw...), err
	}
	obj, err := f.Kind.Versioned(version, f.Hub)
	if err != nil {
		return dst, err
	}
	var v any = obj
	if u, ok := obj.(*unstructured.Unstructured); ok {
		v = u.Object
	}
	out := appended(dst)
	if err := json.NewEncoder(&out).Encode(v); err != nil {
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

// kept reports whether an encoding is kept.
func (f *CachedObject) kept(version int, m Media) bool {
	return f.encodings[version*int(mediaCount)+int(m)].Load() != nil
}

// again returns an encoding that is kept if before is set, which it then is.
func (f *CachedObject) again(before *atomic.Bool, version int, m Media) ([]byte, error) {
	if f.kept(version, m) || before.Swap(true) {
		return f.Bytes(version, m)
	}
	return f.encode(version, m)
}
