// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package componentconfig has the common parts of kubelet's and kube-proxy's configuration files for packages kubeletconfig
// and proxyconfig: reading files ([Read], [One]), defaults ([Value], [Pointer], [Duration]), feature gates ([CheckGates],
// [GateOn]), and the documentation of each [Field]'s effect.
//
// All of it is pure, except Read.
package componentconfig

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

// maxFile is the maximum size of a file, far above that of any real one.
const maxFile = 4 << 20

// Read returns the contents of a component's file.
func Read(component, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read %s configuration: %w", component, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s configuration: %w", component, err)
	case len(data) > maxFile:
		return nil, fmt.Errorf("read %s configuration %s: it is larger than %d bytes", component, path, maxFile)
	case len(data) == 0:
		return nil, fmt.Errorf("%s config file %q was empty", component, path) // upstream's words
	}
	return data, nil
}

// One returns an error if there are several documents in the data: the decoder would silently skip all but the first.
func One(data []byte) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for count := 0; ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read YAML: %w", err)
		}
		if len(bytes.TrimSpace(document)) > 0 {
			count++
		}
		if count > 1 {
			return errors.New("want one document, found more")
		}
	}
}

// Value sets the default of an empty field.
func Value[T comparable](field *T, fallback T) { *field = cmp.Or(*field, fallback) }

// Pointer sets the default of a nil field.
func Pointer[T any](field **T, fallback T) {
	if *field == nil {
		*field = &fallback
	}
}

// Duration sets the default of a zero duration.
func Duration(field *metav1.Duration, fallback time.Duration) {
	field.Duration = cmp.Or(field.Duration, fallback)
}
