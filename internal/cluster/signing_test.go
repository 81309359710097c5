// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/embed/options"
)

// writeAuthority writes a new authority over the files.
func writeAuthority(t *testing.T, files options.SigningFiles) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{files.CertFile: {Type: "CERTIFICATE", Bytes: der},
		files.KeyFile: {Type: "EC PRIVATE KEY", Bytes: encoded}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSigning: each signer has the authority of its files, which is taken anew when they change and are good.
func TestSigning(t *testing.T) {
	dir := t.TempDir()
	files := options.SigningFiles{CertFile: filepath.Join(dir, "ca.crt"), KeyFile: filepath.Join(dir, "ca.key")}
	writeAuthority(t, files)
	s, err := readSigning(options.Signing{KubeletServing: files, RootCAFile: files.CertFile})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.of) != 1 || s.of["kubernetes.io/kubelet-serving"] == nil || len(s.rootCA) == 0 {
		t.Fatalf("%d signers have files, %d bytes of certificates to trust", len(s.of), len(s.rootCA))
	}
	a := s.of["kubernetes.io/kubelet-serving"]
	first := a.held.Load()
	if err := os.WriteFile(files.CertFile, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.load(); err == nil || a.held.Load() != first {
		t.Errorf("a bad file: %v", err)
	}
	writeAuthority(t, files)
	if changed, err := a.load(); err != nil || !changed || a.held.Load() == first {
		t.Errorf("a new authority: %v, %v", changed, err)
	}
	if s, err = readSigning(options.Signing{All: files}); err != nil || len(s.of) != 4 {
		t.Errorf("one authority for all: %v", err)
	}
	for want, o := range map[string]options.Signing{
		"--cluster-signing-cert-file: read certificate: ": {All: options.SigningFiles{CertFile: filepath.Join(dir, "none"),
			KeyFile: files.KeyFile}},
		"--cluster-signing-legacy-unknown-cert-file: ": {LegacyUnknown: options.SigningFiles{CertFile: files.KeyFile,
			KeyFile: files.KeyFile}},
		"error reading root-ca-file at " + filepath.Join(dir, "none"):    {RootCAFile: filepath.Join(dir, "none")},
		"error parsing root-ca-file at " + files.KeyFile + ": data does": {RootCAFile: files.KeyFile},
	} {
		if _, err := readSigning(o); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
