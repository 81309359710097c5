// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
	"github.com/mortise-dev/mortise/internal/machine"
	"github.com/mortise-dev/mortise/internal/machine/images"
	"github.com/mortise-dev/mortise/test/programs"
)

const (
	patience    = 2 * time.Minute
	nodeAddress = "192.168.50.1:9999" // of the node towards the client outside, with the controller's port
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// folder is that of a module of skipper.mod.
func folder(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-modfile=skipper.mod", "-m", "-f", "{{.Dir}}", module).Output()
	must(t, err)
	return strings.TrimSpace(string(out))
}

// node is a cluster of one node with real containers, and a client outside of the machine.
type node struct {
	*programs.Cluster
	socket  string // of the runtime
	outside *netlab.Host
}

// start starts a cluster in a test that is alone.
func start(t *testing.T) *node {
	t.Helper()
	n := &node{outside: netlab.Outside(t)}
	home := t.TempDir()
	data := filepath.Join(home, "data")
	prepare := exec.CommandContext(t.Context(), programs.Path("mortise"), "machine", "prepare", "--data-dir", data, "--no-install")
	if out, err := prepare.CombinedOutput(); err != nil {
		t.Fatalf("prepare the machine: %v\n%s", err, out)
	}
	cgroups := fmt.Sprintf("/mortise-test-ingress-%d-%d", os.Getpid(), time.Now().UnixNano())
	t.Cleanup(func() {
		if err := machine.Destroy(context.Background(), data); err != nil {
			t.Error(err)
		}
		removeCgroups(cgroups)
	})
	var err error
	n.socket, err = machine.Socket(data)
	must(t, err)
	kubelet := filepath.Join(home, "kubelet.yaml")
	must(t, os.WriteFile(kubelet, fmt.Appendf(nil, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupRoot: %s
evictionHard: {nodefs.available: "0%%", imagefs.available: "0%%", memory.available: "0%%"}
imageGCHighThresholdPercent: 100
`, cgroups), 0o600))
	n.Cluster = programs.UpIn(t, home, "--data-dir", data, "--listen", "127.0.0.1:0", "--node", "cri", "--cri-socket", n.socket,
		"--no-kubelet-links", "--kubelet-config", kubelet)
	n.Do("", "wait", "nodes", "--all", "--for=condition=Ready", "--timeout=100s")
	return n
}

// removeCgroups removes those of the node's pods, the innermost first.
func removeCgroups(name string) {
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		roots, _ := filepath.Glob(pattern + name) // the pattern is a good one
		for _, root := range roots {
			var all []string
			_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					all = append(all, path)
				}
				return nil
			})
			for _, path := range slices.Backward(all) {
				_ = os.Remove(path) // a process that is being killed keeps it for a moment longer
			}
		}
	}
}

// load gives the node an image that has a program alone.
func (n *node) load(t *testing.T, name, program string) {
	t.Helper()
	text, err := os.ReadFile(program)
	must(t, err)
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	must(t, w.WriteHeader(&tar.Header{Name: "usr/bin/" + filepath.Base(program), Mode: 0o755, Size: int64(len(text)), Typeflag: tar.TypeReg}))
	_, err = w.Write(text)
	must(t, err)
	must(t, w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil })
	must(t, err)
	made, err := mutate.AppendLayers(empty.Image, layer)
	must(t, err)
	config, err := made.ConfigFile()
	must(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config.Env = "linux", runtime.GOARCH, []string{"PATH=/usr/bin"}
	made, err = mutate.ConfigFile(made, config)
	must(t, err)
	store, err := images.Open(n.socket)
	must(t, err)
	must(t, store.Import(t.Context(), map[string]v1.Image{name: made}))
}

// run runs the commands of a page.
func (n *node) run(t *testing.T, script string) {
	t.Helper()
	bin := t.TempDir()
	kubectl := fmt.Appendf(nil, "#!/bin/sh\nexec %q kubectl \"$@\"\n", programs.Path("mortise"))
	must(t, os.WriteFile(filepath.Join(bin, "kubectl"), kubectl, 0o755))
	c := exec.CommandContext(t.Context(), "sh", "-euxc", script)
	c.Env = append(os.Environ(), "KUBECONFIG="+n.Kubeconfig, "HOME="+n.Home, "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := c.CombinedOutput()
	if err != nil {
		for _, what := range [][]string{{"get", "pods", "-A", "-o", "wide"}, {"describe", "pods", "-A"},
			{"-n", "kube-system", "logs", "daemonset/skipper-ingress"}} {
			said, _ := n.Kubectl("", what...)
			t.Log(said)
		}
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// ask asks the controller for a page of a host, from outside of the machine.
func (n *node) ask(host, path string) (status int, said string, err error) {
	err = n.outside.Try(func() error {
		c, err := net.DialTimeout("tcp", nodeAddress, patience)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", path, host); err != nil {
			return err
		}
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		status, said = answer.StatusCode, string(body)
		return err
	})
	return status, said, err
}

// refuses expects that a host is not known.
func (n *node) refuses(t *testing.T, host string) {
	t.Helper()
	status, said, err := n.ask(host, "/")
	must(t, err)
	if status != http.StatusNotFound {
		t.Errorf("host %s, of no Ingress, answers %d: %s", host, status, said)
	}
}

// answers asks until a page has the words: the controller asks the API server for Ingresses and endpoints every three seconds. Until then
// it leads to a pod that ends, and a connection may end early.
func (n *node) answers(t *testing.T, host, path, words string) {
	t.Helper()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for late := time.After(patience); ; {
		status, said, err := n.ask(host, path)
		if err == nil && status == http.StatusOK && strings.Contains(said, words) {
			return
		}
		select {
		case <-again.C:
		case <-late:
			t.Fatalf("http://%s%s answers %d, without %q: %s, %v", host, path, status, words, said, err)
		}
	}
}
