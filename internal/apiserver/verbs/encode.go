// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
)

// whole is an object's bytes as the body of an answer, from its bare form.
func whole(f *watchcache.CachedObject, version int, media string) ([]byte, error) {
	return appendWhole(nil, f, version, media)
}

// appendWhole appends what whole returns to dst.
func appendWhole(dst []byte, f *watchcache.CachedObject, version int, media string) ([]byte, error) {
	k := f.Kind
	gvk := k.GroupVersionKind(k.Versions[version].Name)
	apiVersion := gvk.GroupVersion().String()
	switch media {
	case mediaProtobuf:
		raw, err := f.AnswerBytes(version, watchcache.Protobuf)
		if err != nil {
			return nil, err
		}
		dst = slices.Grow(dst, envelopeLen(apiVersion, gvk.Kind, len(raw)))
		return appendEnvelopeEnd(append(appendEnvelope(dst, apiVersion, gvk.Kind, len(raw)), raw...)), nil
	case mediaCBOR:
		raw, err := f.AnswerBytes(version, watchcache.CBOR)
		if err != nil {
			return nil, err
		}
		return appendCBOR(slices.Grow(dst, len(raw)+len(gvk.Kind)+len(apiVersion)+32), k.Unstructured, apiVersion, gvk.Kind, raw)
	}
	if !k.Unstructured {
		dst = appendNames(dst, apiVersion, gvk.Kind)
	}
	at := len(dst)
	dst, err := f.AppendAnswer(dst, version)
	if err != nil {
		return nil, err
	}
	if k.Unstructured {
		return append(dst, '\n'), nil
	}
	if len(dst)-at > 2 {
		dst[at] = ',' // in place of the brace
	} else {
		dst = append(dst[:at], '}')
	}
	return append(dst, '\n'), nil
}

// appendNames appends the beginning of a JSON object: the kind and version that a typed object's bare form lacks.
func appendNames(b []byte, apiVersion, kind string) []byte {
	b = append(b, `{"kind":"`...)
	b = append(b, kind...)
	b = append(b, `","apiVersion":"`...)
	b = append(b, apiVersion...)
	return append(b, '"')
}

// wholes are for the bodies of answers.
var wholes = sync.Pool{New: func() any { return new([]byte) }}

// envelope is a protobuf message as a body: the magic bytes and a runtime.Unknown.
func envelope(apiVersion, kind string, raw []byte) []byte {
	b := appendEnvelope(make([]byte, 0, envelopeLen(apiVersion, kind, len(raw))), apiVersion, kind, len(raw))
	return appendEnvelopeEnd(append(b, raw...))
}

// envelopeLen is the size of a message of that many bytes in its envelope.
func envelopeLen(apiVersion, kind string, size int) int {
	names := 2 + uvarintLen(len(apiVersion)) + len(apiVersion) + uvarintLen(len(kind)) + len(kind)
	return len(protobufMagic) + 1 + uvarintLen(names) + names + 1 + uvarintLen(size) + size + 4
}

// appendEnvelope appends what comes before the raw message, appendEnvelopeEnd what comes after it.
func appendEnvelope(b []byte, apiVersion, kind string, size int) []byte {
	b = append(b, protobufMagic...)
	b = append(b, 0x0a)
	b = binary.AppendUvarint(b, uint64(uvarintLen(len(apiVersion))+uvarintLen(len(kind))+2+len(apiVersion)+len(kind)))
	b = append(b, 0x0a)
	b = binary.AppendUvarint(b, uint64(len(apiVersion)))
	b = append(b, apiVersion...)
	b = append(b, 0x12)
	b = binary.AppendUvarint(b, uint64(len(kind)))
	b = append(b, kind...)
	b = append(b, 0x12)
	return binary.AppendUvarint(b, uint64(size))
}

func appendEnvelopeEnd(b []byte) []byte { return append(b, 0x1a, 0x00, 0x22, 0x00) }

func uvarintLen(n int) int {
	l := 1
	for n >= 0x80 {
		n >>= 7
		l++
	}
	return l
}
