// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

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
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

// signer is an authority of client certificates.
type signer struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	file        string // PEM
}

func newSigner(t *testing.T, name string) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	s := &signer{c, key, filepath.Join(t.TempDir(), "ca.crt")}
	if err := os.WriteFile(s.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// client is a certificate for a name.
func (s *signer) client(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: s.certificate.NotBefore, NotAfter: s.certificate.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, s.certificate, &key.PublicKey, s.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestFrontProxy: a proxy that shows its certificate says in headers who asks; nobody else may.
func TestFrontProxy(t *testing.T) {
	t.Parallel()
	proxies, clients := newSigner(t, "proxies"), newSigner(t, "clients")
	p := up(t, t.TempDir(), "--node", "none", "--controllers", "none", "--requestheader-client-ca-file", proxies.file,
		"--requestheader-allowed-names", "gate",
		"--requestheader-username-headers", "X-Remote-User", "--requestheader-group-headers", "X-Remote-Group", "--requestheader-uid-headers",
		"X-Remote-Uid",
		"--requestheader-extra-headers-prefix", "X-Remote-Extra-", "--client-ca-file", clients.file)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.config.CAData)
	headers := http.Header{
		"X-Remote-User": {"zoe"}, "X-Remote-Group": {"dev", "ops"}, "X-Remote-Uid": {"7"}, "X-Remote-Extra-Acme.com%2fteam": {"blue"},
		"Content-Type": {"application/json"},
	}
	zoe := authenticationv1.UserInfo{
		Username: "zoe", UID: "7", Groups: []string{"dev", "ops", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"acme.com/team": {"blue"}},
	}
	for _, c := range []struct {
		name    string
		shows   *tls.Certificate
		headers http.Header
		code    int
		who     authenticationv1.UserInfo
	}{
		{"the proxy", ptr.To(proxies.client(t, "gate")), headers, http.StatusCreated, zoe},
		{"the proxy, for nobody", ptr.To(proxies.client(t, "gate")), http.Header{"Content-Type": {"application/json"}}, http.StatusUnauthorized,
			authenticationv1.UserInfo{}},
		{"another name", ptr.To(proxies.client(t, "other")), headers, http.StatusUnauthorized, authenticationv1.UserInfo{}},
		{"a client of that name", ptr.To(clients.client(t, "gate")), headers, http.StatusCreated,
			authenticationv1.UserInfo{Username: "gate", Groups: []string{"system:authenticated"}}},
		{"a stranger's certificate", ptr.To(newSigner(t, "strangers").client(t, "gate")), headers, http.StatusUnauthorized,
			authenticationv1.UserInfo{}},
		{"nobody", nil, headers, http.StatusForbidden, authenticationv1.UserInfo{}},
	} {
		config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		if c.shows != nil { // also where the server does not name its authority
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.shows, nil }
		}
		transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.config.Host+"/apis/authentication.k8s.io/v1/selfsubjectreviews",
			strings.NewReader(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = c.headers.Clone()
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		transport.CloseIdleConnections()
		if err != nil {
			t.Fatal(err)
		}
		var said authenticationv1.SelfSubjectReview
		if resp.StatusCode == http.StatusCreated {
			if err := json.Unmarshal(body, &said); err != nil {
				t.Fatal(err)
			}
		}
		who := said.Status.UserInfo
		delete(who.Extra, "authentication.kubernetes.io/credential-id")
		if len(who.Extra) == 0 {
			who.Extra = nil
		}
		if resp.StatusCode != c.code || !reflect.DeepEqual(who, c.who) {
			t.Errorf("%s: %d, %+v", c.name, resp.StatusCode, who)
		}
	}
}

// TestWebhookCredentials: the kubeconfig of a webhook may name a credential plug-in, by which we log in there.
func TestWebhookCredentials(t *testing.T) {
	t.Parallel()
	shown := make(chan string, 10)
	reviewer := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown <- r.Header.Get("Authorization")
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: true,
			User: authenticationv1.UserInfo{Username: "of-" + review.Spec.Token}}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer reviewer.Close()
	dir := t.TempDir()
	log, answer, file := filepath.Join(dir, "log"), filepath.Join(dir, "answer"), filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(answer, []byte(
		`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"ours"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	k := clientcmdapi.NewConfig()
	k.Clusters["w"] = &clientcmdapi.Cluster{Server: reviewer.URL,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: reviewer.Certificate().Raw})}
	k.AuthInfos["us"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", Command: os.Args[0], Args: []string{log, answer},
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		Env:             []clientcmdapi.ExecEnvVar{{Name: credentialPlugin, Value: "1"}},
	}}
	k.Contexts["x"] = &clientcmdapi.Context{Cluster: "w", AuthInfo: "us"}
	k.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*k, file); err != nil {
		t.Fatal(err)
	}
	p := up(t, dir+"/data", "--node", "none", "--controllers", "none", "--authentication-token-webhook-config-file", file,
		"--authentication-token-webhook-version", "v1")
	zoe := rest.AnonymousClientConfig(p.config)
	zoe.BearerToken = "zoe"
	said, err := kubernetes.NewForConfigOrDie(zoe).AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || said.Status.UserInfo.Username != "of-zoe" {
		t.Errorf("%v, %+v", err, said)
	}
	select {
	case got := <-shown:
		if got != "Bearer ours" {
			t.Errorf("the webhook was shown %q", got)
		}
	default:
		t.Error("the webhook was not asked")
	}
	text, err := os.ReadFile(log)
	if err != nil || strings.Count(string(text), `"kind":"ExecCredential"`) != 1 {
		t.Errorf("the plug-in was asked %q, %v", text, err)
	}
	if out := p.kubectl("get", "--raw", "/metrics"); !strings.Contains(out, "\nauthentication_token_cache_request_total{") {
		t.Error("/metrics does not tell of the cache of tokens")
	}
}
