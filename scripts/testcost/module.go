// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The libraries, as what their users write: each test starts a cluster, and asks it for a namespace.
const (
	withEmbedtest = `package mine

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
`
	withEnvtest = `package mine

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
`
)

// within calls f with the folder of a module that has a test.
func within(test, tree string, f func(mine string) error) (err error) {
	dir, err := os.MkdirTemp("", "testcost")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	mine := filepath.Join(dir, "mine")
	if err := write(test, tree, mine); err != nil {
		return err
	}
	return f(mine)
}

// module measures a module with a test: the packages, `go test` with an empty cache and with a full one, and the test binary.
func module(ctx context.Context, test, tree string, cold bool) (cells []string, err error) {
	err = within(test, tree, func(mine string) error {
		cells, err = measure(ctx, mine, cold)
		return err
	})
	return cells, err
}

// measure returns the cells of a module.
func measure(ctx context.Context, mine string, cold bool) ([]string, error) {
	test := []string{"test", "-count=1", "-tags", "grpcnotrace", "."}
	first := "not measured"
	var env []string
	if cold {
		env = append(env, "GOCACHE="+filepath.Join(mine, "..", "cache"))
	}
	_, took, err := run(ctx, mine, env, test...) // fills the cache
	if err != nil {
		return nil, err
	}
	if cold {
		first = took.String()
	}
	_, warm, err := run(ctx, mine, env, test...)
	if err != nil {
		return nil, err
	}
	packages, size, _, err := build(ctx, mine, env)
	if err != nil {
		return nil, err
	}
	return []string{strconv.Itoa(packages), first, warm.String(), fmt.Sprintf("%d MB", size>>20)}, nil
}

// build builds the test binary. It returns the number of packages, the size in bytes and how long it took.
func build(ctx context.Context, mine string, env []string) (packages int, size int64, took span, err error) {
	list, _, err := run(ctx, mine, env, "list", "-deps", "-test", "-tags", "grpcnotrace", ".")
	if err != nil {
		return 0, 0, span{}, err
	}
	_, took, err = run(ctx, mine, env, "test", "-c", "-tags", "grpcnotrace", "-o", "binary", ".")
	if err != nil {
		return 0, 0, span{}, err
	}
	binary, err := os.Stat(filepath.Join(mine, "binary"))
	if err != nil {
		return 0, 0, span{}, err
	}
	return len(strings.Fields(list)), binary.Size(), took, nil
}

// write makes the module of a test, with the versions of this one.
func write(test, tree, dir string) error {
	tree, err := filepath.Abs(tree)
	if err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(tree, "go.mod"))
	if err != nil {
		return err
	}
	const self = "github.com/mortise-dev/mortise"
	sum, err := os.ReadFile(filepath.Join(tree, "go.sum"))
	if err != nil {
		return err
	}
	text := strings.Replace(string(mod), "module "+self, "module example.com/mine", 1) +
		fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %s => %s\n", self, self, tree)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range map[string]string{"go.mod": text, "go.sum": string(sum), "mine_test.go": test} {
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
