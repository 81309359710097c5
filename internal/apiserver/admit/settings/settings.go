// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package settings decodes the configuration of one plug-in in an AdmissionConfiguration. Unknown fields are errors.
package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// most is the maximum size of a plug-in's configuration in bytes.
const most = 1 << 20

// Decode decodes YAML or JSON of a kind into a struct that has a [metav1.TypeMeta].
func Decode(r io.Reader, want schema.GroupVersionKind, into any) error {
	data, err := read(r)
	if err != nil {
		return err
	}
	var is metav1.TypeMeta
	if err := yaml.Unmarshal(data, &is); err != nil {
		return fmt.Errorf("decode %s: %w", want.Kind, err)
	}
	if is.GroupVersionKind() != want {
		return fmt.Errorf("kind %q of version %q, want %q of %q", is.Kind, is.APIVersion, want.Kind, want.GroupVersion())
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return fmt.Errorf("decode %s: %w", want.Kind, err)
	}
	return nil
}

// Plain decodes YAML or JSON without apiVersion and kind.
func Plain(r io.Reader, into any) error {
	data, err := read(r)
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

func read(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > most:
		return nil, fmt.Errorf("longer than %d bytes", most)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, errors.New("empty")
	}
	return data, nil
}
