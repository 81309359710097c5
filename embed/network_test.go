// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/embed"
	embednode "github.com/mortise-dev/mortise/embed/node"
	"github.com/mortise-dev/mortise/embed/options"
)

func TestNodePortAddressesAreChecked(t *testing.T) {
	for text, wrong := range map[string]bool{"eth0": true, "10.0.0.0/8,10.0.0.1": true, "primary": false, "10.0.0.0/8,fd00::/8": false} {
		t.Run(text, func(t *testing.T) {
			var o options.APIServer
			f := pflag.NewFlagSet("up", pflag.ContinueOnError)
			o.AddFlags(f)
			if err := f.Parse([]string{"--nodeport-addresses", text}); err != nil {
				t.Fatal(err)
			}
			s := &embed.Server{Containers: embednode.Containers(), Node: embed.NodeNone, Controllers: []string{"none"}, APIServer: o}
			err := s.Start(t.Context())
			if err == nil {
				if err := s.Stop(); err != nil {
					t.Error(err)
				}
			}
			if wrong != (err != nil) || err != nil && !strings.Contains(err.Error(), "is neither a prefix nor primary") {
				t.Errorf("start says %v", err)
			}
		})
	}
}

func TestAProxysFileIsChecked(t *testing.T) {
	for text, want := range map[string]string{
		"mode: ipvs":     "mode ipvs is not supported",
		"mode: userland": `KubeProxyConfiguration.Mode.ProxyMode: Invalid value: "userland"`,
	} {
		s := &embed.Server{Containers: embednode.Containers(), Node: embed.NodeNone, Controllers: []string{"none"}}
		s.APIServer.Network.ProxyConfigFile = proxyFile(t, text)
		err := s.Start(t.Context())
		if err == nil {
			s.Stop()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	var log bytes.Buffer
	s := &embed.Server{Containers: embednode.Containers(), Node: embed.NodeNone, Controllers: []string{"none"},
		Logger: slog.New(slog.NewTextHandler(&log, nil))}
	s.APIServer.Network.ProxyConfigFile = proxyFile(t, "oomScoreAdj: -500\nunknown: 1")
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"oomScoreAdj is without effect", "Using lenient decoding as strict decoding failed"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is missing in the log: %s", want, log.String())
		}
	}
}

func proxyFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.conf")
	text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + text + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
