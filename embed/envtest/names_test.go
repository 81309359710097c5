// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package envtest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	upstream "sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/mortise-dev/mortise/embed/envtest"
)

// TestNamesOfUpstream: whatever a suite names of controller-runtime's package, this one has: a changed import compiles.
func TestNamesOfUpstream(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "sigs.k8s.io/controller-runtime/pkg/envtest").Output()
	if err != nil {
		t.Fatal(err)
	}
	has := names(t, ".")
	theirs := names(t, strings.TrimSpace(string(out)))
	if len(theirs) < 20 {
		t.Fatalf("upstream's package has %d names", len(theirs))
	}
	for name := range theirs {
		if !has[name] {
			t.Errorf("there is no %s", name)
		}
	}
}

// names returns the exported names of the package in a folder, and the methods and fields of its Environment.
func names(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	add := func(prefix, name string) {
		if ast.IsExported(name) {
			found[prefix+name] = true
		}
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					add("", d.Name.Name)
				} else if star, ok := d.Recv.List[0].Type.(*ast.StarExpr); ok && star.X.(*ast.Ident).Name == "Environment" {
					add("Environment.", d.Name.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.ValueSpec:
						for _, n := range s.Names {
							add("", n.Name)
						}
					case *ast.TypeSpec:
						add("", s.Name.Name)
						if of, ok := s.Type.(*ast.StructType); ok && s.Name.Name == "Environment" {
							for _, field := range of.Fields.List {
								for _, n := range field.Names {
									add("Environment.", n.Name)
								}
							}
						}
					}
				}
			}
		}
	}
	return found
}

// TestUsersKubeconfig: a user's kubeconfig is the user.
func TestUsersKubeconfig(t *testing.T) {
	env := &envtest.Environment{}
	if _, err := env.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	u, err := env.AddUser(upstream.User{Name: "alice", Groups: []string{"readers"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := u.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil || config.Impersonate.UserName != "alice" || config.Host != env.Config.Host {
		t.Errorf("the kubeconfig is of %q at %s: %v", config.Impersonate.UserName, config.Host, err)
	}
}
