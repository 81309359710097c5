// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed/options"
)

// TestRedirectsLeadNowhere has all webhooks, which know the server by a token, send it on to another server: nothing gets there.
func TestRedirectsLeadNowhere(t *testing.T) {
	other := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the other server is sent %s %s with %q", r.Method, r.URL, r.Header.Get("Authorization"))
	}))
	defer other.Close()
	var mu sync.Mutex
	asked := map[string]string{} // what was shown at which path
	first := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.URL.Path] = r.Header.Get("Authorization")
		mu.Unlock()
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer first.Close()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: first.Certificate().Raw}) // the other's too
	authority := file("ca", string(ca))
	kubeconfig := func(name string) string {
		return file(name, fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\n"+
			"clusters:\n- name: c\n  cluster: {server: '%s/%s', certificate-authority: %s}\n"+
			"contexts:\n- name: c\n  context: {cluster: c, user: u}\nusers:\n- name: u\n  user: {token: ours}\n", first.URL, name, authority))
	}
	users := file("users", fmt.Sprintf("apiVersion: v1\nkind: Config\nusers: [{name: %q, user: {token: ours}}]\n",
		strings.TrimPrefix(first.URL, "https://")))
	images := file("images.yaml", fmt.Sprintf("imagePolicy: {kubeConfigFile: %s, retryBackoff: 1}\n", kubeconfig("images")))

	var o options.APIServer
	o.Authentication.TokenWebhook.ConfigFile, o.Authentication.TokenWebhook.Version = kubeconfig("authn"), "v1"
	o.Authorization.Modes, o.Authorization.Webhook.ConfigFile, o.Authorization.Webhook.Version = []string{"RBAC", "Webhook"},
		kubeconfig("authz"), "v1"
	o.Audit.PolicyFile = file("policy", "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n"+
		"- {level: Metadata, namespaces: [default], verbs: [create]}\n- {level: None}\n")
	o.Audit.Webhook.ConfigFile, o.Audit.Webhook.Batch.Mode = kubeconfig("audit"), "blocking"
	o.Audit.Webhook.InitialBackoff = new(time.Duration)
	o.Admission.Enable, o.Admission.Disable = []string{"ImagePolicyWebhook"}, []string{"ServiceAccount"}
	o.Admission.ConfigFile = file("admission.yaml", fmt.Sprintf(
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"+
			"- {name: ImagePolicyWebhook, path: %s}\n"+
			"- name: ValidatingAdmissionWebhook\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: %s}\n", images, users))
	s := &Server{Node: NodeNone, Controllers: []string{"none"}, APIServer: o}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	ctx, admin := t.Context(), s.Client()
	hook := first.URL + "/admit"
	fail, none := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	if _, err := admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx,
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "w"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "w.example.com", FailurePolicy: &fail, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
				ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &hook, CABundle: ca},
				Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{"CREATE"},
					Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}},
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "default"}},
			}},
		}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	const refusal = "is not followed: it is another server"
	if _, err := admin.CoreV1().ConfigMaps("default").Create(ctx, m, metav1.CreateOptions{}); err == nil ||
		!strings.Contains(err.Error(), refusal) {
		t.Errorf("a webhook of admission: %v", err)
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := admin.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a webhook of images: %v", err)
	}
	as := func(change func(c *rest.Config)) *kubernetes.Clientset {
		c := rest.CopyConfig(s.Config())
		change(c)
		client, err := kubernetes.NewForConfig(c)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	alice := as(func(c *rest.Config) { c.Impersonate.UserName = "alice" })
	if _, err := alice.CoreV1().ConfigMaps("default").Get(ctx, "m", metav1.GetOptions{}); err == nil ||
		!strings.Contains(err.Error(), refusal) {
		t.Errorf("a webhook that authorizes: %v", err)
	}
	stranger := as(func(c *rest.Config) { *c = *rest.AnonymousClientConfig(c); c.BearerToken = "hers" })
	if _, err := stranger.CoreV1().ConfigMaps("default").Get(ctx, "m", metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a webhook that authenticates: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, path := range []string{"/authn", "/authz", "/audit", "/images", "/admit"} {
		if asked[path] != "Bearer ours" {
			t.Errorf("%s is asked with %q", path, asked[path])
		}
	}
}
