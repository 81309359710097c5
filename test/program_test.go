// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mortise-dev/mortise/internal/machine/unshare/unsharetest"
)

// ldflags are the Makefile's.
const ldflags = "-s -w -funcalign=8 -X k8s.io/component-base/version.gitVersion=v1.37.1 " +
	"-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37 " +
	"-X k8s.io/client-go/pkg/version.gitVersion=v1.37.1"

// TestLinkedAsReleased compares the linker's flags with those of `make build` and `make release`.
func TestLinkedAsReleased(t *testing.T) {
	text, err := os.ReadFile("../Makefile")
	try(t, err)
	set := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":="); ok {
			set[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	if want := strings.ReplaceAll(set["LDFLAGS"], "$(VERSION)", set["VERSION"]); ldflags != want {
		t.Errorf("the tests link the program with\n%s\nand a release is linked with\n%s", ldflags, want)
	}
}

// binary builds cmd/mortise once for all tests, as the Makefile builds it.
var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(builtProgram); path != "" {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "mortise-test-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	path := filepath.Join(dir, "mortise")
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-ldflags", ldflags, "-o", path, "../cmd/mortise")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

// builtIn is the folder that binary made, empty if no test asked for it.
var builtIn string

func TestMain(m *testing.M) {
	if os.Getenv(credentialPlugin) != "" {
		os.Exit(runCredentialPlugin())
	}
	if os.Getenv(aggregatedServer) != "" {
		os.Exit(runAggregatedServer())
	}
	switch os.Getenv(aloneTest) {
	case "init":
		os.Exit(unsharetest.Init())
	case "host":
		os.Exit(runHost())
	case "pod":
		os.Exit(runInPod())
	}
	code := m.Run()
	if builtIn != "" {
		os.RemoveAll(builtIn)
	}
	os.Exit(code)
}

// program is a `mortise up` in a process of its own.
type program struct {
	t          *testing.T
	binary     string
	command    *exec.Cmd
	kubeconfig string
	readyLine  string
	config     *rest.Config
	output     *tail
	ready      chan string // the ready line
	exited     chan error
}

// tail keeps what a process says on stderr.
type tail struct {
	mu    sync.Mutex
	text  bytes.Buffer
	heeds []heed
}

// heed is closed when a line is said that contains the words.
type heed struct {
	words string
	said  chan struct{}
}

func (o *tail) add(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Fprintln(&o.text, line)
	o.heeds = slices.DeleteFunc(o.heeds, func(h heed) bool {
		if !strings.Contains(line, h.words) {
			return false
		}
		close(h.said)
		return true
	})
}

// says waits until the process has said the words, from now on or before.
func (p *program) says(words string) {
	p.t.Helper()
	h := heed{words, make(chan struct{})}
	p.output.mu.Lock()
	if strings.Contains(p.output.text.String(), words) {
		close(h.said)
	} else {
		p.output.heeds = append(p.output.heeds, h)
	}
	p.output.mu.Unlock()
	select {
	case <-h.said:
	case <-time.After(time.Minute):
		p.t.Fatalf("mortise up never said %q", words)
	}
}

func (o *tail) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// up starts the binary on a data directory and waits for its ready line. The process is ended with the test.
func up(t *testing.T, dataDir string, args ...string) *program {
	t.Helper()
	p := launch(t, dataDir, args...)
	p.comesUp()
	return p
}

// launch starts the binary, and does not wait.
func launch(t *testing.T, dataDir string, args ...string) *program {
	t.Helper()
	return launchIn(t, nil, dataDir, args...)
}

// upFrom is up for another binary than the one that the tests build.
func upFrom(t *testing.T, path, dataDir string, args ...string) *program {
	t.Helper()
	p := launchFrom(t, path, nil, dataDir, args...)
	p.comesUp()
	return p
}

// launchIn is launch by a command that runs others, which is how they get elsewhere.
func launchIn(t *testing.T, where []string, dataDir string, args ...string) *program {
	t.Helper()
	return launchFrom(t, built(t), where, dataDir, args...)
}

// launchFrom is launchIn for another binary.
func launchFrom(t *testing.T, path string, where []string, dataDir string, args ...string) *program {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	p := beginFrom(t, path, where, kubeconfig, append([]string{"up", "--data-dir", dataDir, "--kubeconfig", kubeconfig,
		"--listen", "127.0.0.1:0"}, args...)...)
	t.Cleanup(func() {
		if t.Failed() && len(p.exited) == 0 {
			t.Log(p.state())
		}
	})
	return p
}

// built is the binary that the tests build.
func built(t *testing.T) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// begin starts the binary, whose process is ended with the test.
func begin(t *testing.T, where []string, kubeconfig string, args ...string) *program {
	t.Helper()
	return beginFrom(t, built(t), where, kubeconfig, args...)
}

// beginFrom is begin for another binary.
func beginFrom(t *testing.T, path string, where []string, kubeconfig string, args ...string) *program {
	t.Helper()
	p := &program{t: t, binary: path, kubeconfig: kubeconfig, output: &tail{}, ready: make(chan string, 1), exited: make(chan error, 1)}
	line := append(append(slices.Clone(where), path), args...)
	p.command = exec.Command(line[0], line[1:]...)
	stderr, err := p.command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("mortise %s said:\n%s", args[0], p.output)
		}
	})
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			p.output.add(lines.Text())
			if strings.HasPrefix(lines.Text(), "mortise: ready in ") {
				p.ready <- lines.Text()
			}
		}
		p.exited <- p.command.Wait()
	}()
	return p
}

