// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"sync"
	"weak"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/mortise-dev/mortise/internal/apiserver/ondemand"
)

// compiledBytes is the default limit of the memory for the compiled forms of all schemas.
const compiledBytes = 24 << 20

// Memory of the compiled forms of a schema, as measured: a multiple of its JSON, and a constant for each CEL rule, whose program has a
// table of all functions.
const (
	structuralTimes = 8
	validatorTimes  = 9
	ruleCost        = 130 << 10
)

// schemas holds each distinct schema once: versions with equal schemas share the compiled form, even of different definitions.
type schemas struct {
	pool    *ondemand.Pool
	writers sync.Pool // of *flate.Writer, which are large

	mu sync.Mutex
	by map[digest]weak.Pointer[shape]
}

func newSchemas(max int64) *schemas {
	if max == 0 {
		max = compiledBytes
	}
	return &schemas{pool: ondemand.NewPool(max), by: map[digest]weak.Pointer[shape]{}}
}

// shape is one schema. An idle one is little more than its bytes, compressed; the rest is made when an object is first read
// or written, and again if it had to make room meanwhile.
type shape struct {
	fields digest // of the JSON
	size   int64  // of the JSON
	packed []byte // the JSON of a CustomResourceValidation, deflated
	// keep: unknown fields of the whole object are kept, and the schema need not be structural.
	keep   bool
	status bool // status is validated on its own, too
	none   bool // there is no structural schema
	embeds bool // there are whole objects in it
	// unknown: fields that it does not name are kept at its root.
	unknown bool

	structural *ondemand.Value[*structuralschema.Structural]
	validators *ondemand.Value[*validators]
}

type validators struct {
	schema, status validation.SchemaValidator
	cel            *cel.Validator // nil: no rules
}

// shape finds or makes the shape of a schema, which it checks by making the structural schema once.
func (s *schemas) shape(schema *v1.CustomResourceValidation, keep, status bool) (*shape, error) {
	raw, err := json.Marshal(schema)
	if err != nil {
		return nil, fmt.Errorf("encode schema: %w", err)
	}
	fields := sha256.Sum256(raw)
	id := digest(sha256.Sum256(fmt.Appendf(fields[:], "%t %t", keep, status)))
	s.mu.Lock()
	known := s.by[id].Value()
	s.mu.Unlock()
	if known != nil {
		return known, nil
	}
	x := &shape{fields: fields, keep: keep, status: status}
	if x.packed, err = s.pack(raw); err != nil {
		return nil, err
	}
	once, err := makeStructural(schema, keep)
	if err != nil {
		return nil, err
	}
	var rules int64
	x.none = once == nil
	if once != nil {
		x.unknown = once.XPreserveUnknownFields
		visitor := structuralschema.Visitor{Structural: func(s *structuralschema.Structural) bool {
			x.embeds = x.embeds || s.XEmbeddedResource
			rules += int64(len(s.XValidations))
			return false
		}}
		visitor.Visit(once)
	}
	x.size = int64(len(raw))
	x.structural = ondemand.New(s.pool, x.size*structuralTimes, x.fresh)
	x.validators = ondemand.New(s.pool, x.size*validatorTimes+rules*ruleCost, x.newValidators)
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.by[id].Value(); other != nil {
		return other, nil
	}
	s.by[id] = weak.Make(x)
	runtime.AddCleanup(x, s.forget, id)
	return x, nil
}

// sameFields reports whether two shapes know the same fields.
func (x *shape) sameFields(other *shape) bool {
	return x.fields == other.fields && x.keep == other.keep
}

// forget takes out a schema that no definition has any more.
func (s *schemas) forget(id digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by[id].Value() == nil {
		delete(s.by, id)
	}
}

func (s *schemas) pack(raw []byte) ([]byte, error) {
	var out bytes.Buffer
	w, ok := s.writers.Get().(*flate.Writer)
	if !ok {
		var err error
		if w, err = flate.NewWriter(&out, flate.BestSpeed); err != nil {
			return nil, fmt.Errorf("compress schema: %w", err)
		}
	}
	defer s.writers.Put(w)
	w.Reset(&out)
	if _, err := w.Write(raw); err != nil {
		return nil, fmt.Errorf("compress schema: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress schema: %w", err)
	}
	return bytes.Clone(out.Bytes()), nil
}

func (x *shape) unpack() (*v1.CustomResourceValidation, error) {
	raw, err := io.ReadAll(flate.NewReader(bytes.NewReader(x.packed)))
	if err != nil {
		return nil, fmt.Errorf("read schema: %w", err)
	}
	var schema *v1.CustomResourceValidation
	if err := json.Unmarshal(raw, &schema); err != nil {
		return nil, fmt.Errorf("decode schema: %w", err)
	}
	return schema, nil
}

// fresh is a structural schema that is the caller's own; nil if there is none.
func (x *shape) fresh() (*structuralschema.Structural, error) {
	if x.none {
		return nil, nil
	}
	schema, err := x.unpack()
	if err != nil {
		return nil, err
	}
	return makeStructural(schema, x.keep)
}

// makeStructural shares nothing with schema.
func makeStructural(schema *v1.CustomResourceValidation, keep bool) (*structuralschema.Structural, error) {
	props, err := internalSchema(schema)
	if err != nil || props == nil {
		return nil, err
	}
	s, err := structuralschema.NewStructural(props)
	if keep {
		return s.DeepCopy(), nil // whatever there is of it
	}
	if err != nil {
		return nil, fmt.Errorf("make structural schema: %w", err)
	}
	s = s.DeepCopy() // it shares defaults with props
	if err := defaulting.PruneDefaults(s); err != nil {
		return nil, fmt.Errorf("prune defaults: %w", err)
	}
	return s, nil
}

// internalSchema converts a version's schema to the form that apiextensions' libraries work on; nil if there is none.
func internalSchema(schema *v1.CustomResourceValidation) (*apiextensions.JSONSchemaProps, error) {
	if schema == nil || schema.OpenAPIV3Schema == nil {
		return nil, nil
	}
	var out apiextensions.CustomResourceValidation
	if err := v1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(schema, &out, nil); err != nil {
		return nil, fmt.Errorf("convert schema: %w", err)
	}
	return out.OpenAPIV3Schema, nil
}

func (x *shape) newValidators() (*validators, error) {
	schema, err := x.unpack()
	if err != nil {
		return nil, err
	}
	props, err := internalSchema(schema)
	if err != nil {
		return nil, err
	}
	out := &validators{}
	if out.schema, _, err = validation.NewSchemaValidator(props); err != nil {
		return nil, fmt.Errorf("make schema validator: %w", err)
	}
	if props != nil && x.status {
		if status, ok := props.Properties["status"]; ok {
			if out.status, _, err = validation.NewSchemaValidator(&status); err != nil {
				return nil, fmt.Errorf("make status validator: %w", err)
			}
		}
	}
	if structural, err := x.structural.Get(); err != nil {
		return nil, err
	} else if structural != nil {
		out.cel = cel.NewValidator(structural, true, celconfig.PerCallLimit)
	}
	return out, nil
}
