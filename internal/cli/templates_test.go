// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubectl/pkg/util/templates"
)

// TestTemplatesCallLinkedMethods compares the methods that the program's templates call with those that scripts/overlay keeps for them. The
// templates of users (-o go-template) are executed on maps, which have no methods.
func TestTemplatesCallLinkedMethods(t *testing.T) {
	// Another package that executes templates needs its values and its texts here.
	out, err := exec.CommandContext(t.Context(), "go", "list", "-tags", "grpcnotrace", "-deps", "-f",
		`{{range .Imports}}{{if or (eq . "text/template") (eq . "html/template")}}{{$.ImportPath}}{{"\n"}}{{end}}{{end}}`, "../../cmd/mortise").Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(out))
	slices.Sort(got)
	want := []string{
		"github.com/google/cel-go/cel", // prompts for authors of expressions: not linked
		"github.com/spf13/cobra",       // only for commands with a template of their own: kubectl's
		"k8s.io/cli-runtime/pkg/printers",
		"k8s.io/kubectl/pkg/explain/v2",
		"k8s.io/kubectl/pkg/util/templates",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("packages that execute templates (-want +got):\n%s", diff)
	}

	dir, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "k8s.io/kubectl/pkg/explain/v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "templates", "plaintext.tmpl"))
	if err != nil {
		t.Fatal(err)
	}
	all := string(text) + templates.MainHelpTemplate() + templates.MainUsageTemplate() + templates.OptionsHelpTemplate() +
		templates.OptionsUsageTemplate()
	values := []reflect.Type{
		reflect.TypeFor[*cobra.Command](), reflect.TypeFor[*pflag.FlagSet](), reflect.TypeFor[*schema.GroupVersionResource](),
	}
	called := map[string]bool{}
	for _, m := range regexp.MustCompile(`\.([A-Z]\w*)`).FindAllStringSubmatch(all, -1) {
		if slices.ContainsFunc(values, func(v reflect.Type) bool { _, ok := v.MethodByName(m[1]); return ok }) {
			called[m[1]] = true
		}
	}
	source, err := os.ReadFile("../../scripts/overlay/methods.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	kept := map[string]bool{}
	for _, m := range regexp.MustCompile(`case "(\w+)":\s+return v\.MethodByName\("(\w+)"\)`).FindAllStringSubmatch(string(source), -1) {
		if m[1] != m[2] {
			t.Errorf("%s is answered by %s", m[1], m[2])
		}
		kept[m[1]] = true
	}
	if diff := cmp.Diff(called, kept); diff != "" {
		t.Errorf("methods that templates call (-want), and that the linker keeps (+got):\n%s", diff)
	}
}
