// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

const (
	driverName = "mock.csi.example.com"
	limit      = time.Minute // for everything that the tests wait for
)

// programs is the directory of the programs, built once; CSI_TEST_PROGRAMS names one where they are built already.
var programs string

// sidecars are the packages of the programs that run beside the driver and the cluster.
var sidecars = []string{
	"github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher",
	"github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
	"github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
	"github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
	"github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
	"./hostpathplugin",
}

func TestMain(m *testing.M) {
	if programs = os.Getenv("CSI_TEST_PROGRAMS"); programs != "" {
		os.Exit(m.Run())
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "mortise-csi-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		programs = dir
		for _, b := range []struct {
			in   string
			what []string
		}{{filepath.Join("..", ".."), []string{"./cmd/mortise"}}, {".", sidecars}} {
			build := exec.Command("go", append([]string{"build", "-tags", "grpcnotrace", "-o", dir + string(filepath.Separator)}, b.what...)...)
			build.Dir, build.Env = b.in, append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build %s: %v\n%s", b.what, err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

// process is a program that runs, with what it writes to standard error.
type process struct {
	cmd  *exec.Cmd
	gone chan struct{} // closed when it has ended

	mu   sync.Mutex
	said bytes.Buffer
}

// start starts a program, and calls heard with each of its lines.
func start(t testing.TB, heard func(line string), program string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(filepath.Join(programs, program), args...), gone: make(chan struct{})}
	stderr, err := p.cmd.StderrPipe()
	must(t, err)
	must(t, p.cmd.Start())
	go func() {
		s := bufio.NewScanner(stderr)
		s.Buffer(nil, 16<<20) // sidecars log whole objects
		for s.Scan() {
			p.mu.Lock()
			fmt.Fprintln(&p.said, s.Text())
			p.mu.Unlock()
			if heard != nil {
				heard(s.Text())
			}
		}
		_ = p.cmd.Wait() // how it ended is in what it wrote
		close(p.gone)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		select {
		case <-p.gone:
		case <-time.After(10 * time.Second):
			_ = p.cmd.Process.Kill() // it may have ended meanwhile
			<-p.gone
		}
		if t.Failed() {
			p.mu.Lock()
			t.Logf("%s:\n%s", program, p.said.String())
			p.mu.Unlock()
		}
	})
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cluster is a cluster with simulated nodes, and the mock driver with its sidecars beside it.
type cluster struct {
	t          testing.TB
	kubeconfig string
	server     *process
}

// newCluster starts a cluster of simulated nodes on which the mock driver is registered, with further arguments of `mortise up`.
func newCluster(t testing.TB, nodes int, more ...string) *cluster {
	t.Helper()
	dir := t.TempDir()
	c := &cluster{t: t, kubeconfig: filepath.Join(dir, "kubeconfig")}
	file := filepath.Join(dir, "nodes.yaml")
	must(t, os.WriteFile(file, fmt.Appendf(nil, `apiVersion: config.mortise.dev/v1alpha1
kind: SimulatedNodes
groups:
- namePrefix: node
  count: %d
  capacity: {pods: "200"}
  annotations: {volumes.kubernetes.io/controller-managed-attach-detach: "true"}
`, nodes), 0o600))
	ready := make(chan struct{})
	once := sync.OnceFunc(func() { close(ready) })
	c.server = start(t, func(line string) {
		if strings.HasPrefix(line, "mortise: ready in ") {
			once()
		}
	}, "mortise", append([]string{"up", "--data-dir", filepath.Join(dir, "data"), "--kubeconfig", c.kubeconfig, "--listen", "127.0.0.1:0",
		"--node", "simulated", "--simulated-nodes", file}, more...)...)
	select {
	case <-ready:
	case <-c.server.gone:
		t.Fatal("the server ended")
	case <-time.After(limit):
		t.Fatal("the server did not become ready")
	}
	objects := fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: %[1]s}
spec: {attachRequired: true}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: mock}
provisioner: %[1]s
allowVolumeExpansion: true
`, driverName)
	for i := range nodes {
		objects += fmt.Sprintf(`---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: node-%d}
