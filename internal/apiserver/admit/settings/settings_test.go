// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

type thing struct {
	metav1.TypeMeta
	Sizes []int32 `json:"sizes"`
}

var kind = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Thing"}

// TestDecode checks that only the given kind is decoded.
func TestDecode(t *testing.T) {
	const head = "apiVersion: example.com/v1\nkind: Thing\n"
	for in, want := range map[string]string{
		head + "sizes: [1, 2]": "",
		`{"apiVersion": "example.com/v1", "kind": "Thing", "sizes": [1]}`: "",
		"": "empty", " \n": "empty",
		head + "size: [1]":                        "unknown field \"size\"",
		head + "sizes: [a]":                       "cannot unmarshal",
		head + "sizes: [1]\nsizes: [2]":           "already set",
		"apiVersion: example.com/v2\nkind: Thing": `kind "Thing" of version "example.com/v2", want "Thing" of "example.com/v1"`,
		"{":                         "decode Thing",
		strings.Repeat("#", most+1): "longer than",
	} {
		var got thing
		err := Decode(strings.NewReader(in), kind, &got)
		switch {
		case want == "" && (err != nil || len(got.Sizes) == 0):
			t.Errorf("%.60q: %v, %+v", in, err, got)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.60q: %v, want %q", in, err, want)
		}
	}
}

// TestPlain decodes a configuration without apiVersion and kind.
func TestPlain(t *testing.T) {
	var got struct{ Sizes []int }
	if err := Plain(strings.NewReader("sizes: [3]"), &got); err != nil || len(got.Sizes) != 1 || got.Sizes[0] != 3 {
		t.Errorf("%v, %v", got, err)
	}
	if err := Plain(strings.NewReader("size: [3]"), &got); err == nil || !strings.Contains(err.Error(), "unknown field") {
		t.Errorf("unknown field: %v", err)
	}
}

// TestLength checks that a configuration may have up to a megabyte.
func TestLength(t *testing.T) {
	const text = "sizes: [3] #"
	for more, want := range map[int]string{0: "", 1: "longer than 1048576 bytes"} {
		var got struct{ Sizes []int }
		err := Plain(strings.NewReader(text+strings.Repeat("#", most-len(text)+more)), &got)
		if want == "" && (err != nil || len(got.Sizes) != 1) || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%d bytes: %v, %v, want %q", most+more, got, err, want)
		}
	}
}

// TestReadErrors checks that a partly readable file is an error.
func TestReadErrors(t *testing.T) {
	broken := errors.New("disk full")
	in := func() io.Reader { return io.MultiReader(strings.NewReader("sizes: [3]"), iotest.ErrReader(broken)) }
	var got thing
	for name, err := range map[string]error{"of a kind": Decode(in(), kind, &got), "of none": Plain(in(), &got)} {
		if !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("apiVersion: example.com/v1\nkind: Thing\nsizes: [1]")
	f.Fuzz(func(t *testing.T, in string) {
		var got thing
		if err := Decode(strings.NewReader(in), kind, &got); err == nil && got.Kind != "Thing" {
			t.Errorf("%q was read as %+v", in, got)
		}
	})
}
