// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/mortise-dev/mortise/internal/apiserver/reload"
)

// rereadEvery is the interval at which files are read again without a file event.
const rereadEvery = time.Minute

// Bundle is a set of CA certificates that can change: that of a file.
type Bundle struct {
	path string // empty: they do not change
	held atomic.Pointer[held]
	told []func()
}

type held struct {
	pem   []byte
	certs []*x509.Certificate
	pool  *x509.CertPool
}

// LoadBundle reads PEM certificates from a file.
func LoadBundle(path string) (*Bundle, error) {
	b := &Bundle{path: path}
	if _, err := b.load(); err != nil {
		return nil, err
	}
	return b, nil
}

// NewBundle returns a bundle that does not change.
func NewBundle(pem []byte) (*Bundle, error) {
	h, err := parseBundle(pem)
	if err != nil {
		return nil, err
	}
	b := &Bundle{}
	b.held.Store(h)
	return b, nil
}

func parseBundle(pem []byte) (*held, error) {
	certs, err := cert.ParseCertsPEM(pem)
	if err != nil {
		return nil, fmt.Errorf("parse certificates: %w", err)
	}
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return &held{pem: pem, certs: certs, pool: pool}, nil
}

// load reads the file again and reports whether its contents changed.
func (b *Bundle) load() (bool, error) {
	pem, err := os.ReadFile(b.path)
	if err != nil {
		return false, fmt.Errorf("read certificates: %w", err)
	}
	if old := b.held.Load(); old != nil && bytes.Equal(old.pem, pem) {
		return false, nil
	}
	h, err := parseBundle(pem)
	if err != nil {
		return false, fmt.Errorf("%s: %w", b.path, err)
	}
	b.held.Store(h)
	return true, nil
}

// Pool returns the certificates. It returns the same pool until they change.
func (b *Bundle) Pool() *x509.CertPool { return b.held.Load().pool }

// PEM returns the certificates as they were read.
func (b *Bundle) PEM() []byte { return b.held.Load().pem }

// Overlaps reports whether two bundles have a CA in common.
func (b *Bundle) Overlaps(with *Bundle) bool {
	for _, c := range b.held.Load().certs {
		for _, d := range with.held.Load().certs {
			if c.Equal(d) {
				return true
			}
		}
	}
	return false
}

// OnChange registers f, which is called after each change of the certificates. OnChange must be called before Run.
func (b *Bundle) OnChange(f func()) { b.told = append(b.told, f) }

// Run reads the file again when it changes, until ctx ends. An invalid file leaves the certificates unchanged.
func (b *Bundle) Run(ctx context.Context, log *slog.Logger) {
	if b.path == "" {
		<-ctx.Done()
		return
	}
	reload.Watch(ctx, rereadEvery, log, func() {
		switch changed, err := b.load(); {
		case err != nil:
			log.ErrorContext(ctx, "Could not reload certificate authorities, keeping the previous ones", "file", b.path, "error", err)
		case changed:
			log.InfoContext(ctx, "Reloaded certificate authorities", "file", b.path)
			for _, f := range b.told {
				f()
			}
		}
	}, b.path)
}