// comesUp waits for the ready line of a program that was launched.
func (p *program) comesUp() {
	p.t.Helper()
	select {
	case p.readyLine = <-p.ready:
	case err := <-p.exited:
		p.exited <- err
		p.t.Fatalf("mortise up ended before it was ready: %v\n%s", err, p.output)
	case <-time.After(time.Minute):
		p.t.Fatalf("mortise up is not ready after a minute:\n%s", p.output)
	}
	var err error
	if p.config, err = clientcmd.BuildConfigFromFlags("", p.kubeconfig); err != nil {
		p.t.Fatal(err)
	}
	p.config.QPS = -1
}

// client is a typed client over TLS.
func (p *program) client() kubernetes.Interface {
	p.t.Helper()
	c, err := kubernetes.NewForConfig(p.config)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// kill ends the process at once, as a power cut would, and waits until it is gone.
func (p *program) kill() {
	p.command.Process.Kill()
	err := <-p.exited
	p.exited <- err
}

// stop asks the process to end and wants exit code 0.
func (p *program) stop() {
	p.t.Helper()
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	err := <-p.exited
	p.exited <- err
	if err != nil {
		p.t.Fatalf("mortise up ended with %v\n%s", err, p.output)
	}
}

// kubectl runs `mortise kubectl` against the program and wants exit code 0; it returns what that printed.
func (p *program) kubectl(args ...string) string {
	p.t.Helper()
	out, err := p.tryKubectl(args...)
	if err != nil {
		p.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// state is what a test that failed wants to be known of the pods, to be asked for after the test's end.
func (p *program) state() string {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var all strings.Builder
	for _, args := range [][]string{{"get", "pods,replicasets,deployments,nodes", "-A", "-o", "wide"}, {"get", "events", "-A"},
		{"get", "pods", "-n", "default", "-o", "jsonpath={range .items[*]}{.metadata.name}{.status}{\"\\n\"}{end}"}} {
		out, err := p.kubectlCommand(ctx, args...).CombinedOutput()
		fmt.Fprintf(&all, "kubectl %s: %v\n%s\n", strings.Join(args, " "), err, out)
	}
	return all.String()
}

// tryKubectl runs `mortise kubectl` and returns what it printed on both streams.
func (p *program) tryKubectl(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 2*time.Minute)
	defer cancel()
	out, err := p.kubectlCommand(ctx, args...).CombinedOutput()
	return string(out), errors.Join(err, ctx.Err())
}

func (p *program) kubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, p.binary, append([]string{"kubectl", "--kubeconfig", p.kubeconfig}, args...)...)
	c.Env = append(os.Environ(), "HOME="+filepath.Dir(p.kubeconfig))
	return c
}
