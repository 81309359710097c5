// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// kernel makes files as the kernel has them.
func kernel(t *testing.T) (root string, read func() map[string]string) {
	t.Helper()
	root = t.TempDir()
	files := map[string]string{
		hashsize:                      "65536",
		sysctls + "/nf_conntrack_max": "262144",
		sysctls + "/nf_conntrack_tcp_timeout_established": "432000",
		sysctls + "/nf_conntrack_tcp_timeout_close_wait":  "60",
		sysctls + "/nf_conntrack_tcp_be_liberal":          "0",
		sysctls + "/nf_conntrack_udp_timeout":             "30",
		sysctls + "/nf_conntrack_udp_timeout_stream":      "120",
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root, func() map[string]string {
		out := map[string]string{}
		for name := range files {
			if text, err := os.ReadFile(filepath.Join(root, name)); err == nil {
				out[strings.TrimPrefix(filepath.Base(name), "nf_conntrack_")] = strings.TrimSpace(string(text))
			}
		}
		return out
	}
}

func TestWrite(t *testing.T) {
	usual := map[string]string{"hashsize": "65536", "max": "262144", "tcp_timeout_established": "432000", "tcp_timeout_close_wait": "60",
		"tcp_be_liberal": "0", "udp_timeout": "30", "udp_timeout_stream": "120"}
	for name, c := range map[string]struct {
		settings Settings
		want     map[string]string // beside the usual ones
	}{
		"nothing": {},
		"all": {Settings{Max: 400000, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour, UDPUnreplied: 10 * time.Second,
			UDPAssured: 3 * time.Minute, TCPBeLiberal: true}, map[string]string{"max": "400000", "hashsize": "100000",
			"tcp_timeout_established": "86400", "tcp_timeout_close_wait": "3600", "tcp_be_liberal": "1", "udp_timeout": "10",
			"udp_timeout_stream": "180"}},
		"fewer connections": {Settings{Max: 131072}, map[string]string{"max": "131072"}},
		"parts of seconds": {Settings{UDPUnreplied: 100 * time.Millisecond, UDPAssured: 1500 * time.Millisecond},
			map[string]string{"udp_timeout": "1", "udp_timeout_stream": "2"}},
		"the same once more": {Settings{Max: 262144, UDPUnreplied: 30 * time.Second}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			root, read := kernel(t)
			if err := c.settings.Write(root); err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			for k, v := range usual {
				want[k] = v
			}
			for k, v := range c.want {
				want[k] = v
			}
			if diff := cmp.Diff(want, read()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAllOrNone(t *testing.T) {
	root, read := kernel(t)
	if err := os.Remove(filepath.Join(root, sysctls, "nf_conntrack_udp_timeout")); err != nil {
		t.Fatal(err)
	}
	before := read()
	err := Settings{Max: 400000, TCPEstablished: time.Hour, UDPUnreplied: time.Minute, TCPBeLiberal: true}.Write(root)
	if err == nil || !strings.Contains(err.Error(), "set proc/sys/net/netfilter/nf_conntrack_udp_timeout to 60: ") ||
		!errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff(before, read()); diff != "" {
		t.Error(diff)
	}
}

// TestTheKernelsOwn writes to a network namespace of the test's own.
func TestTheKernelsOwn(t *testing.T) {
	lab := netlab.New(t)
	read := func(name string) (text string) {
		t.Helper()
		lab.Node.Do(func() error {
			b, err := os.ReadFile("/" + sysctls + "/nf_conntrack_" + name)
			text = strings.TrimSpace(string(b))
			return err
		})
		return text
	}
	want := Settings{TCPEstablished: 23 * time.Hour, TCPCloseWait: 50 * time.Second, UDPUnreplied: 11 * time.Second,
		UDPAssured: 111 * time.Second, TCPBeLiberal: true}
	lab.Node.Do(func() error { return Apply(t.Context(), want) })
	got := map[string]string{}
	for _, name := range []string{"tcp_timeout_established", "tcp_timeout_close_wait", "udp_timeout", "udp_timeout_stream", "tcp_be_liberal"} {
		got[name] = read(name)
	}
	if diff := cmp.Diff(map[string]string{"tcp_timeout_established": "82800", "tcp_timeout_close_wait": "50", "udp_timeout": "11",
		"udp_timeout_stream": "111", "tcp_be_liberal": "1"}, got); diff != "" {
		t.Error(diff)
	}
	// A number that the kernel does not take comes after one that it takes.
	err := lab.Node.Try(func() error {
		return Settings{TCPEstablished: time.Hour, TCPCloseWait: 1 << 62}.Write("/")
	})
	if err == nil || read("tcp_timeout_established") != "82800" {
		t.Errorf("error %v, and the first is %s", err, read("tcp_timeout_established"))
	}
}
