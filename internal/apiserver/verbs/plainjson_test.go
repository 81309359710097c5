// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

func TestPlainObjects(t *testing.T) {
	for text, want := range map[string]bool{
		`{"a":"b","c":[1,2,{"d":null}],"e":true,"f":0}`:   true,
		`{ "a" : "say \"x\"\n" }` + "\n":                  true,
		`{"a":"` + strings.Repeat("x", 5000) + `","b":1}`: true,
		`{"` + strings.Repeat("x", 2000) + `":1}`:         false,
		`{"a":1,"a":2}`:               false,
		`{"a":"\u00e9"}`:              false,
		`{"a":"é"}`:                   false,
		`{"a":1.0}`:                   false,
		`{"a":1e3}`:                   false,
		`{"a":-1}`:                    false,
		`{"a":01}`:                    false,
		`{"a":123456789012345678901}`: false,
		"{\t\"a\":1}":                 false,
		`{"a":yes}`:                   false,
		`{"a":1`:                      false,
		`[1]`:                         false,
		`a: 1`:                        false,
		``:                            false,
	} {
		m := plainObject([]byte(text))
		if (m != nil) != want {
			t.Errorf("%.60s: %v", text, m)
		}
		if m != nil {
			sameAsYAML(t, []byte(text), m)
		}
	}
}

// sameAsYAML wants what a YAML reader makes of a text.
func sameAsYAML(t *testing.T, text []byte, got map[string]any) {
	t.Helper()
	want := map[string]any{}
	if err := utilyaml.UnmarshalStrict(text, &want); err != nil {
		t.Fatalf("%q is plain, but as YAML: %v", text, err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%q read as YAML and as JSON: %s", text, d)
	}
}

func FuzzPlainObject(f *testing.F) {
	for _, s := range []string{`{"a":"b","c":[1,2,{"d":null}],"e":true}`, `{"a": "\\\" \n"}`, `{"a":{"b":[]},"":0}`, `{"a":"- # : ? |"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if m := plainObject(text); m != nil {
			sameAsYAML(t, text, m)
		}
	})
}
