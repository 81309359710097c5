// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command testcost measures what a test costs its author: a module with one test, with embedtest and with controller-runtime's envtest. It
// prints the number of packages that the test compiles, the time and the processor time of `go test` with an empty cache and with a full
// one, and the size of the test binary.
//
//	KUBEBUILDER_ASSETS=DIR go run ./scripts/testcost -cold
//	go run ./scripts/testcost -platforms linux/arm64,darwin/arm64
//
// With -cold it compiles everything twice, in caches of its own, which takes minutes and gigabytes. Without KUBEBUILDER_ASSETS, the test
// with envtest is compiled and does not run. With -platforms it builds the test with embedtest for each platform instead, and prints the
// number of packages and the size.
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
	platforms := flag.String("platforms", "", "build the test for these platforms, as GOOS/GOARCH with commas between them, and do nothing else")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	measured := func(s subject, mine string) error { return measure(ctx, s, mine, *cold) }
	all := subjects
	if *platforms != "" {
		all = subjects[:1]
		measured = func(_ subject, mine string) error { return cross(ctx, mine, strings.Split(*platforms, ",")) }
		fmt.Println("| platform | packages | test binary |\n|---|---|---|")
	} else {
		fmt.Println("| | packages | cold | warm | test binary |\n|---|---|---|---|---|")
	}
	for _, s := range all {
		if err := within(s, *tree, measured); err != nil {
			fmt.Fprintf(os.Stderr, "measure %s: %v\n", s.name, err)
			os.Exit(1) //nolint:gocritic // nothing is left to stop
		}
	}
}

// within calls f with the folder of a module that has the test of a library.
func within(s subject, tree string, f func(s subject, mine string) error) (err error) {
	dir, err := os.MkdirTemp("", "testcost")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	mine := filepath.Join(dir, "mine")
	if err := write(s, tree, mine); err != nil {
		return err
	}
	return f(s, mine)
}

// cross builds the test for other platforms, and prints a line for each.
func cross(ctx context.Context, mine string, platforms []string) error {
	for _, p := range platforms {
		system, processor, ok := strings.Cut(p, "/")
		if !ok {
			return fmt.Errorf("platform %q: want GOOS/GOARCH", p)
		}
		env := []string{"GOOS=" + system, "GOARCH=" + processor}
		packages, size, err := build(ctx, mine, env)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		fmt.Printf("| %s | %d | %d MB |\n", p, packages, size>>20)
	}
	return nil
}

// build builds the test binary. It returns the number of packages and the size in bytes.
func build(ctx context.Context, mine string, env []string) (packages int, size int64, err error) {
	list, _, err := run(ctx, mine, env, "list", "-deps", "-test", "-tags", "grpcnotrace", ".")
	if err != nil {
		return 0, 0, err
	}
	if _, _, err := run(ctx, mine, env, "test", "-c", "-tags", "grpcnotrace", "-o", "binary", "."); err != nil {
		return 0, 0, err
	}
	binary, err := os.Stat(filepath.Join(mine, "binary"))
	if err != nil {
		return 0, 0, err
	}
	return len(strings.Fields(list)), binary.Size(), nil
}

// measure prints the line of a library.
func measure(ctx context.Context, s subject, mine string, cold bool) error {
	test := []string{"test", "-count=1", "-tags", "grpcnotrace", "."}
	first := "not measured"
	var env []string
	if cold {
		env = append(env, "GOCACHE="+filepath.Join(mine, "..", "cache"))
		_, took, err := run(ctx, mine, env, test...)
		if err != nil {
			return err
		}
		first = took.String()
	} else if _, _, err := run(ctx, mine, nil, test...); err != nil { // fills the cache
		return err
	}
	_, warm, err := run(ctx, mine, env, test...)
	if err != nil {
		return err
	}
	packages, size, err := build(ctx, mine, env)
	if err != nil {
		return err
	}
	fmt.Printf("| %s | %d | %s | %s | %d MB |\n", s.name, packages, first, warm, size>>20)
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

// span is how long a command took, and the processor time that it and its children used.
type span struct{ wall, processor time.Duration }

// String is a cell of the table.
func (s span) String() string {
	return fmt.Sprintf("%.1f s, %.1f s of processor time", s.wall.Seconds(), s.processor.Seconds())
}

// run runs the go command, and returns its output and how long it took.
func run(ctx context.Context, dir string, env []string, args ...string) (string, span, error) {
	c := exec.CommandContext(ctx, "go", args...) //nolint:gosec // the arguments are ours
	c.Dir, c.Env = dir, append(append(os.Environ(), "GOFLAGS=-mod=mod -trimpath", "GOWORK=off", "CGO_ENABLED=0"), env...)
	c.Stderr = os.Stderr
	began := time.Now()
	out, err := c.Output()
	took := span{wall: time.Since(began)}
	if err != nil {
		return "", took, fmt.Errorf("go %s: %w\n%s", args[0], err, out)
	}
	took.processor = c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	return string(out), took, nil
}