spec: {drivers: [{name: %[2]s, nodeID: %[2]s}]}
`, i, driverName)
	}
	c.apply(objects)
	return c
}

// drive starts the mock driver and sidecars.
func (c *cluster) drive(sidecars ...string) {
	c.t.Helper()
	mock := service.New(service.Config{DriverName: driverName})
	c.sidecars(c.serve(driver.CSIDriverServers{Controller: mock, Identity: mock, Node: mock}), sidecars...)
}

// serve starts a driver, and returns its socket.
func (c *cluster) serve(servers driver.CSIDriverServers) string {
	c.t.Helper()
	socket := filepath.Join(c.t.TempDir(), "csi.sock")
	l, err := net.Listen("unix", socket)
	must(c.t, err)
	d := driver.NewCSIDriver(&servers)
	must(c.t, d.Start(l, nil))
	c.t.Cleanup(d.Stop)
	return socket
}

// sidecars starts the sidecars of a driver, and the snapshot controller.
func (c *cluster) sidecars(socket string, names ...string) {
	c.t.Helper()
	for _, name := range names {
		args := []string{"--kubeconfig", c.kubeconfig, "-v", "4"}
		if name != "snapshot-controller" {
			args = append(args, "--csi-address", socket)
		}
		if name == "csi-attacher" || name == "csi-provisioner" {
			args = append(args, "--worker-threads", "100", "--kube-api-qps", "1000", "--kube-api-burst", "2000")
		}
		start(c.t, nil, name, args...)
	}
}

// define creates definitions of the snapshotter, by group and plural.
func (c *cluster) define(group string, kinds ...string) {
	c.t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubernetes-csi/external-snapshotter/client/v8").Output()
	must(c.t, err)
	for _, kind := range kinds {
		c.kubectl("apply", "-f", filepath.Join(strings.TrimSpace(string(dir)), "config", "crd", group+"_"+kind+".yaml"))
		c.wait("condition=Established", "crd/"+kind+"."+group)
	}
}

// snapshots are the kinds of snapshots.
func (c *cluster) snapshots() {
	c.t.Helper()
	c.define("snapshot.storage.k8s.io", "volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots")
}

// try runs kubectl with input, and returns its output.
func (c *cluster) try(input string, args ...string) (string, error) {
	k := exec.CommandContext(c.t.Context(), filepath.Join(programs, "mortise"),
		append([]string{"kubectl", "--kubeconfig", c.kubeconfig}, args...)...)
	k.Stdin = strings.NewReader(input)
	out, err := k.CombinedOutput()
	if err != nil {
		err = errors.Join(fmt.Errorf("kubectl %s", strings.Join(args, " ")), err, errors.New(string(out)))
	}
	return strings.TrimSpace(string(out)), err
}

// kubectl runs kubectl, and returns its output.
func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.try("", args...)
	must(c.t, err)
	return out
}

// apply creates or updates the objects of YAML documents.
func (c *cluster) apply(documents string) {
	c.t.Helper()
	_, err := c.try(documents, "apply", "-f", "-")
	must(c.t, err)
}

// wait waits until objects are as kubectl wait --for describes it.
func (c *cluster) wait(until string, what ...string) {
	c.t.Helper()
	if _, err := c.try("", append([]string{"wait", "--timeout", limit.String(), "--for", until}, what...)...); err != nil {
		out, _ := c.try("", "get", "events", "--sort-by", "lastTimestamp") // it only helps to explain
		c.t.Fatalf("%v\n%s", err, out)
	}
}

// said waits for an event of an object.
func (c *cluster) said(object, reason, message string) {
	c.t.Helper()
	c.heard(object, reason, func(text string) bool { return text == message })
}

// heard waits for an event of an object whose message is as is says.
func (c *cluster) heard(object, reason string, is func(message string) bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	k := exec.CommandContext(ctx, filepath.Join(programs, "mortise"), "kubectl", "--kubeconfig", c.kubeconfig, "get", "events", "--watch",
		"--field-selector", "involvedObject.name="+object+",reason="+reason, "-o", `jsonpath={.message}{"\n"}`)
	out, err := k.StdoutPipe()
	must(c.t, err)
	must(c.t, k.Start())
	defer func() {
		cancel()
		_ = k.Wait() // it was stopped
	}()
	var others []string
	for s := bufio.NewScanner(out); s.Scan(); {
		if is(s.Text()) {
			return
		}
		others = append(others, s.Text())
	}
	c.t.Errorf("no event %s of %s is expected: %q", reason, object, others)
}
