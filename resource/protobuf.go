// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/json"
)

// protobufMagic begins every value in Kubernetes' protobuf envelope, in the store as on the wire.
var protobufMagic = []byte{'k', '8', 's', 0}

// envelopeEnd ends every value: the empty contentEncoding and contentType, which upstream's encoder writes too.
const envelopeEnd = "\x1a\x00\x22\x00"

// message is the interface of generated API types.
type message interface {
	Size() int
	MarshalToSizedBuffer(data []byte) (int, error)
	Unmarshal(data []byte) error
}

// ProtobufCodec stores hub objects of one kind in Kubernetes' protobuf envelope, byte for byte as kube-apiserver does.
// New makes the empty object that Decode fills in; its type must have a protobuf form. Decoded objects carry the kind.
func ProtobufCodec(gvk schema.GroupVersionKind, newObject func() Object) Codec {
	return ProtobufCodecOf(gvk, gvk.Version, newObject)
}

// ProtobufCodecOf is ProtobufCodec for a kind whose stored objects name another version, of the same protobuf form.
func ProtobufCodecOf(gvk schema.GroupVersionKind, stored string, newObject func() Object) Codec {
	apiVersion, kind := schema.GroupVersionKind{Group: gvk.Group, Version: stored, Kind: gvk.Kind}.ToAPIVersionAndKind()
	c := &protobufCodec{new: newObject, gvk: gvk, stored: stored}
	c.readBack.of = reflect.TypeOf(newObject())
	c.head = append(c.head, protobufMagic...)
	c.head = append(c.head, 0x0a)
	c.head = binary.AppendUvarint(c.head, uint64(1+uvarintLen(len(apiVersion))+len(apiVersion)+1+uvarintLen(len(kind))+len(kind)))
	c.head = append(c.head, 0x0a)
	c.head = binary.AppendUvarint(c.head, uint64(len(apiVersion)))
	c.head = append(c.head, apiVersion...)
	c.head = append(c.head, 0x12)
	c.head = binary.AppendUvarint(c.head, uint64(len(kind)))
	c.head = append(c.head, kind...)
	c.head = append(c.head, 0x12)
	return c
}

// protobufCodec has the envelope's beginning ready made: magic, type, and the tag of the raw field.
type protobufCodec struct {
	gvk      schema.GroupVersionKind
	stored   string // the version that the envelope names
	new      func() Object
	head     []byte
	readBack readBack
}

// Kind implements [KindCodec].
func (c *protobufCodec) Kind() schema.GroupVersionKind { return c.gvk }

// StoredGroupVersion implements [VersionCodec].
func (c *protobufCodec) StoredGroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: c.gvk.Group, Version: c.stored}
}

// Encode lays the message into an envelope with one allocation.
func (c *protobufCodec) Encode(obj Object) ([]byte, error) { return c.AppendEncode(nil, obj) }

// AppendEncode implements [Appender].
func (c *protobufCodec) AppendEncode(dst []byte, obj Object) ([]byte, error) {
	m, ok := obj.(message)
	if !ok {
		return dst, fmt.Errorf("encode %s: %T has no protobuf form", c.gvk.Kind, obj)
	}
	size := m.Size()
	out := append(slices.Grow(dst, len(c.head)+uvarintLen(size)+size+len(envelopeEnd)), c.head...)
	out = binary.AppendUvarint(out, uint64(size))
	start := len(out)
	out = out[:start+size]
	if _, err := m.MarshalToSizedBuffer(out[start:]); err != nil {
		return dst, fmt.Errorf("encode %s: %w", c.gvk.Kind, err)
	}
	return append(out, envelopeEnd...), nil
}

// Decode takes the message out of its envelope. An object that kube-apiserver stored as JSON, as it does with all kinds if told to and with
// those of some groups always, is read from that.
func (c *protobufCodec) Decode(data []byte) (Object, error) {
	if len(data) > 0 && data[0] == '{' {
		return c.decodeJSON(data)
	}
	raw, err := ProtobufPayload(data)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", c.gvk.Kind, err)
	}
	obj := c.new()
	m, ok := obj.(message)
	if !ok {
		return nil, fmt.Errorf("decode %s: %T has no protobuf form", c.gvk.Kind, obj)
	}
	if err := m.Unmarshal(raw); err != nil {
		return nil, fmt.Errorf("decode %s: %w", c.gvk.Kind, err)
	}
	obj.GetObjectKind().SetGroupVersionKind(c.gvk)
	return obj, nil
}

func (c *protobufCodec) decodeJSON(data []byte) (Object, error) {
	obj := c.new()
	if err := json.UnmarshalCaseSensitivePreserveInts(data, obj); err != nil {
		return nil, fmt.Errorf("decode %s: %w", c.gvk.Kind, err)
	}
	got := obj.GetObjectKind().GroupVersionKind()
	if got.GroupKind() != c.gvk.GroupKind() || got.Version != c.gvk.Version && got.Version != c.stored {
		return nil, fmt.Errorf("decode %s: it is stored as %v", c.gvk.Kind, got)
	}
	obj.GetObjectKind().SetGroupVersionKind(c.gvk)
	return obj, nil
}

// ProtobufPayload is the object's own message inside of an envelope, aliasing data.
func ProtobufPayload(data []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(data, protobufMagic)
	if !ok {
		return nil, errors.New("no protobuf envelope")
	}
	var raw []byte
	for len(rest) > 0 {
		tag, n := binary.Uvarint(rest)
		if n <= 0 || tag&7 != 2 {
			return nil, errors.New("protobuf envelope is malformed")
		}
		rest = rest[n:]
		size, n := binary.Uvarint(rest)
		if n <= 0 || size > uint64(len(rest)-n) {
			return nil, errors.New("protobuf envelope is cut short")
		}
		field := rest[n : n+int(size)]
		rest = rest[n+int(size):]
		if tag>>3 == 2 {
			raw = field
		}
	}
	return raw, nil
}

// uvarintLen is how many bytes n takes as a varint.
func uvarintLen(n int) int {
	l := 1
	for v := uint64(n); v >= 0x80; v >>= 7 {
		l++
	}
	return l
}
