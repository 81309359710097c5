// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
)

// A certificate that cannot be is refused before anything is started.
func TestBadFrontProxyCertificates(t *testing.T) {
	dir := t.TempDir()
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	cert, bad := filepath.Join(dir, "cert"), filepath.Join(dir, "bad")
	if err := os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    options.Aggregation
		want string
	}{
		"no key":         {options.Aggregation{ProxyClientCertFile: cert}, "one is of no use without the other"},
		"no certificate": {options.Aggregation{ProxyClientKeyFile: cert}, "one is of no use without the other"},
		"not there":      {options.Aggregation{ProxyClientCertFile: cert, ProxyClientKeyFile: filepath.Join(dir, "none")}, "read key"},
		"no PEM":         {options.Aggregation{ProxyClientCertFile: cert, ProxyClientKeyFile: bad}, bad},
	} {
		s := &embed.Server{Controllers: []string{"none"}, APIServer: options.APIServer{Aggregation: c.o}}
		err := s.Start(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			_ = s.Stop()
		}
	}
}

// A start takes back registrations that another start made of groups that are not served any more, puts its own right, and
// leaves alone those that somebody has made theirs by taking the label off.
func TestStartSettlesRegistrations(t *testing.T) {
	dir := t.TempDir()
	run := func(f func(aggregator.APIServiceInterface)) {
		t.Helper()
		s := &embed.Server{DataDir: dir, Controllers: []string{"none"}}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		}()
		c, err := aggregator.NewForConfig(s.Config())
		if err != nil {
			t.Fatal(err)
		}
		f(c.APIServices())
	}
	run(func(c aggregator.APIServiceInterface) {
		if _, err := c.Create(t.Context(), &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: "v1.former.k8s.io",
				Labels: map[string]string{"kube-aggregator.kubernetes.io/automanaged": "onstart"}},
			Spec: apiregistrationv1.APIServiceSpec{Group: "former.k8s.io", Version: "v1", GroupPriorityMinimum: 1, VersionPriority: 1},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for name, mine := range map[string]bool{"v1.apps": false, "v1.batch": true} {
			a, err := c.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			a.Spec.VersionPriority = 77
			if mine {
				a.Labels = nil
			}
			if _, err := c.Update(t.Context(), a, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	})
	run(func(c aggregator.APIServiceInterface) {
		if _, err := c.Get(t.Context(), "v1.former.k8s.io", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("former: %v", err)
		}
		for name, want := range map[string]int32{"v1.apps": 15, "v1.batch": 77} {
			if a, err := c.Get(t.Context(), name, metav1.GetOptions{}); err != nil || a.Spec.VersionPriority != want {
				t.Errorf("%s: %v, %v; want %d", name, a.Spec.VersionPriority, err, want)
			}
		}
	})
}
