// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// A container may make its hosts file as long as it likes: the node reads no more than the text that is to be there, and writes it anew.
func TestHostsFileThatContainersChanged(t *testing.T) {
	m := &Manager{Dependencies: Dependencies{Mounts: volumes.NewManager(&volumes.Host{Root: t.TempDir()}, nil)}}
	pod := onePod("p")
	pod.UID = types.UID("u")
	path, err := m.writeHosts(pod, []string{"10.0.0.7"})
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
		again, err := m.writeHosts(pod, []string{"10.0.0.7"})
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
