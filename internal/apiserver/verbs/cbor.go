// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"encoding/binary"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
)

// cborMagic begins every CBOR answer: the tag "self-described CBOR" of RFC 8949, 3.4.6. Kubernetes writes strings and map
// keys as byte strings.
const cborMagic = "\xd9\xd9\xf7"

// Major types of CBOR items, in the upper three bits of an item's first byte.
const (
	cborBytes = 2 << 5
	cborArray = 4 << 5
	cborMap   = 5 << 5
)

// appendCBORHead appends the head of an item: its type, and its length or count.
func appendCBORHead(b []byte, major byte, n int) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n < 1<<8:
		return append(b, major|24, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
}

func appendCBORString(b []byte, s string) []byte {
	return append(appendCBORHead(b, cborBytes, len(s)), s...)
}

// cborMapHead reads the head of a map of known size.
func cborMapHead(raw []byte) (entries, size int, err error) {
	if len(raw) > 0 && raw[0]&^0x1f == cborMap {
		switch n := raw[0] & 0x1f; {
		case n < 24:
			return int(n), 1, nil
		case n == 24 && len(raw) > 1:
			return int(raw[1]), 2, nil
		case n == 25 && len(raw) > 2:
			return int(binary.BigEndian.Uint16(raw[1:])), 3, nil
		}
	}
	return 0, 0, fmt.Errorf("encode object as CBOR: its form is no map")
}

// appendCBOR appends a whole answer made from an object's bare form, to which a typed object's kind and version are added.
func appendCBOR(b []byte, free bool, apiVersion, kind string, raw []byte) ([]byte, error) {
	b = append(b, cborMagic...)
	if free {
		return append(b, raw...), nil
	}
	entries, size, err := cborMapHead(raw)
	if err != nil {
		return nil, err
	}
	b = appendCBORHead(b, cborMap, entries+2)
	b = appendCBORString(appendCBORString(b, "kind"), kind)
	b = appendCBORString(appendCBORString(b, "apiVersion"), apiVersion)
	return append(b, raw[size:]...), nil
}

// encodeCBOR is a value that has no kept bytes as a whole answer.
func encodeCBOR(v any) ([]byte, error) {
	if u, ok := v.(*unstructured.Unstructured); ok {
		v = u.Object
	}
	raw, err := cbor.Marshal(v)
	if err != nil {
		return nil, err
	}
	return append([]byte(cborMagic), raw...), nil
}

// appendCBOREvent appends the beginning of a watch event, after which its object comes as a whole answer.
func appendCBOREvent(b []byte, what string) []byte {
	b = appendCBORHead(append(b, cborMagic...), cborMap, 2)
	b = appendCBORString(appendCBORString(b, "type"), what)
	return appendCBORString(b, "object")
}

// cborList writes a list, spliced from the bytes of its items.
func (q *req) cborList(w io.Writer, l *registry.Found) error {
	var meta any = l.Meta
	if q.kind.Unstructured {
		meta = customListMeta(l.Meta)
	}
	m, err := cbor.Marshal(meta)
	if err != nil {
		return fmt.Errorf("encode list metadata: %w", err)
	}
	head := appendCBORHead([]byte(cborMagic), cborMap, 4)
	head = appendCBORString(appendCBORString(head, "kind"), q.kind.ListKind)
	head = appendCBORString(appendCBORString(head, "apiVersion"), q.kind.GroupVersionKind(q.ver().Name).GroupVersion().String())
	head = append(appendCBORString(head, "metadata"), m...)
	head = appendCBORHead(appendCBORString(head, "items"), cborArray, len(l.Records))
	if _, err := w.Write(head); err != nil {
		return err
	}
	for _, r := range l.Records {
		b, err := q.item(r, watchcache.CBOR)
		if err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// customListMeta is the metadata of a list of custom resources, which always has the field continue.
func customListMeta(m metav1.ListMeta) map[string]any {
	u := map[string]any{"continue": m.Continue, "resourceVersion": m.ResourceVersion}
	if m.RemainingItemCount != nil {
		u["remainingItemCount"] = *m.RemainingItemCount
	}
	return u
}
