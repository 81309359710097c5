// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: PLURAL.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: PLURAL, kind: Thing}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {a: {type: TYPE}}}}}
`

func file(plural, of string) string {
	return strings.NewReplacer("PLURAL", plural, "TYPE", of).Replace(definition)
}

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct{ file, older, want string }{
		"good":     {file("things", "string"), "", "things.example.com []"},
		"refused":  {file("things", "strange"), file("things", "string"), "things.example.com [error]"},
		"breaking": {file("things", "integer"), file("things", "string"), "things.example.com [breaking]"},
		"gone": {file("things", "string"), file("things", "string") + "---" + file("others", "string"),
			"things.example.com [] others.example.com [breaking]"},
		"not older": {file("things", "string"), file("others", "string"), "things.example.com [] others.example.com [breaking]"},
	} {
		older := strings.NewReader(c.older)
		js, err := judge(t.Context(), strings.NewReader(c.file), older)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, j := range js {
			var levels []string
			for _, f := range j.Findings {
				levels = append(levels, f.Level)
			}
			got = append(got, j.Name+" ["+strings.Join(levels, " ")+"]")
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: got %s, want %s", name, s, c.want)
		}
	}
	if _, err := judge(t.Context(), strings.NewReader("kind: ["), nil); err == nil {
		t.Error("a file that is no YAML was judged")
	}
}
