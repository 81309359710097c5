// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"strings"
	"testing"
)

// A JSON patch does what it says, unless it makes more of little than there is room for.
func TestOperate(t *testing.T) {
	object := `{"spec":{"a":"` + strings.Repeat("x", 64) + `","b":[]}}`
	double := `{"op":"copy","from":"/spec","path":"/spec/c"},{"op":"move","from":"/spec/c","path":"/spec/b/-"},`
	for _, c := range []struct{ name, patch, want, wrong string }{
		{"replace", `[{"op":"replace","path":"/spec","value":1}]`, `{"spec":1}`, ""},
		{"copy", `[{"op":"replace","path":"/spec","value":1},{"op":"copy","from":"/spec","path":"/b"}]`, `{"b":1,"spec":1}`, ""},
		{"doubles", "[" + strings.TrimSuffix(strings.Repeat(double, 20), ",") + "]", "", "accumulated size"},
		{"many", "[" + strings.TrimSuffix(strings.Repeat(`{"op":"add","path":"/a","value":1},`, maxOperations+1), ",") + "]", "",
			"maximum operations"},
		{"no patch", `{}`, "", "cannot unmarshal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := operate([]byte(object), []byte(c.patch))
			switch {
			case c.wrong == "" && (err != nil || string(got) != c.want):
				t.Errorf("%v, %s", err, got)
			case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
				t.Errorf("error %v and %d bytes, want %q", err, len(got), c.wrong)
			}
		})
	}
}
