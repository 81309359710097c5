// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/zpages"
)

func TestTokensAndUsersAreReviewed(t *testing.T) {
	config := kubeletconfig.Default()
	reviews, asked := fake.NewClientset(), map[string]int{}
	reviews.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		asked["token"]++
		r.Status.Authenticated = r.Spec.Token == "good" || r.Spec.Token == "poor"
		r.Status.User = authenticationv1.UserInfo{Username: r.Spec.Token + "-user"}
		return true, r, nil
	})
	reviews.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		asked["access"]++
		at := r.Spec.ResourceAttributes
		r.Status.Allowed = r.Spec.User == "good-user" && at.Resource == "nodes" && at.Name == "n1" && at.Verb == "get" &&
			(at.Subresource == "proxy" || at.Subresource == "stats") ||
			r.Spec.User == "system:anonymous" && at.Subresource == "healthz"
		return true, r, nil
	})
	now := time.Now()
	s := New(newFakeNode(t), Options{Kubelet: config, Effective: config, Reviews: reviews, Clock: func() time.Time { return now }})
	ask := func(token, path string) int {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code
	}
	for _, c := range []struct {
		token, path string
		want        int
	}{
		{"", "/pods", 401}, {"bad", "/pods", 401}, {"poor", "/pods", 403}, {"good", "/pods", 200}, {"good", "/stats/summary", 200},
		{"good", "/metrics/resource", 403}, {"", "/healthz", 401},
	} {
		if got := ask(c.token, c.path); got != c.want {
			t.Errorf("%q at %s: %d, want %d", c.token, c.path, got, c.want)
		}
	}
	before := asked["token"]
	if ask("good", "/pods"); asked["token"] != before {
		t.Error("the same token is asked about again at once")
	}
	now = now.Add(3 * time.Minute)
	if ask("good", "/pods"); asked["token"] != before+1 {
		t.Error("an old answer is used")
	}
	*config.Authentication.Anonymous.Enabled = true
	if got := ask("", "/healthz"); got != 200 {
		t.Errorf("nobody at /healthz: %d", got)
	}
	if got := ask("", "/pods"); got != 403 {
		t.Errorf("nobody at /pods: %d", got)
	}
	if got := ask("bad", "/healthz"); got != 401 {
		t.Errorf("a token that is nobody's is not anonymous: %d", got)
	}
	config.Authorization.Mode = configv1beta1.KubeletAuthorizationModeAlwaysAllow
	if got := ask("poor", "/pods"); got != 200 {
		t.Errorf("AlwaysAllow: %d", got)
	}
}

// TestPages asks for the node's versions and flags, with debugging handlers and without.
func TestPages(t *testing.T) {
	config := kubeletconfig.Default()
	config.Authorization.Mode, config.Authentication.Anonymous.Enabled = configv1beta1.KubeletAuthorizationModeAlwaysAllow, new(true)
	pages := zpages.New("kubelet", version.Info{GitVersion: "v1.37.1+mortise.0.1", GoVersion: "go1.26", EmulationMajor: "1",
		EmulationMinor: "37"})
	pages.Flags = func() map[string]string { return map[string]string{"root-dir": "/var/lib/kubelet"} }
	for path, want := range map[string]string{
		"/flagz":   "\nkubelet flagz\n",
		"/statusz": "Binary version: 1.37.1\nEmulation version: 1.37\nPaths: /configz /flagz /healthz /metrics\n",
	} {
		for _, debugging := range []bool{true, false} {
			config.EnableDebuggingHandlers = &debugging
			w := httptest.NewRecorder()
			New(newFakeNode(t), Options{Kubelet: config, Pages: pages}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			if debugging && !strings.Contains(w.Body.String(), want) || !debugging && w.Code != http.StatusNotFound {
				t.Errorf("%s, debugging handlers %t: %d %s, want %s", path, debugging, w.Code, w.Body, want)
			}
		}
	}
}

func TestConfigz(t *testing.T) {
	config := kubeletconfig.Default()
	config.MaxPods, config.StaticPodURLHeader = 33, map[string][]string{"Secret": {"hidden"}}
	config.Authorization.Mode, config.Authentication.Anonymous.Enabled = configv1beta1.KubeletAuthorizationModeAlwaysAllow, new(true)
	config.EnableDebuggingHandlers = new(false)
	s := New(newFakeNode(t), Options{Kubelet: config, Effective: config})
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/configz", nil))
	var got struct {
		Kubeletconfig configv1beta1.KubeletConfiguration
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Kubeletconfig.MaxPods != 33 ||
		got.Kubeletconfig.Kind != "KubeletConfiguration" || got.Kubeletconfig.StaticPodURLHeader["Secret"][0] != "<masked>" {
		t.Errorf("configz: %d %s, %v", w.Code, w.Body, err)
	}
	if config.StaticPodURLHeader["Secret"][0] != "hidden" {
		t.Error("showing the configuration changes it")
	}
	w = httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/containerLogs/default/p/c", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("logs without debugging: %d", w.Code)
	}
}
