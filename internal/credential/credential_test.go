// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAnswer(t *testing.T) {
	until := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct{ name, info, want, error string }{
		{name: "nobody asks", want: `{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":false},"status":{"expirationTimestamp":"2026-11-20T12:00:00Z","token":"t"}}`},
		{name: "v1", info: `{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":true}}`,
			want: `"apiVersion":"client.authentication.k8s.io/v1",`},
		{name: "v1beta1", info: `{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1"}`,
			want: `"apiVersion":"client.authentication.k8s.io/v1beta1",`},
		{name: "older", info: `{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1alpha1"}`,
			error: `version "client.authentication.k8s.io/v1alpha1": want`},
		{name: "something else", info: `{"kind":"Pod","apiVersion":"v1"}`, error: `kind "Pod": want ExecCredential`},
		{name: "no JSON", info: `x`, error: "read KUBERNETES_EXEC_INFO"},
	} {
		var out bytes.Buffer
		err := Answer(&out, c.info, Token{"t", until})
		if c.error != "" {
			if err == nil || !strings.Contains(err.Error(), c.error) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: %v %s", c.name, err, out.String())
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(`{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1"}`)
	f.Fuzz(func(t *testing.T, info string) {
		var out bytes.Buffer
		if err := Answer(&out, info, Token{Token: "t"}); err == nil && !json.Valid(out.Bytes()) {
			t.Fatalf("%q gave %q", info, out.String())
		}
	})
}

// source counts.
type source struct {
	n     int
	life  time.Duration
	error error
	now   func() time.Time
}

func (s *source) Name() string { return "s" }
func (s *source) Get(context.Context) (Token, error) {
	if s.error != nil {
		return Token{}, s.error
	}
	s.n++
	return Token{fmt.Sprintf("t%d", s.n), s.now().Add(s.life)}, nil
}

func TestCache(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := &source{life: time.Hour, now: clock}
	get := func(client int, want string) {
		t.Helper()
		c := Cache{Dir: dir, Now: clock, Client: client}
		got, notKept, err := c.Get(t.Context(), s)
		if err != nil || notKept != nil || got.Token != want {
			t.Fatalf("client %d got %v, %v, %v, want %s", client, got, notKept, err, want)
		}
	}
	get(1, "t1")
	get(2, "t1")
	get(2, "t2") // it came back: the first was refused
	get(3, "t2")
	now = now.Add(58 * time.Minute)
	get(4, "t2")
	now = now.Add(61 * time.Second)
	get(5, "t3") // the second ends in less than a minute
	info, err := os.Stat(filepath.Join(dir, "s.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "s.json"), []byte("{broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	get(6, "t4")
	s.error = errors.New("the issuer is down")
	get(7, "t4") // nobody is asked
	c := Cache{Dir: dir, Now: clock, Client: 7}
	if _, _, err := c.Get(t.Context(), s); !errors.Is(err, s.error) {
		t.Errorf("error %v", err)
	}
	// it is bounded
	s.error = nil
	for n := range 3 * maxTokens {
		if err := (&Cache{Dir: dir, Now: clock}).write(filepath.Join(dir, fmt.Sprintf("x%d.json", n)),
			kept{Token: Token{"t", now.Add(time.Hour)}, Got: now}); err != nil {
			t.Fatal(err)
		}
	}
	get(7, "t5")
	found, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(found) > maxTokens {
		t.Errorf("%d tokens are kept, %v", len(found), err)
	}
	// where nothing can be kept, tokens are given out all the same
	if err := os.WriteFile(filepath.Join(t.TempDir(), "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	blocked := Cache{Dir: filepath.Join(dir, "s.json", "x"), Now: clock}
	if got, notKept, err := blocked.Get(t.Context(), s); err != nil || notKept == nil || got.Token == "" {
		t.Errorf("%v %v %v", got, notKept, err)
	}
}

func jwt(until time.Time) string {
	b, _ := json.Marshal(map[string]any{"exp": until.Unix()})
	return "e30." + base64.RawURLEncoding.EncodeToString(b) + ".x"
}

func TestFile(t *testing.T) {
	until := time.Unix(1_800_000_000, 0)
	file := filepath.Join(t.TempDir(), "token")
	for _, c := range []struct {
		text, error string
		until       time.Time
	}{
		{text: jwt(until) + "\n", until: until}, {text: "opaque"}, {text: "a.b.c"}, {text: " \n", error: "is empty"},
		{text: "two tokens", error: "holds more than a token"},
	} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := (&File{file}).Get(t.Context())
		if c.error != "" {
			if err == nil || !strings.Contains(err.Error(), c.error) {
				t.Errorf("%q: %v", c.text, err)
			}
			continue
		}
		if err != nil || got.Token != strings.TrimSpace(c.text) || !got.Expires.Equal(c.until) {
			t.Errorf("%q: %v %v", c.text, got, err)
		}
	}
	if _, err := (&File{file + "-none"}).Get(t.Context()); err == nil {
		t.Error("no file")
	}
}

func TestOIDC(t *testing.T) {
	until := time.Now().Add(time.Hour).Truncate(time.Second)
	var answer func(w http.ResponseWriter, refresh string)
	var asked int
	var issuer *httptest.Server
	issuer = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/.well-known/openid-configuration" {
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": issuer.URL, "token_endpoint": issuer.URL + "/token"})
			return
		}
		asked++
		if id, secret, _ := r.BasicAuth(); id != "ci" || secret != "s%2F" || r.FormValue("grant_type") != "refresh_token" {
			t.Errorf("asked as %s %s for %s", id, secret, r.FormValue("grant_type"))
		}
		answer(w, r.FormValue("refresh_token"))
	}))
	defer issuer.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	o := &OIDC{
		Issuer: issuer.URL, ClientID: "ci", ClientSecretFile: write("secret", "s/\n"), RefreshTokenFile: write("refresh", "r1\n"),
		CAFile: write("ca", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw}))),
	}
	answer = func(w http.ResponseWriter, refresh string) {
		if refresh != "r1" {
			t.Errorf("refresh token %q", refresh)
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"id_token": jwt(until), "refresh_token": "r2"})
	}
	got, err := o.Get(t.Context())
	if err != nil || got.Token != jwt(until) || !got.Expires.Equal(until) {
		t.Fatalf("%v %v", got, err)
	}
	if b, err := os.ReadFile(o.RefreshTokenFile); err != nil || string(b) != "r2\n" {
		t.Errorf("the new refresh token: %q %v", b, err)
	}
	if info, err := os.Stat(o.RefreshTokenFile); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	for _, c := range []struct {
		answer func(w http.ResponseWriter, refresh string)
		error  string
	}{
		{func(w http.ResponseWriter, _ string) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"error":"invalid_grant","error_description":"Refresh token is invalid"}`))
		}, "400 Bad Request: invalid_grant Refresh token is invalid"},
		{func(w http.ResponseWriter, _ string) { http.Error(w, "x", http.StatusBadGateway) }, "502 Bad Gateway"},
		{func(w http.ResponseWriter, _ string) { _, _ = w.Write([]byte("x")) }, "read answer"},
		{func(w http.ResponseWriter, _ string) { _, _ = w.Write([]byte(`{"access_token":"x"}`)) }, "has no id_token"},
	} {
		answer = c.answer
		if _, err := o.Get(t.Context()); err == nil || !strings.Contains(err.Error(), c.error) || strings.Contains(err.Error(), "r2") {
			t.Errorf("error %v, want %s", err, c.error)
		}
		if b, err := os.ReadFile(o.RefreshTokenFile); err != nil || string(b) != "r2\n" {
			t.Errorf("the refresh token was lost: %q %v", b, err)
		}
	}
	for name, bad := range map[string]*OIDC{
		"plain":     {Issuer: "http://x"},
		"untrusted": {Issuer: issuer.URL, RefreshTokenFile: o.RefreshTokenFile},
		"no file":   {Issuer: issuer.URL, CAFile: o.CAFile, RefreshTokenFile: filepath.Join(dir, "none")},
		"no CA":     {Issuer: issuer.URL, CAFile: o.RefreshTokenFile},
	} {
		if _, err := bad.Get(t.Context()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
