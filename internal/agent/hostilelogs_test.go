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

	"github.com/mortise-dev/mortise/internal/agent/containerlog"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/safepath"
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
		Runtime: n.cri, Pods: n.workers, Config: n.config, MaxBytes: n.settings.logBytes, MaxFiles: 5, Clock: n.Clock, Logger: n.Logger,
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
