// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serverjoin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/bootstraptoken"
)

func FuzzParse(f *testing.F) {
	f.Add("sha256:" + strings.Repeat("0a", 32) + "::abcdef.0123456789abcdef")
	f.Add("abcdef.0123456789abcdef")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(token.String()); err != nil || again != token {
			t.Errorf("%q is read as %v, and that as %v, %v", text, token, again, err)
		}
	})
}

// TestBundle: what one server reads another writes, unless it is of another cluster or its keys do not fit.
func TestBundle(t *testing.T) {
	dir := t.TempDir()
	here, there := filepath.Join(dir, "here"), filepath.Join(dir, "there")
	m, err := serving.LoadOrCreate(here, nil, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	encryption := filepath.Join(dir, "encryption")
	if err := os.WriteFile(encryption, []byte("kind: EncryptionConfiguration"), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := serving.ReadShared(here, encryption)
	if err != nil {
		t.Fatal(err)
	}
	b := Bundle(all)
	hash := bootstraptoken.Hash(m.CA.Certificate)
	if err := b.check(hash); err != nil {
		t.Fatal(err)
	}
	if err := b.check("sha256:" + strings.Repeat("0", 64)); err == nil {
		t.Error("a CA of another cluster is good")
	}
	swapped := Bundle{}
	for name, text := range b {
		swapped[name] = text
	}
	swapped[caKey] = b[proxyKey]
	if err := swapped.check(hash); err == nil {
		t.Error("a key of another certificate is good")
	}
	swapped[caKey], swapped[accountsKey] = b[caKey], []byte("none")
	if err := swapped.check(hash); err == nil {
		t.Error("no key of service accounts is good")
	}
	if err := b.write(there); err != nil {
		t.Fatal(err)
	}
	if again, err := serving.ReadShared(there, Encryption(there)); err != nil || Bundle(again).check(hash) != nil || len(again) != len(b) {
		t.Errorf("written and read: %v, %v", again, err)
	}
	if err := b.write(there); err == nil {
		t.Error("a directory with keys is written over")
	}
	if err := os.Remove(filepath.Join(here, accountsKey)); err != nil {
		t.Fatal(err)
	}
	if _, err := serving.ReadShared(here, ""); err == nil || !strings.Contains(err.Error(), accountsKey) {
		t.Errorf("a server without its key: %v", err)
	}
	if Encryption(here) != "" {
		t.Error("there is an EncryptionConfiguration")
	}
}
