// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"sync/atomic"
)

// FilePair is a certificate and its key in two PEM files, which an operator may replace. One goroutine calls Reload; Certificate
// may be called by any.
type FilePair struct {
	CertFile, KeyFile string

	content []byte // of both files, as they were read last
	failure string // of the last Reload
	held    atomic.Pointer[tls.Certificate]
}

// ReadFilePair reads the files. The key may be PKCS #1, PKCS #8 or SEC 1.
func ReadFilePair(certFile, keyFile string) (*FilePair, error) {
	p := &FilePair{CertFile: certFile, KeyFile: keyFile}
	_, err := p.Reload()
	return p, err
}

// Certificate is the last good pair of the files.
func (p *FilePair) Certificate() *tls.Certificate { return p.held.Load() }

// Reload reads the files again and reports whether they have another good pair. A bad pair leaves the old one in force; the same error
// is returned once.
func (p *FilePair) Reload() (bool, error) {
	changed, err := p.read()
	if err == nil {
		p.failure = ""
		return changed, nil
	}
	if err.Error() == p.failure {
		return false, nil
	}
	p.failure = err.Error()
	return false, err
}

func (p *FilePair) read() (bool, error) {
	cert, err := os.ReadFile(p.CertFile)
	if err != nil {
		return false, fmt.Errorf("read certificate: %w", err)
	}
	key, err := os.ReadFile(p.KeyFile)
	if err != nil {
		return false, fmt.Errorf("read key: %w", err)
	}
	content := append(append(bytes.Clone(cert), 0), key...)
	if bytes.Equal(content, p.content) && p.failure == "" {
		return false, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return false, fmt.Errorf("%s and %s: %w", p.CertFile, p.KeyFile, err)
	}
	changed := !bytes.Equal(content, p.content)
	p.content = content
	p.held.Store(&pair)
	return changed, nil
}
