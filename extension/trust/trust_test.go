// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"crypto/x509"

	"github.com/google/go-cmp/cmp"
)

func TestIssuedCertificateServes(t *testing.T) {
	p, err := Issue("a test", []string{"127.0.0.1", "hook.hooks.svc"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.Authority)
	for _, name := range []string{"", "hook.hooks.svc"} {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name,
			MinVersion: tls.VersionTLS13}}}
		resp, err := c.Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	if _, err := Issue("nobody", nil, time.Now(), time.Hour); err == nil {
		t.Error("issued for no host")
	}
}

// TestRotation lives through two rotations by looking only when it was told to. At each step what is shown, and what was shown until
// now, is trusted.
func TestRotation(t *testing.T) {
	const day = 24 * time.Hour
	start := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	now, names := start, map[string]string{}
	hosts := []string{"hook.hooks.svc"}
	issue := func() (*Pair, error) {
		p, err := Issue("x", hosts, now, Default().Life)
		if err == nil {
			names[string(p.Cert)] = fmt.Sprint("certificate ", len(names)/2+1)
			names[string(p.Authority)] = names[string(p.Cert)]
		}
		return p, err
	}
	var b Bundle
	var got []string
	for range 7 {
		shown := b.Current
		next, again, err := b.Turn(hosts, now, Default(), issue)
		if err != nil {
			t.Fatal(err)
		}
		if shown != nil && !bytes.Contains(next.Trusted, shown.Authority) && shown != next.Current && bytes.Equal(shown.Cert, next.Current.Cert) {
			t.Errorf("day %d: what was shown is not trusted", now.Sub(start)/day)
		}
		if !bytes.Contains(next.Trusted, next.Current.Authority) || shown != nil && next.Current != shown &&
			!bytes.Contains(b.Trusted, next.Current.Authority) {
			t.Errorf("day %d: what is shown was not trusted before", now.Sub(start)/day)
		}
		line := fmt.Sprintf("day %d: %s; trusted", now.Sub(start)/day, names[string(next.Current.Cert)])
		for _, a := range authorities(next.Trusted) {
			line += " " + names[string(a)]
		}
		got = append(got, line)
		same, _, err := next.Turn(hosts, now, Default(), func() (*Pair, error) { t.Error("made one more"); return issue() })
		if err != nil || !bytes.Equal(same.Trusted, next.Trusted) || same.Current != next.Current {
			t.Errorf("a second look changes something: %v", err)
		}
		b, now = next, again
	}
	want := []string{
		"day 0: certificate 1; trusted certificate 1",
		"day 60: certificate 1; trusted certificate 1 certificate 2",
		"day 61: certificate 2; trusted certificate 2 certificate 1",
		"day 62: certificate 2; trusted certificate 2",
		"day 120: certificate 2; trusted certificate 2 certificate 3",
		"day 121: certificate 3; trusted certificate 3 certificate 2",
		"day 122: certificate 3; trusted certificate 3",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestRotationReplacesWhatCannotServe at once, and keeps trusting what was.
func TestRotationReplacesWhatCannotServe(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	hosts := []string{"a.b.svc"}
	issue := func() (*Pair, error) { return Issue("x", hosts, now, Default().Life) }
	good, err := issue()
	if err != nil {
		t.Fatal(err)
	}
	other, err := issue()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*Pair{
		"none": nil, "empty": {}, "another's key": {good.Cert, other.Key, good.Authority},
		"another's authority": {good.Cert, good.Key, other.Authority},
		"no PEM":              {[]byte("x"), []byte("y"), []byte("z")},
	} {
		b, again, err := Bundle{Current: p, Trusted: good.Authority}.Turn(hosts, now, Default(), issue)
		if err != nil || b.Current == p || !b.Current.good(hosts, now) || !bytes.Contains(b.Trusted, good.Authority) || !again.After(now) {
			t.Errorf("%s: %v, again %s, %+v", name, err, again, b)
		}
	}
	more := append(hosts, "c.b.svc")
	if b, _, err := (Bundle{Current: good}).Turn(more, now, Default(),
		func() (*Pair, error) { return Issue("x", more, now, time.Hour) }); err != nil || b.Current == good || !b.Current.good(more, now) {
		t.Errorf("another host: %v", err)
	}
	ended := now.Add(91 * 24 * time.Hour)
	if b, _, err := (Bundle{Current: good}).Turn(hosts, ended, Default(),
		func() (*Pair, error) { return Issue("x", hosts, ended, time.Hour) }); err != nil || b.Current == good {
		t.Errorf("ended: %v", err)
	}
}
