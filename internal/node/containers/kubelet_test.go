// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/internal/node"
)

// TestRuntimeSocketTwice: the flag and the kubelet configuration may both name the runtime's socket, each in its spelling.
func TestRuntimeSocketTwice(t *testing.T) {
	for _, c := range []struct {
		flag, endpoint string
		want           string // in the error; empty: none
	}{
		{"", "unix:///run/x.sock", ""},
		{"/run/x.sock", "", ""},
		{"/run/x.sock", "unix:///run/x.sock", ""},
		{"unix:///run/x.sock", "/run/x.sock", ""},
		{"/run//x.sock", "unix:///run/x.sock", ""},
		{
			"/run/y.sock", "unix:///run/x.sock",
			"--cri-socket /run/y.sock and containerRuntimeEndpoint unix:///run/x.sock of the KubeletConfiguration differ",
		},
	} {
		file := filepath.Join(t.TempDir(), "kubelet.yaml")
		text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
		if c.endpoint != "" {
			text += fmt.Sprintf("containerRuntimeEndpoint: %s\nimageServiceEndpoint: %s\n", c.endpoint,
				strings.TrimPrefix(c.endpoint, "unix://"))
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o := &node.Options{CRISocket: c.flag, Logger: slog.New(slog.DiscardHandler)}
		o.Settings.ConfigFile = file
		_, err := checkKubelet(o)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q and %q: %v, want %q", c.flag, c.endpoint, err, c.want)
		}
	}
}
