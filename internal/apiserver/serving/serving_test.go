// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// loader returns a function that loads the material of a directory for some hosts, at the time that now holds.
func loader(t *testing.T, dir string, now *time.Time) func(hosts ...string) *Material {
	t.Helper()
	return func(hosts ...string) *Material {
		t.Helper()
		m, err := LoadOrCreate(dir, hosts, Options{Now: func() time.Time { return *now }})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
}

func TestMaterialIsReusedAndRenewed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	load := loader(t, dir, &now)
	first := load("127.0.0.1", "localhost")
	again := load("localhost")
	if !bytes.Equal(first.Server.CertPEM, again.Server.CertPEM) || !first.ServiceAccount.Equal(again.ServiceAccount) {
		t.Error("material was not reused")
	}
	other := load("localhost", "10.96.0.1")
	if bytes.Equal(first.Server.CertPEM, other.Server.CertPEM) || !bytes.Equal(first.CA.CertPEM, other.CA.CertPEM) {
		t.Error("a new host must renew the server's certificate, and only it")
	}
	now = now.Add(leafLife * 2 / 3).Add(-time.Hour)
	if m := load("localhost"); !bytes.Equal(m.Admin.CertPEM, first.Admin.CertPEM) {
		t.Error("a certificate must not be renewed before the last third of its life")
	}
	now = now.Add(2 * time.Hour)
	late := load("localhost")
	if bytes.Equal(late.Admin.CertPEM, first.Admin.CertPEM) || !bytes.Equal(first.CA.CertPEM, late.CA.CertPEM) {
		t.Error("leaves near their end must be renewed under the same authority")
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if i, err := f.Info(); err != nil || i.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, error %v", f.Name(), i.Mode(), err)
		}
	}
}

// An authority outlives any clock: all that trusts it would be lost with it.
func TestAuthoritiesOutliveTheClock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	load := loader(t, dir, &now)
	first := load("localhost")
	made := now
	for _, at := range []time.Time{time.Unix(0, 0), made.Add(-time.Hour), made.AddDate(9, 6, 0), made.AddDate(11, 0, 0)} {
		now = at
		m := load("localhost", "10.0.0."+strconv.Itoa(at.Year()%100)) // makes the server's certificate anew
		if !bytes.Equal(m.CA.CertPEM, first.CA.CertPEM) || !bytes.Equal(m.FrontProxyCA.CertPEM, first.FrontProxyCA.CertPEM) {
			t.Errorf("%v: the authorities were replaced", at)
		}
		if c := m.Server.Certificate; !c.NotBefore.Equal(m.CA.Certificate.NotBefore) || c.NotAfter.Before(c.NotBefore.Add(leafLife)) {
			t.Errorf("%v: the server's certificate is valid from %v to %v", at, c.NotBefore, c.NotAfter)
		}
		if timely := at.After(m.CA.Certificate.NotBefore) && at.Before(m.CA.Certificate.NotAfter); (m.Timely(at) == nil) != timely {
			t.Errorf("%v: %v", at, m.Timely(at))
		}
	}
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadOrCreate(dir, nil, Options{}); err == nil || !strings.Contains(err.Error(), "ca.crt: no key of it") {
		t.Errorf("without the authority's key: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "ca.crt")); err != nil || !bytes.Equal(b, first.CA.CertPEM) {
		t.Errorf("the authority's certificate was replaced, or %v", err)
	}
}

func TestKubeconfigLoads(t *testing.T) {
	m, err := LoadOrCreate(t.TempDir(), []string{"localhost"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Kubeconfig(Endpoint{URL: "https://localhost:6443", Authorities: m.CA.CertPEM}, m.Admin)
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientcmd.RESTConfigFromKubeConfig(b)
	if err != nil {
		t.Fatal(err)
	}
	if c.Host != "https://localhost:6443" || !bytes.Equal(c.CAData, m.CA.CertPEM) || !bytes.Equal(c.KeyData, m.Admin.KeyPEM) {
		t.Errorf("kubeconfig says %v", c)
	}
}
