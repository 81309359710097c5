// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dex

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/test/programs"
)

// limit is how long anything may take.
const limit = programs.Limit

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, programs.Mortise, programs.Program{In: ".", Name: "dex", Package: "github.com/dexidp/dex/cmd/dex"}))
}

// authority writes a CA and a certificate of 127.0.0.1 with its key.
func authority(t *testing.T, dir string) (ca, cert, key string) {
	t.Helper()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	parent := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "our CA"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "dex"}, NotBefore: parent.NotBefore, NotAfter: parent.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	write := func(name, kind string, der []byte, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	der, err := x509.CreateCertificate(rand.Reader, parent, parent, &caKey.PublicKey, caKey)
	ca = write("ca.crt", "CERTIFICATE", der, err)
	der, err = x509.CreateCertificate(rand.Reader, leaf, parent, &leafKey.PublicKey, caKey)
	cert = write("dex.crt", "CERTIFICATE", der, err)
	der, err = x509.MarshalECPrivateKey(leafKey)
	return ca, cert, write("dex.key", "EC PRIVATE KEY", der, err)
}

// issuer is a dex.
type issuer struct {
	dir, address  string
	ca, cert, key string
}

func (i *issuer) url() string { return "https://" + i.address + "/dex" }

// start runs it with tokens that live for so long. Its keys are new ones each time.
func (i *issuer) start(t *testing.T, life time.Duration) *programs.Process {
	t.Helper()
	const password = "$2a$10$2b2cU8CPhOTaGrs1HRQuAueS7JTT5ZHsHSzYiFPm1leZck7Mc8T4W" // password
	config := map[string]any{
		"issuer": i.url(), "storage": map[string]any{"type": "memory"},
		"web":    map[string]any{"https": i.address, "tlsCert": i.cert, "tlsKey": i.key},
		"oauth2": map[string]any{"passwordConnector": "local", "grantTypes": []string{"password", "refresh_token"}},
		"expiry": map[string]any{"idTokens": life.String()}, "enablePasswordDB": true,
		"staticClients": []any{
			map[string]any{"id": "mortise", "name": "mortise", "secret": "s", "redirectURIs": []string{"http://localhost"}},
			map[string]any{"id": "other", "name": "other", "secret": "s", "redirectURIs": []string{"http://localhost"}},
		},
		"staticPasswords": []any{
			map[string]any{"email": "alice@example.com", "hash": password, "username": "alice", "userID": "1", "groups": []string{"developers"}},
			map[string]any{"email": "bob@example.com", "hash": password, "username": "bob", "userID": "2"},
		},
	}
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(i.dir, "dex-"+strings.ReplaceAll(i.address, ":", "-")+".json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	p := programs.Start(t, nil, "dex", "serve", file)
	p.Await(regexp.MustCompile(`listening on.*https`))
	p.Listening(i.address)
	return p
}

// login is the ID token of a user for a client, by the password grant, and the refresh token.
func (i *issuer) login(t *testing.T, client, user string) (id, refresh string) {
	t.Helper()
	pem, err := os.ReadFile(i.ca)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, i.url()+"/token", strings.NewReader(url.Values{
		"grant_type": {"password"}, "username": {user + "@example.com"}, "password": {"password"},
		"scope": {"openid email groups offline_access"},
	}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.SetBasicAuth(client, "s")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := (&http.Client{Transport: transport, Timeout: limit}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	var said struct {
		ID      string `json:"id_token"`
		Refresh string `json:"refresh_token"`
	}
	if err := json.Unmarshal(body, &said); err != nil || said.ID == "" {
		t.Fatalf("log in as %s: %s %s", user, resp.Status, body)
	}
	return said.ID, said.Refresh
}
