// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"sigs.k8s.io/yaml"

	types "github.com/mortise-dev/mortise/internal/apiserver/negotiate"
)

// message is a document's content: a Kubernetes type with a protobuf encoding.
type message interface {
	runtime.Object
	Marshal() ([]byte, error)
}

// document is one response and its encodings, each made at its first request.
type document struct {
	content message
	// etag returns the quoted ETag of an aggregated document, computed at its first request; nil for other documents.
	etag func() (string, error)

	json, protobuf, yaml, cbor func() ([]byte, error)

	zipped sync.Map // format → []byte: large encodings, compressed
}

// zipFrom is the size above which a document is compressed if the client accepts it.
const zipFrom = 128 << 10

// compress returns an encoding of the document compressed.
func (d *document) compress(f format, body []byte) ([]byte, error) {
	if z, ok := d.zipped.Load(f); ok {
		return z.([]byte), nil
	}
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("compress document: %w", err)
	}
	if _, err := z.Write(body); err != nil {
		return nil, fmt.Errorf("compress document: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("compress document: %w", err)
	}
	d.zipped.Store(f, out.Bytes())
	return out.Bytes(), nil
}

func newDocument(m message) *document {
	d := &document{content: m}
	d.json = sync.OnceValues(func() ([]byte, error) {
		b, err := json.Marshal(m)
		return append(b, '\n'), err
	})
	d.protobuf = sync.OnceValues(func() ([]byte, error) { return encodeProtobuf(m) })
	d.cbor = sync.OnceValues(func() ([]byte, error) {
		b, err := cbor.Marshal(m)
		return append([]byte("\xd9\xd9\xf7"), b...), err // self-described CBOR: RFC 8949, 3.4.6
	})
	d.yaml = sync.OnceValues(func() ([]byte, error) { return yaml.Marshal(m) })
	return d
}

// encode returns the document in a format of [negotiate].
func (d *document) encode(f format) ([]byte, error) {
	switch {
	case f.mediaType == mediaProtobuf:
		return d.protobuf()
	case f.mediaType == mediaYAML:
		return d.yaml()
	case f.mediaType == types.CBOR:
		return d.cbor()
	case f.pretty:
		b, err := d.json()
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		if err := json.Indent(&out, bytes.TrimSuffix(b, []byte("\n")), "", "  "); err != nil {
			return nil, fmt.Errorf("indent document: %w", err)
		}
		return out.Bytes(), nil
	}
	return d.json()
}

// encodeProtobuf wraps a message in Kubernetes' envelope: four bytes of magic, then the type and the message's bytes.
func encodeProtobuf(m message) ([]byte, error) {
	raw, err := m.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode protobuf: %w", err)
	}
	gvk := m.GetObjectKind().GroupVersionKind()
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind}, Raw: raw}
	b, err := u.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode protobuf: %w", err)
	}
	return append([]byte("k8s\x00"), b...), nil
}
