// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command testcost measures what a test costs its author: a module with one test, with embedtest and with controller-runtime's envtest. It
// prints the number of packages that the test compiles, the seconds of `go test` with an empty cache and with a full one, and the size of
// the test binary.
//
//	KUBEBUILDER_ASSETS=DIR go run ./scripts/testcost -cold
//
// With -cold it compiles everything twice, in caches of its own, which takes minutes and gigabytes. Without KUBEBUILDER_ASSETS, the test
// with envtest is compiled and does not run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// subject is a library with a test.
type subject struct{ name, test string }

// subjects are the libraries. Each test starts a cluster, and asks it for a namespace.
var subjects = []subject{
	{"embedtest", `package mine

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/embed/embedtest"
)

func TestMine(t *testing.T) {
	if _, err := embedtest.New(t).Client().CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
}
`},
	{"envtest", `package mine

import (
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

func TestMine(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Log("nothing was started")
		return
	}
	env := &envtest.Environment{}
	config, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if err := env.Stop(); err != nil {
		t.Error(err)
	}
}
`},
}

func main() {
	cold := flag.Bool("cold", false, "measure with an empty cache, too")
	tree := flag.String("tree", ".", "the folder of this module")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	fmt.Println("| | packages | cold | warm | test binary |\n|---|---|---|---|---|")
	for _, s := range subjects {
		if err := measure(ctx, s, *tree, *cold); err != nil {
			fmt.Fprintf(os.Stderr, "measure %s: %v\n", s.name, err)
			os.Exit(1) //nolint:gocritic // nothing is left to stop
		}
	}
}

// measure prints the line of a library.
func measure(ctx context.Context, s subject, tree string, cold bool) (err error) {
	dir, err := os.MkdirTemp("", "testcost")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	mine := filepath.Join(dir, "mine")
	if err := write(s, tree, mine); err != nil {
		return err
	}
	list, _, err := run(ctx, mine, nil, "list", "-deps", "-test", "-tags", "grpcnotrace", ".")
	if err != nil {
		return err
	}
	test := []string{"test", "-count=1", "-tags", "grpcnotrace", "."}
	first := "not measured"
	var env []string
	if cold {
		env = append(env, "GOCACHE="+filepath.Join(dir, "cache"))
		_, took, err := run(ctx, mine, env, test...)
		if err != nil {
			return err
		}
		first = took.Round(time.Second).String()
	} else if _, _, err := run(ctx, mine, nil, test...); err != nil { // fills the cache
		return err
	}
	_, warm, err := run(ctx, mine, env, test...)
	if err != nil {
		return err
	}
	if _, _, err := run(ctx, mine, env, "test", "-c", "-tags", "grpcnotrace", "-o", "binary", "."); err != nil {
		return err
	}
	binary, err := os.Stat(filepath.Join(mine, "binary"))
	if err != nil {
		return err
	}
	packages, again := len(strings.Fields(list)), warm.Round(100*time.Millisecond)
	fmt.Printf("| %s | %d | %s | %s | %d MB |\n", s.name, packages, first, again, binary.Size()>>20)
	return nil
}

// write makes the module of a test, with the versions of this one.
func write(s subject, tree, dir string) error {
	tree, err := filepath.Abs(tree)
	if err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(tree, "go.mod"))
	if err != nil {
		return err
	}
	const module = "github.com/mortise-dev/mortise"
	sum, err := os.ReadFile(filepath.Join(tree, "go.sum"))
	if err != nil {
		return err
	}
	text := strings.Replace(string(mod), "module "+module, "module example.com/mine", 1) +
		fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %s => %s\n", module, module, tree)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range map[string]string{"go.mod": text, "go.sum": string(sum), "mine_test.go": s.test} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// run runs the go command, and returns its output and how long it took.
func run(ctx context.Context, dir string, env []string, args ...string) (string, time.Duration, error) {
	c := exec.CommandContext(ctx, "go", args...) //nolint:gosec // the arguments are ours
	c.Dir, c.Env = dir, append(append(os.Environ(), "GOFLAGS=-mod=mod -trimpath", "GOWORK=off", "CGO_ENABLED=0"), env...)
	c.Stderr = os.Stderr
	began := time.Now()
	out, err := c.Output()
	took := time.Since(began)
	if err != nil {
		return "", 0, fmt.Errorf("go %s: %w\n%s", args[0], err, out)
	}
	return string(out), took, nil
}
