// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/loader"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// limit is how long any one of Helm's actions may take.
const limit = 2 * time.Minute

// cluster is one program for all tests; each test works in a namespace of its own.
var cluster = struct {
	kubeconfig string
	err        error
}{}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "mortise-helm-")
		if err != nil {
			cluster.err = err
			return m.Run()
		}
		defer os.RemoveAll(dir)
		stop, err := up(dir)
		cluster.err = err
		if err == nil {
			defer stop()
		}
		return m.Run()
	}())
}

// up builds the program, starts it in dir and returns when it says that it is ready.
func up(dir string) (stop func(), err error) {
	program := filepath.Join(dir, "mortise")
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-o", program, "./cmd/mortise")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build: %w\n%s", err, out)
	}
	cluster.kubeconfig = filepath.Join(dir, "kubeconfig")
	c := exec.Command(program, "up", "--data-dir", filepath.Join(dir, "data"), "--kubeconfig", cluster.kubeconfig,
		"--listen", "127.0.0.1:0", "--node", "simulated")
	stderr, err := c.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	ready, ended := make(chan struct{}), make(chan struct{})
	var said []string
	go func() {
		defer close(ended)
		var once sync.Once
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			said = append(said, lines.Text())
			if strings.HasPrefix(lines.Text(), "mortise: ready in ") {
				once.Do(func() { close(ready) })
			}
		}
	}()
	stop = func() {
		c.Process.Kill()
		<-ended
		c.Wait()
	}
	select {
	case <-ready:
		return stop, nil
	case <-ended:
		return nil, fmt.Errorf("mortise up ended: %w\n%s", c.Wait(), strings.Join(said, "\n"))
	case <-time.After(time.Minute):
		stop()
		return nil, fmt.Errorf("mortise up is not ready after a minute:\n%s", strings.Join(said, "\n"))
	}
}

// helm is Helm's configuration for one namespace, as its command line makes it.
func helm(t *testing.T, namespace string) (*action.Configuration, kubernetes.Interface) {
	t.Helper()
	if cluster.err != nil {
		t.Fatal(cluster.err)
	}
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig, flags.Namespace = &cluster.kubeconfig, &namespace
	discovery := t.TempDir()
	flags.CacheDir = &discovery
	flags.WrapConfigFn = func(c *rest.Config) *rest.Config {
		c.QPS, c.Burst = -1, -1
		c.WarningHandler = rest.NoWarnings{}
		return c
	}
	config := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	if err := config.Init(flags, namespace, "secret"); err != nil {
		t.Fatal(err)
	}
	config.HookOutputFunc = func(_, _, _ string) io.Writer { return io.Discard }
	client, err := config.KubernetesClientSet()
	if err != nil {
		t.Fatal(err)
	}
	return config, client
}

// shipped loads a chart out of another module in the module cache.
func shipped(t *testing.T, module, folder string) chart.Charter {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", module).Output()
	if err != nil {
		t.Fatalf("find module %s: %v\n%s", module, err, out)
	}
	_, rest, _ := strings.Cut(string(out), `"Dir": "`)
	dir, _, ok := strings.Cut(rest, `"`)
	if !ok {
		t.Fatalf("module %s has no folder: %s", module, out)
	}
	return load(t, filepath.Join(dir, filepath.FromSlash(folder)))
}

// load loads the chart in a folder.
func load(t *testing.T, dir string) chart.Charter {
	t.Helper()
	c, err := loader.LoadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
