// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package join

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/mortise-dev/mortise/internal/bootstraptoken"
)

// authority is a certificate that may stand for a cluster's.
func authority(t *testing.T) (*x509.Certificate, []byte) {
	t.Helper()
	pair, err := (&Identity{Name: "ca"}).SelfSigned(time.Now(), "192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return c, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// TestAuthorities: what is believed of a server that nobody knows yet.
func TestAuthorities(t *testing.T) {
	c, text := authority(t)
	other, _ := authority(t)
	token := bootstraptoken.Token{ID: "abcdef", Secret: "0123456789abcdef"}
	config := clientcmdapi.NewConfig()
	config.Clusters[""] = &clientcmdapi.Cluster{Server: "https://192.0.2.1", CertificateAuthorityData: text}
	content, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(secret, content string) string {
		enc := base64.RawURLEncoding
		head := enc.EncodeToString([]byte(`{"alg":"HS256","kid":"abcdef"}`))
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(head + "." + enc.EncodeToString([]byte(content))))
		return head + ".." + enc.EncodeToString(mac.Sum(nil))
	}
	good := map[string]string{"kubeconfig": string(content), "jws-kubeconfig-abcdef": sign(token.Secret, string(content))}
	for name, c := range map[string]struct {
		data   map[string]string
		hashes []string
		want   string // of the error
	}{
		"signed":          {good, nil, ""},
		"signed, pinned":  {good, []string{strings.ToUpper(bootstraptoken.Hash(c))}, ""},
		"one of two pins": {good, []string{bootstraptoken.Hash(other), bootstraptoken.Hash(c)}, ""},
		"another pin":     {good, []string{bootstraptoken.Hash(other)}, "not the one of --ca-cert-hash"},
		"not signed":      {map[string]string{"kubeconfig": string(content)}, nil, "is unknown to the cluster or has expired"},
		"another secret": {map[string]string{"kubeconfig": string(content), "jws-kubeconfig-abcdef": sign("fedcba9876543210", string(content))},
			nil, "its secret differs"},
		"another content": {map[string]string{"kubeconfig": "{}", "jws-kubeconfig-abcdef": good["jws-kubeconfig-abcdef"]}, nil,
			"its secret differs"},
		"names no cluster": {map[string]string{"kubeconfig": "{}", "jws-kubeconfig-abcdef": sign(token.Secret, "{}")}, nil, "names no cluster"},
	} {
		got, err := authorities(&corev1.ConfigMap{Data: c.data}, token, c.hashes)
		switch {
		case c.want == "" && (err != nil || string(got) != string(text)):
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), token.Secret)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestOptions: what is refused before anything is asked or written.
func TestOptions(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"no server":     {Options{}, "set --join and --token"},
		"no token":      {Options{Server: "https://192.0.2.1"}, "set --token; `mortise token create`"},
		"no URL":        {Options{Server: "192.0.2.1:6443", Token: "abcdef.0123456789abcdef"}, "want https://HOST:PORT"},
		"no TLS":        {Options{Server: "http://192.0.2.1", Token: "abcdef.0123456789abcdef"}, "want https://HOST:PORT"},
		"no good token": {Options{Server: "https://192.0.2.1", Token: "x"}, "a token is 6 and 16"},
		"no hash": {Options{Server: "https://192.0.2.1", Token: "abcdef.0123456789abcdef", Hashes: []string{"md5:0"}},
			"want sha256: and 64"},
		"no such file": {Options{Server: "https://192.0.2.1", Token: "abcdef.0123456789abcdef", CAFile: "nowhere"}, "nowhere"},
	} {
		c.o.Dir = filepath.Join(t.TempDir(), "node")
		if _, err := Open(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if all, _ := filepath.Glob(c.o.Dir); len(all) > 0 {
			t.Errorf("%s: something was written", name)
		}
	}
}
