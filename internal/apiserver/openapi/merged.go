// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

const definitionRef = "#/definitions/"

// mergedV2 is the v2 document with the definitions of custom kinds added to the embedded one. Neither form is parsed for that: the JSON of the
// new definitions is put in before the closing brace of the old ones; of the protobuf form the new message is appended to
// the old one, which is how protobuf merges messages.
func mergedV2(s *static, kinds []*resource.Descriptor) *document {
	old := embedded(s.V2.File, s.V2.Hash)
	added := sync.OnceValues(func() ([]byte, error) { return definitions(kinds) })
	made := sync.OnceValues(func() ([]byte, error) {
		b, err := unzip(old.json)
		if err != nil {
			return nil, err
		}
		more, err := added()
		if err != nil {
			return nil, err
		}
		if len(b) <= s.Definitions || b[s.Definitions] != '}' {
			return nil, errors.New("embedded v2 document does not suit its index")
		}
		out := make([]byte, 0, len(b)+len(more))
		out = append(out, b[:s.Definitions]...)
		out = append(out, ',')
		out = append(out, more[1:len(more)-1]...)
		out = append(out, b[s.Definitions:]...)
		return deflate(out)
	})
	return &document{
		hash: sync.OnceValues(func() (string, error) {
			more, err := added()
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%X", sha512.Sum512(append([]byte(s.V2.Hash), more...))), nil
		}),
		json: made,
		protobuf: sync.OnceValues(func() ([]byte, error) {
			b, err := unzip(old.protobuf)
			if err != nil {
				return nil, err
			}
			more, err := added()
			if err != nil {
				return nil, err
			}
			doc, err := openapi_v2.ParseDocument([]byte(`{"swagger":"2.0","info":{"title":"Kubernetes","version":"v1"},"paths":{},"definitions":` + string(more) + `}`))
			if err != nil {
				return nil, fmt.Errorf("parse definitions: %w", err)
			}
			part, err := proto.Marshal(&openapi_v2.Document{Definitions: doc.Definitions})
			if err != nil {
				return nil, fmt.Errorf("encode definitions: %w", err)
			}
			return deflate(append(b, part...))
		}),
	}
}

func unzip(get func() ([]byte, error)) ([]byte, error) {
	z, err := get()
	if err != nil {
		return nil, err
	}
	return inflate(z)
}

// definitions is the JSON object of the v2 schemas of kinds.
func definitions(kinds []*resource.Descriptor) ([]byte, error) {
	out := map[string]any{}
	for _, d := range kinds {
		for _, v := range d.Versions {
			if v.Unserved {
				continue
			}
			out[crd.ModelName(d.Group, v.Name, d.Kind)] = crd.SchemaV2(d, v.Name)
			out[crd.ModelName(d.Group, v.Name, d.ListKind)] = listSchema(d, v.Name, definitionRef)
		}
	}
	b, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode definitions: %w", err)
	}
	return b, nil
}
