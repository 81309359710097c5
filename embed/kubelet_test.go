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

	"github.com/mortise-dev/mortise/embed"
	embednode "github.com/mortise-dev/mortise/embed/node"
	"github.com/mortise-dev/mortise/embed/options"
)

func TestKubeletConfigurationIsChecked(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) options.APIServer {
		path := filepath.Join(dir, "kubelet.yaml")
		if err := os.WriteFile(path, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		return options.APIServer{Node: options.Node{ConfigFile: path}}
	}
	for text, want := range map[string]string{
		"maxpods: 3\n":                                   `unknown field "maxpods"`,
		"qosReserved: {memory: 10%}\n":                   "qosReserved is not supported",
		"tlsCertFile: a\ntlsPrivateKeyFile: b\n":         "read the node's certificate",
		"authentication: {x509: {clientCAFile: none}}\n": "read the node's clients' authorities",
	} {
		s := &embed.Server{Containers: embednode.Containers(), APIServer: write(text)}
		err := s.Start(t.Context())
		if err == nil {
			s.Stop()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	var log bytes.Buffer
	apiserver := write("rotateCertificates: true\n")
	s := &embed.Server{Containers: embednode.Containers(), APIServer: apiserver, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if got := log.String(); !strings.Contains(got, "rotateCertificates is without effect") {
		t.Errorf("log: %s", got)
	}
}
