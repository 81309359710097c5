// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension/egress/egresstest"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
)

// hidden is everything that the cluster of TestEgress calls. No address leads to it: only proxies know where it is.
func hidden(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	answer := func(v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	switch path := r.URL.Path; {
	case path == "/authn":
		answer(authenticationv1.TokenReview{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"},
			Status: authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "jane"}}})
	case path == "/authz":
		answer(authorizationv1.SubjectAccessReview{TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
			Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}})
	case path == "/admit":
		var q admissionv1.AdmissionReview
		_ = json.Unmarshal(body, &q)
		q.Response = &admissionv1.AdmissionResponse{UID: q.Request.UID, Allowed: true, Warnings: []string{"the webhook was here"}}
		answer(q)
	case strings.HasPrefix(path, "/apis/far.example.com/v1"):
		answer(metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: "far.example.com/v1"})
	case path == "/apis", path == "/audit":
		w.WriteHeader(http.StatusNotFound)
	default:
		fmt.Fprintf(w, "hidden %s", path)
	}
}

// Everything that the server calls goes by the way of an egress selector's file: what has a URL by the control plane's, what is named by
// a service, node or pod by the cluster's.
func TestEgress(t *testing.T) {
	behind := httptest.NewTLSServer(http.HandlerFunc(hidden))
	defer behind.Close()
	open := httptest.NewServer(http.HandlerFunc(hidden))
	defer open.Close()
	dir, err := os.MkdirTemp("", "egress") // a socket's path is to be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	route := func(address string) string {
		if _, port, _ := net.SplitHostPort(address); port == "80" {
			return open.Listener.Addr().String()
		}
		return behind.Listener.Addr().String()
	}
	proxies := map[string]*egresstest.Proxy{}
	selections := ""
	for _, name := range []string{"controlplane", "cluster"} {
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		proxies[name] = &egresstest.Proxy{Route: route}
		proxies[name].Serve(t, l)
		selections += fmt.Sprintf("- name: %s\n  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}\n", name,
			filepath.Join(dir, name))
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: behind.Certificate().Raw})
	authority := file("ca", string(ca))
	kubeconfig := func(name string, port int) string {
		return file(name, fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {server: 'https://example.com:%d/%s', certificate-authority: %s}\ncontexts:\n- name: c\n  context: {cluster: c, user: u}\nusers:\n- name: u\n  user: {}\n", port, name, authority))
	}
	o := options.APIServer{Egress: options.Egress{ConfigFile: file("egress.yaml",
		"apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n"+selections)}}
	o.Authentication.TokenWebhook.ConfigFile, o.Authentication.TokenWebhook.Version = kubeconfig("authn", 1001), "v1"
	o.Authorization.Modes, o.Authorization.Webhook.ConfigFile, o.Authorization.Webhook.Version = []string{"Webhook"},
		kubeconfig("authz", 1002), "v1"
	o.Audit.PolicyFile = file("policy", "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n")
	o.Audit.Webhook.ConfigFile, o.Audit.Webhook.Batch.Mode = kubeconfig("audit", 1003), "blocking"
	o.Audit.Webhook.InitialBackoff = new(time.Duration)
	others, err := serving.LoadOrCreate("", nil, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o.Kubelets.CAFile = file("nodes.crt", string(others.CA.CertPEM))

	s := &Server{Controllers: []string{"none"}, APIServer: o}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	admin := s.Client()
	hook := "https://example.com:1004/admit"
	fail, none := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	if _, err := admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx,
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "far"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "far.example.com", FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
				ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &hook, CABundle: ca},
				Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{"CREATE"},
					Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}},
			}},
		}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	jane := rest.AnonymousClientConfig(s.Config())
	jane.BearerToken = "hers"
	her, err := kubernetes.NewForConfig(jane)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := her.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "web"}},
		metav1.CreateOptions{}); err != nil {
		t.Errorf("create, past authentication, authorization, admission and audit: %v", err)
	}

	if _, err := admin.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "far"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName,
			ExternalName: "service.invalid"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	registrations, err := aggregator.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	w, err := registrations.APIServices().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=v1.far.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := registrations.APIServices().Create(ctx, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.far.example.com"},
		Spec: apiregistrationv1.APIServiceSpec{Group: "far.example.com", Version: "v1", GroupPriorityMinimum: 1, VersionPriority: 1,
			InsecureSkipTLSVerify: true,
			Service:               &apiregistrationv1.ServiceReference{Namespace: "default", Name: "far"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for available := false; !available; {
		e, more := <-w.ResultChan()
		if !more {
			t.Fatal("the aggregated API server did not become available")
		}
		a := e.Object.(*apiregistrationv1.APIService)
		available = slices.ContainsFunc(a.Status.Conditions, func(c apiregistrationv1.APIServiceCondition) bool {
			return c.Type == apiregistrationv1.Available && c.Status == apiregistrationv1.ConditionTrue
		})
	}

	node, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "far"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.9"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	if _, err := admin.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod, err := admin.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "far"}, Spec: corev1.PodSpec{NodeName: "far",
			Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.PodIPs = []corev1.PodIP{{IP: "192.0.2.1"}}
	pod.Status.PodIP = "192.0.2.1"
	if _, err := admin.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := admin.CoreV1().Pods("default").ProxyGet("", "far", "80", "/page", nil).DoRaw(ctx); err != nil ||
		!strings.HasSuffix(string(got), "/page") {
		t.Errorf("through the pod's proxy: %q, %v", got, err)
	}
	if got, err := admin.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/far:80/proxy/page").DoRaw(ctx); err != nil ||
		!strings.HasSuffix(string(got), "/page") {
		t.Errorf("through the node's proxy: %q, %v", got, err)
	}
	if _, err := admin.CoreV1().Pods("default").GetLogs("far", &corev1.PodLogOptions{}).DoRaw(ctx); err == nil {
		t.Error("the log of a node that shows another authority's certificate was read")
	}

	for name, want := range map[string][]string{
		"controlplane": {"example.com:1001", "example.com:1002", "example.com:1003", "example.com:1004"},
		"cluster":      {"192.0.2.1:80", "192.0.2.9:10250", "192.0.2.9:80", "service.invalid:443"},
	} {
		if got := proxies[name].Asked(); !slices.Equal(got, want) {
			t.Errorf("the proxy of %s was asked for %q, want %q", name, got, want)
		}
	}
}
