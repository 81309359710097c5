// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package lint validates CustomResourceDefinitions offline, with the server's own rules.
//
// [Read] finds the definitions in a file. [Check] reports what a server would reject or warn about, and the estimated
// cost of the CEL rules. [Compare] reports which users of the older definition a newer one would break.
package lint

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
)

// Level is the severity of a finding.
type Level string

// The levels.
const (
	Error    Level = "error"    // the server would reject it
	Breaking Level = "breaking" // it would break clients or stored objects
	Warning  Level = "warning"  // the server would warn about it
	Note     Level = "note"     // worth knowing
)

// Finding is one result.
type Finding struct {
	Level   Level  `json:"level"`
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
}

// String formats the finding as one line.
func (f Finding) String() string {
	if f.Path == "" {
		return fmt.Sprintf("%s: %s", f.Level, f.Message)
	}
	return fmt.Sprintf("%s: %s: %s", f.Level, f.Path, f.Message)
}

// maxDocument is the maximum size of a document, equal to that of a request.
const maxDocument = 3 << 20

// Read returns the definitions among the YAML or JSON documents of a file, in order. It skips other kinds. An unknown
// or repeated field is an error, as is a definition of another version than apiextensions.k8s.io/v1.
func Read(r io.Reader) ([]*v1.CustomResourceDefinition, error) {
	var out []*v1.CustomResourceDefinition
	docs := utilyaml.NewYAMLReader(bufio.NewReader(r))
	for n := 1; ; n++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read document %d: %w", n, err)
		}
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		if len(doc) > maxDocument {
			return nil, fmt.Errorf("read document %d: it is larger than %d bytes", n, maxDocument)
		}
		var is struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(doc, &is); err != nil {
			return nil, fmt.Errorf("read document %d: %w", n, err)
		}
		if is.Kind != "CustomResourceDefinition" {
			continue
		}
		if is.APIVersion != v1.SchemeGroupVersion.String() {
			return nil, fmt.Errorf("read document %d: %s of version %s, want %s", n, is.Kind, is.APIVersion, v1.SchemeGroupVersion)
		}
		def := &v1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(doc, def); err != nil {
			return nil, fmt.Errorf("read document %d: %w", n, err)
		}
		out = append(out, def)
	}
}

// Check returns the errors and warnings of the server for the creation of a definition, and the cost of its rules. It
// does not change the definition.
func Check(ctx context.Context, def *v1.CustomResourceDefinition) []Finding {
	kind := crd.Definitions()
	d := def.DeepCopy()
	kind.Hub().Default(d)
	kind.Strategy.PrepareCreate(ctx, d)
	out := refused(kind.Strategy.Validate(ctx, d))
	if len(out) > 0 {
		return out
	}
	if _, err := crd.Compile(d, nil); err != nil {
		return append(out, Finding{Error, "", err.Error()})
	}
	for _, w := range kind.Strategy.Warn(ctx, d, nil) {
		out = append(out, Finding{Warning, "", w})
	}
	return append(out, costs(d)...)
}

// refused converts validation errors to findings.
func refused(errs field.ErrorList) []Finding {
	var out []Finding
	for _, e := range errs {
		out = append(out, Finding{Error, e.Field, strings.TrimSpace(e.ErrorBody())})
	}
	return out
}
