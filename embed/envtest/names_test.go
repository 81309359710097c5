// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package envtest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

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

// printsKubeconfig stands for kubectl: it prints its kubeconfig.
const printsKubeconfig = `#!/bin/sh
exec cat "${1#--kubeconfig=}"
`

// TestUsers: a user's configuration, kubeconfig and kubectl are the user's.
func TestUsers(t *testing.T) {
	assets := t.TempDir()
	if err := os.WriteFile(filepath.Join(assets, "kubectl"), []byte(printsKubeconfig), 0o700); err != nil {
		t.Fatal(err)
	}
	env := &envtest.Environment{BinaryAssetsDirectory: assets}
	if _, err := env.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	u, err := env.AddUser(envtest.User{Name: "alice", Groups: []string{"readers"}}, &rest.Config{QPS: 7, Burst: 7})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := u.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	kubectl, err := u.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	stdout, _, err := kubectl.Run("get", "pods")
	if err != nil {
		t.Fatal(err)
	}
	printed, err := io.ReadAll(stdout)
	if err != nil {
		t.Fatal(err)
	}
	configs := map[string]*rest.Config{"Config": u.Config()}
	for name, text := range map[string][]byte{"KubeConfig": kubeconfig, "Kubectl": printed} {
		if configs[name], err = clientcmd.RESTConfigFromKubeConfig(text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if configs["Config"].QPS != 7 {
		t.Errorf("the configuration's QPS is %v", configs["Config"].QPS)
	}
	for name, config := range configs {
		review, err := kubernetes.NewForConfigOrDie(config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		who := review.Status.UserInfo
		if who.Username != "alice" || !slices.Equal(who.Groups, []string{"readers", "system:authenticated"}) {
			t.Errorf("%s is of %s in %v", name, who.Username, who.Groups)
		}
		_, err = kubernetes.NewForConfigOrDie(config).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s may list secrets: %v", name, err)
		}
	}
	if got := env.ControlPlane.APIServer.SecureServing.URL("https", "").String(); got != env.Config.Host {
		t.Errorf("the API server is at %s, its address says %s", env.Config.Host, got)
	}
}
