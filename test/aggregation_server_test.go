// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// aggregatedServer has the test's binary be an aggregated API server: CERTIFICATE, KEY and ADDRESS, with spaces between.
const aggregatedServer = "MORTISE_TEST_AGGREGATED_SERVER"

// runAggregatedServer serves fail.example.com/v1 until it is killed. POST /mode/NAME has it misbehave.
func runAggregatedServer() int {
	args := strings.Fields(os.Getenv(aggregatedServer))
	var mode atomic.Value
	mode.Store("good")
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to, ok := strings.CutPrefix(r.URL.Path, "/mode/"); ok {
			mode.Store(to)
			return
		}
		path := strings.TrimSuffix(r.URL.Path, "/")
		tells := path == "/apis" || strings.HasPrefix(path, "/apis/fail.example.com") && strings.Count(path, "/") <= 3 ||
			strings.HasPrefix(path, "/openapi/")
		switch m := mode.Load().(string); {
		case m == "broken":
			http.Error(w, "broken", http.StatusInternalServerError)
			return
		case m == "endless" && tells:
			w.Header().Set("Content-Type", "application/json")
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, strings.Repeat(" ", 4096)); err != nil {
					return
				}
			}
			return
		case m == "garbage" && tells:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "\x00\xff}{not JSON")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case path == "/apis/fail.example.com/v1":
			_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"fail.example.com/v1","resources":[{"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["list","get","watch","delete"]}]}`)
		case path == "/apis/fail.example.com/v1/namespaces/default/things" && r.URL.Query().Get("watch") != "":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case strings.HasSuffix(path, "/things"):
			_, _ = io.WriteString(w, `{"kind":"ThingList","apiVersion":"fail.example.com/v1","metadata":{"resourceVersion":"1"},"items":[]}`)
		default:
			w.Header().Set("Content-Type", "text/plain")
			http.NotFound(w, r)
		}
	})
	l, err := net.Listen("tcp", args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(l.Addr().String())
	s := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	fmt.Fprintln(os.Stderr, s.ServeTLS(l, args[0], args[1]))
	return 1
}

// behind is an aggregated API server in a process of its own.
type behind struct {
	t       *testing.T
	command *exec.Cmd
	address string
	client  *http.Client
}

// startBehind starts one with a certificate; an address of "" is a free port.
func startBehind(t *testing.T, cert, key, address string) *behind {
	t.Helper()
	if address == "" {
		address = "127.0.0.1:0"
	}
	b := &behind{t: t, command: exec.Command(os.Args[0]), client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}}
	b.command.Env = append(os.Environ(), aggregatedServer+"="+strings.Join([]string{cert, key, address}, " "))
	b.command.Stderr = os.Stderr
	out, err := b.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("start aggregated server: %v", err)
	}
	b.address = strings.TrimSpace(line)
	return b
}

// kill ends it at once.
func (b *behind) kill() {
	_ = b.command.Process.Kill()
	_ = b.command.Wait() // it was killed
}

// mode has it misbehave.
func (b *behind) mode(name string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(context.WithoutCancel(b.t.Context()), http.MethodPost, "https://"+b.address+"/mode/"+name, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	_ = resp.Body.Close()
}

// issuer signs certificates of a test.
type issuer struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newIssuer(t *testing.T, name string) *issuer {
	t.Helper()
	i := &issuer{t: t, dir: t.TempDir()}
	i.cert, i.key, i.pem = i.sign(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return i
}

func (i *issuer) sign(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	parent, by := i.cert, i.key
	if parent == nil {
		parent, by = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		i.t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		i.t.Fatal(err)
	}
	return signed, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// server writes a serving certificate that ends at a time, and its key.
func (i *issuer) server(host string, until time.Time) (cert, key string) {
	i.t.Helper()
	_, k, certPEM := i.sign(&x509.Certificate{
		SerialNumber: big.NewInt(until.UnixNano()), DNSNames: []string{host}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		i.t.Fatal(err)
	}
	name := filepath.Join(i.dir, fmt.Sprint(until.UnixNano()))
	for file, data := range map[string][]byte{name + ".crt": certPEM,
		name + ".key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			i.t.Fatal(err)
		}
	}
	return name + ".crt", name + ".key"
}
