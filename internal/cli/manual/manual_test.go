// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package manual

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const help = `Usage: mortise thing [flags]

Does a thing: it is
done. Then:
no more.

.dots and \escapes.

      --data-dir string   Directory of
                          all - "state".
  -h, --help[=basic]      Print the flags.
  -o, --output string     Format:
                          json.
      --fix

Other things:
      --name NAME   Name.
`

func TestParse(t *testing.T) {
	want := Page{
		Name: "thing", About: "do it", Synopsis: []string{"mortise thing [flags]"},
		Text: []string{"Does a thing: it is done. Then: no more.", `.dots and \escapes.`},
		Groups: []Group{
			{"", []Flag{{"", "data-dir", "string", `Directory of all - "state".`}, {"h", "help", "[=basic]", "Print the flags."},
				{"o", "output", "string", "Format: json."}, {"", "fix", "", ""}}},
			{"Other things", []Flag{{"", "name", "NAME", "Name."}}},
		},
	}
	got := Parse("thing", "do it", help)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
	for i, takes := range []bool{true, false, true, false} {
		if got.Groups[0].Flags[i].Takes() != takes {
			t.Errorf("%s takes a value: %t", got.Groups[0].Flags[i], !takes)
		}
	}
	several := Parse("a b", "", "Usage:\n  mortise a b X\n  mortise a c\n\nText.\n\nFlags:\n      --x int   X.\n")
	want = Page{Name: "a b", Synopsis: []string{"mortise a b X", "mortise a c"}, Text: []string{"Text."},
		Groups: []Group{{"Flags", []Flag{{"", "x", "int", "X."}}}}}
	if diff := cmp.Diff(want, several); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if p := Parse("c", "", "Usage of c:\n  -x, --xx   X.\n"); len(p.Synopsis) != 1 || len(p.Groups) != 1 {
		t.Errorf("got %+v", p)
	}
}

func TestRoff(t *testing.T) {
	var b strings.Builder
	p := Parse("thing", "do it", help)
	if err := p.WriteRoff(&b, "0.1", []Page{{}, {Name: "node doctor"}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		".TH MORTISE\\-THING 1 \"\" \"Mortise 0.1\" \"Mortise\"\n.SH NAME\nmortise\\-thing \\- do it\n.SH SYNOPSIS\n.nf\nmortise thing [flags]\n.fi\n",
		".PP\n\\&.dots and \\eescapes.\n.SH OPTIONS\n.TP\n\\fB\\-\\-data\\-dir string\\fR\nDirectory of all \\- \"state\".\n",
		".TP\n\\fB\\-h, \\-\\-help[=basic]\\fR\n", ".SS Other things\n", ".SH SEE ALSO\n.BR mortise (1),\n.BR mortise\\-node\\-doctor (1)\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if got := p.File(); got != "mortise-thing.1" {
		t.Errorf("the file is %s", got)
	}
}

func TestMarkdown(t *testing.T) {
	var b strings.Builder
	if err := Parse("thing", "do it", help).WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"## mortise thing\n\n```\nmortise thing [flags]\n```\n", "| `-o, --output string` | Format: json. |\n", "### Other things\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(help)
	f.Add("Usage:\n  x\n\n  -a, --b[=c] d   e\n    f\n")
	f.Fuzz(func(t *testing.T, text string) {
		p := Parse("x", "y", text)
		if len(p.Synopsis) == 0 {
			t.Error("a page without a synopsis")
		}
		for _, g := range p.Groups {
			if len(g.Flags) == 0 {
				t.Error("a group without flags")
			}
		}
	})
}
