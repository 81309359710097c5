// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver/reload"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/durable"
	"github.com/mortise-dev/mortise/internal/lifecycle"
)

// servingFiles are the files of the API server's certificates, as they were read before anything was started.
type servingFiles struct {
	serving.Files
	dir string // of --cert-dir, if it counts; its pair is Default, nil: there is none yet
}

// readServing reads the certificates that the API server presents. Without any the answer is nil: its own alone.
func readServing(o *options.Serving) (*servingFiles, error) {
	f := &servingFiles{}
	var err error
	switch {
	case (o.CertFile == "") != (o.KeyFile == ""):
		return nil, errors.New("--tls-cert-file and --tls-private-key-file: one is of no use without the other")
	case o.CertFile != "":
		if f.Default, err = serving.ReadFilePair(o.CertFile, o.KeyFile); err != nil {
			return nil, fmt.Errorf("--tls-cert-file: %w", err)
		}
	case o.CertDir != "":
		if f.dir, err = filepath.Abs(o.CertDir); err != nil {
			return nil, fmt.Errorf("--cert-dir: %w", err)
		}
		if f.Default, err = readDirectory(f.dir); err != nil {
			return nil, fmt.Errorf("--cert-dir: %w", err)
		}
	}
	for _, text := range o.SNICertKeys {
		pair, err := parseNamedPair(text)
		if err != nil {
			return nil, fmt.Errorf("--tls-sni-cert-key %s: %w", text, err)
		}
		f.Named = append(f.Named, pair)
	}
	if f.Default == nil && f.dir == "" && len(f.Named) == 0 {
		return nil, nil
	}
	return f, nil
}

// directoryFiles are the pair of files in a directory of --cert-dir.
func directoryFiles(dir string) (certFile, keyFile string) {
	return filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")
}

// readDirectory reads the pair in a directory; nil: neither file exists.
func readDirectory(dir string) (*serving.FilePair, error) {
	certFile, keyFile := directoryFiles(dir)
	_, noCert := os.Stat(certFile)
	_, noKey := os.Stat(keyFile)
	switch cert, key := errors.Is(noCert, fs.ErrNotExist), errors.Is(noKey, fs.ErrNotExist); {
	case cert && key:
		return nil, nil
	case cert || key:
		return nil, fmt.Errorf("%s and %s: one is of no use without the other", certFile, keyFile)
	}
	return serving.ReadFilePair(certFile, keyFile)
}

// parseNamedPair reads CERT,KEY[:NAME,NAME...].
func parseNamedPair(text string) (serving.NamedPair, error) {
	files, list, named := strings.Cut(text, ":")
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	if named && len(names) == 0 {
		return serving.NamedPair{}, errors.New("empty names list is not allowed") // upstream's words
	}
	certFile, keyFile, ok := strings.Cut(files, ",")
	if !ok || strings.Contains(keyFile, ",") {
		return serving.NamedPair{}, errors.New("expected comma separated certificate and key file paths") // upstream's words
	}
	pair, err := serving.ReadFilePair(strings.TrimSpace(certFile), strings.TrimSpace(keyFile))
	return serving.NamedPair{FilePair: pair, Names: names}, err
}

// complete makes the choice among the certificates, now that the cluster's own are known. The server writes its own into an empty
// directory of --cert-dir, and writes it again when it has a new one.
func (f *servingFiles) complete(s *settings, material *serving.Material) (*serving.Certificates, error) {
	if f == nil {
		return nil, nil
	}
	if f.dir != "" && (f.Default == nil || f.Default.Certificate().Leaf.CheckSignatureFrom(material.CA.Certificate) == nil) {
		if err := f.write(material); err != nil {
			return nil, fmt.Errorf("--cert-dir: %w", err)
		}
	}
	f.Pods, f.Trusted = s.podCIDRs, len(s.signing.rootCA) > 0
	return serving.NewCertificates(material.Server, f.Files), nil
}

// write writes the server's own certificate into the directory, with the modes that kube-apiserver gives the files.
func (f *servingFiles) write(material *serving.Material) error {
	certFile, keyFile := directoryFiles(f.dir)
	if err := os.MkdirAll(f.dir, 0o755); err != nil { //nolint:gosec // the certificate is for all
		return fmt.Errorf("make certificate directory: %w", err)
	}
	if err := durable.Write(keyFile, 0o600, material.Server.KeyPEM); err != nil {
		return err
	}
	chain := slices.Concat(material.Server.CertPEM, material.CA.CertPEM)
	if err := durable.Write(certFile, 0o644, chain); err != nil {
		return err
	}
	var err error
	f.Default, err = serving.ReadFilePair(certFile, keyFile)
	return err
}

// followServing reads the certificates again when their files change. A bad pair leaves the old one in force.
func followServing(ctx context.Context, c *serving.Certificates, group *lifecycle.Group, log *slog.Logger) {
	if c == nil {
		return
	}
	group.Go(ctx, func(ctx context.Context) {
		reload.Watch(ctx, rereadEvery, log, func() {
			changed, err := c.Reload()
			for _, p := range changed {
				leaf := p.Certificate().Leaf
				log.InfoContext(ctx, "Loaded a new serving certificate", "certFile", p.CertFile, "subject", leaf.Subject, "notAfter", leaf.NotAfter)
			}
			if err != nil {
				log.ErrorContext(ctx, "Could not reload the serving certificates; the old ones stay in force", "error", err)
			}
		}, c.Paths()...)
	})
}

// servingConfigured reports whether the API server has other certificates than its own.
func (c *settings) servingConfigured() bool {
	o := &c.APIServer.Serving
	return o.CertFile != "" || o.CertDir != "" || len(o.SNICertKeys) > 0
}
