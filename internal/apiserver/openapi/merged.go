// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

const definitionRef = "#/definitions/"

// mergedV2 returns the embedded v2 document with the paths and definitions of custom kinds added. It parses neither
// form: it inserts the new JSON before the closing braces of the old objects, and appends the new protobuf message to
// the old one, which is how protobuf merges messages.
func mergedV2(s *static, parts map[string]*part) *document {
	old := embedded(s.V2.File, s.V2.Hash)
	added := sync.OnceValues(func() (*addition, error) { return sum(parts) })
	made := sync.OnceValues(func() ([]byte, error) {
		b, err := unzip(old.json)
		if err != nil {
			return nil, err
		}
		more, err := added()
		if err != nil {
			return nil, err
		}
		out := make([]byte, 0, len(b)+len(more.paths)+len(more.definitions))
		from := 0
		for _, part := range []struct {
			end  int
			more []byte
		}{{s.Paths, more.paths}, {s.Definitions, more.definitions}} {
			if part.end < from || len(b) <= part.end || b[part.end] != '}' {
				return nil, errors.New("embedded v2 document does not suit its index")
			}
			out = append(out, b[from:part.end]...)
			if members := part.more[1 : len(part.more)-1]; len(members) > 0 {
				out = append(append(out, ','), members...)
			}
			from = part.end
		}
		out = append(out, b[from:]...)
		for _, name := range slices.Sorted(maps.Keys(more.changed)) {
			key := []byte(strconv.Quote(name) + ":")
			out = bytes.Replace(out, slices.Concat(key, more.changed[name].from), slices.Concat(key, more.changed[name].to), 1)
		}
		return deflate(out)
	})
	return &document{
		hash: sync.OnceValues(func() (string, error) {
			more, err := added()
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%X", sha512.Sum512(slices.Concat([]byte(s.V2.Hash), more.paths, more.definitions, more.changes()))), nil
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
			doc, err := openapi_v2.ParseDocument(slices.Concat([]byte(`{"swagger":"2.0","info":{"title":"Kubernetes","version":"v1"},"paths":`),
				more.paths, []byte(`,"definitions":`), append(join(bytes.TrimSuffix(bytes.Clone(more.definitions), []byte("}")), more.changes()), '}'),
				[]byte("}")))
			if err != nil {
				return nil, fmt.Errorf("parse definitions: %w", err)
			}
			part, err := proto.Marshal(&openapi_v2.Document{Paths: doc.Paths, Definitions: doc.Definitions})
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

// addition is what custom kinds add to the v2 document: JSON objects.
type addition struct {
	paths, definitions []byte
	changed            map[string]change // this server's own definitions, by name
}

// change is a definition in the document and its replacement.
type change struct{ from, to json.RawMessage }

// changes returns the changed definitions as an object.
func (a *addition) changes() []byte {
	out := []byte("{")
	for _, name := range slices.Sorted(maps.Keys(a.changed)) {
		out = join(out, slices.Concat([]byte("{"+strconv.Quote(name)+":"), a.changed[name].to, []byte("}")))
	}
	return append(out, '}')
}

// sum combines the additions of all parts, sorted by path.
func sum(parts map[string]*part) (*addition, error) {
	all := &addition{paths: []byte("{"), definitions: []byte("{")}
	for _, p := range slices.Sorted(maps.Keys(parts)) {
		a, err := parts[p].v2()
		if err != nil {
			return nil, err
		}
		all.paths, all.definitions = join(all.paths, a.paths), join(all.definitions, a.definitions)
		if a.changed != nil { // only by other servers
			all.changed = a.changed
		}
	}
	all.paths, all.definitions = append(all.paths, '}'), append(all.definitions, '}')
	return all, nil
}

// join appends the members of an object to an unclosed object.
func join(open, object []byte) []byte {
	members := object[1 : len(object)-1]
	if len(members) > 0 && len(open) > 1 {
		open = append(open, ',')
	}
	return append(open, members...)
}

// additions returns the additions of the kinds of one group version.
func additions(s *static, version string, kinds []*resource.Descriptor) (*addition, error) {
	models, paths := map[string]any{}, map[string]any{}
	for _, d := range kinds {
		object, list := crd.SchemaV2(d, version), listSchema(d, version, definitionRef)
		if fields := crd.SelectableFields(d, version); fields != nil {
			object.AddExtension("x-kubernetes-selectable-fields", fields)
			list["x-kubernetes-selectable-fields"] = fields
		}
		models[crd.ModelName(d.Group, version, d.Kind)], models[crd.ModelName(d.Group, version, d.ListKind)] = object, list
		routes(d, version, paths)
	}
	paths, err := asV2(paths, s.Parameters)
	if err != nil {
		return nil, err
	}
	a := &addition{}
	if a.paths, err = json.Marshal(paths); err != nil {
		return nil, fmt.Errorf("encode paths: %w", err)
	}
	if a.definitions, err = json.Marshal(models); err != nil {
		return nil, fmt.Errorf("encode definitions: %w", err)
	}
	return a, nil
}
