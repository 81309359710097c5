// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/containerlog"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/safepath"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// logged is a node whose pod has a running container, and the path of that container's log.
func logged(t *testing.T) (n *node, pod *corev1.Pod, log string) {
	c, _ := newFake(t, nil)
	c.create(onePod("p"))
	pod = c.await("p", "ready", isReady)
	n = c.node.(*api).node
	return n, pod, filepath.Join(n.config.PodLogDir(pod), runconfig.ContainerLog("c", 0))
}

// A pod that has the directory of logs mounted may put anything there: nobody is shown a file of the host, and nobody waits for a FIFO.
func TestContainerLogsAreRegularFiles(t *testing.T) {
	n, pod, log := logged(t)
	secret := filepath.Join(t.TempDir(), "secret")
	line := "2026-01-02T03:04:05.000000000Z stdout F of the host\n"
	if err := os.WriteFile(secret, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	target := podspec.Target{Namespace: pod.Namespace, Pod: pod.Name, UID: pod.UID, Container: "c"}
	for name, c := range map[string]struct {
		make func() error
		want string // empty: refused
	}{
		"link":      {func() error { return os.Symlink(secret, log) }, ""},
		"FIFO":      {func() error { return unix.Mkfifo(log, 0o600) }, ""},
		"directory": {func() error { return os.Mkdir(log, 0o755) }, ""},
		"file":      {func() error { return os.WriteFile(log, []byte(line), 0o600) }, "of the host\n"},
	} {
		if err := errors.Join(os.RemoveAll(log), c.make()); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := n.streams.ContainerLogs(t.Context(), target, &corev1.PodLogOptions{}, &out, &out)
		if out.String() != c.want || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, safepath.ErrNotRegular) {
			t.Errorf("%s: %q, %v", name, out.String(), err)
		}
	}
}

// What is not a log is not renamed as one, however large it is.
func TestRotationStaysBelow(t *testing.T) {
	n, _, log := logged(t)
	rotation := containerlog.New(containerlog.Options{
		Runtime: n.cri, Pods: n.api(), Config: n.config, MaxBytes: n.settings.logBytes, MaxFiles: 5, Clock: n.Clock, Logger: n.Logger,
	})
	large := filepath.Join(t.TempDir(), "large")
	if err := errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, n.settings.logBytes+1)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(large, log); err != nil {
		t.Fatal(err)
	}
	if err := rotation.Rotate(t.Context()); err != nil {
		t.Errorf("a link to a large file: %v", err)
	}
	if to, err := os.Readlink(log); err != nil || to != large {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if err := errors.Join(os.Remove(log), os.Rename(large, log)); err != nil {
		t.Fatal(err)
	}
	// The runtime of the test opens no logs again: that it was asked to is what a rotation says here.
	if err := rotation.Rotate(t.Context()); err == nil || !strings.Contains(err.Error(), "reopen log "+log) {
		t.Errorf("a large log: %v", err)
	}
}

// A container may make its hosts file as long as it likes: the node reads no more than the text that is to be there, and writes it anew.
func TestHostsFileThatContainersChanged(t *testing.T) {
	n := &node{config: runconfig.Node{}, volumes: volumes.NewManager(&volumes.Host{Root: t.TempDir()}, nil)}
	pod := onePod("p")
	pod.UID = types.UID("u")
	path, err := n.writeHosts(pod, []string{"10.0.0.7"})
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(want), "10.0.0.7\tp\n") {
		t.Fatalf("hosts %q, %v", want, err)
	}
	for name, change := range map[string]func() error{
		"nothing":    func() error { return nil },
		"text":       func() error { return os.WriteFile(path, []byte("10.0.0.1\tapi\n"), 0o644) },
		"a tail":     func() error { return os.WriteFile(path, append(bytes.Clone(want), "10.0.0.1\tapi\n"...), 0o644) },
		"a sparse":   func() error { return os.Truncate(path, 1<<40) },
		"no mode":    func() error { return errors.Join(os.WriteFile(path, nil, 0o644), os.Chmod(path, 0)) },
		"it is gone": func() error { return os.Remove(path) },
	} {
		if err := change(); err != nil && !errors.Is(err, unix.EFBIG) {
			t.Fatal(err)
		}
		again, err := n.writeHosts(pod, []string{"10.0.0.7"})
		if err != nil || again != path {
			t.Errorf("%s: %q, %v", name, again, err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Size() != int64(len(want)) || info.Mode() != 0o644 {
			t.Errorf("%s: %v, %v", name, info, err)
			continue
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
