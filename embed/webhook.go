// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/internal/cluster"
)

// InProcess is an HTTP server in this process that the API server reaches without a port and without certificates of yours: its connections
// are pipes. Forks made from then on have it too.
type InProcess struct{ local cluster.Local }

// ServeInProcess lets the API server reach a handler, until Stop. The store must be in memory. The names are DNS names for the server's
// certificate, which needs none for calls by URL.
func (s *Server) ServeInProcess(h http.Handler, names ...string) (*InProcess, error) {
	local, err := s.cluster.ServeLocally(h, names...)
	if err != nil {
		return nil, err
	}
	return &InProcess{local}, nil
}

// Host and Port are the address by which the API server reaches the handler. Nothing else does.
func (p *InProcess) Host() string { return p.local.Host }

// Port is the port of the address.
func (p *InProcess) Port() int { return p.local.Port }

// CA returns the PEM bundle of the server's certificate.
func (p *InProcess) CA() []byte { return p.local.CA }

// URL returns the URL of a path.
func (p *InProcess) URL(path string) string {
	return "https://" + net.JoinHostPort(p.local.Host, strconv.Itoa(p.local.Port)) + "/" + strings.TrimPrefix(path, "/")
}

// Webhook returns the client configuration for a webhook at a path.
func (p *InProcess) Webhook(path string) admissionregistrationv1.WebhookClientConfig {
	url := p.URL(path)
	return admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: p.CA()}
}

// Stop ends the server: connections are refused from then on, as by a webhook that is dead.
func (p *InProcess) Stop() { p.local.Stop() }

// Webhook lets the API server call handler as a mutating admission webhook at a path, for requests that match the rules. A mutating webhook
// may also refuse requests. It ends with the test. The handler gets and answers AdmissionReviews of admission.k8s.io/v1, such as a
// webhook of controller-runtime does.
func (s *Server) Webhook(t T, path string, handler http.Handler, rules ...admissionregistrationv1.RuleWithOperations) *InProcess {
	t.Helper()
	p := serveFor(s, t, handler)
	none := admissionregistrationv1.SideEffectClassNone
	c := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: webhookName(path, p)},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: webhookName(path, p) + ".in-process.test", ClientConfig: p.Webhook(path), Rules: rules, SideEffects: &none,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	configurations := s.Client().AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := configurations.Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatalf("register webhook: %v", err)
	}
	t.Cleanup(func() { _ = configurations.Delete(context.Background(), c.Name, metav1.DeleteOptions{}) }) // perhaps the test has
	return p
}

// ValidatingWebhook is Webhook for a webhook that only refuses requests.
func (s *Server) ValidatingWebhook(t T, path string, handler http.Handler, rules ...admissionregistrationv1.RuleWithOperations) *InProcess {
	t.Helper()
	p := serveFor(s, t, handler)
	none := admissionregistrationv1.SideEffectClassNone
	c := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: webhookName(path, p)},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: webhookName(path, p) + ".in-process.test", ClientConfig: p.Webhook(path), Rules: rules, SideEffects: &none,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	configurations := s.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := configurations.Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatalf("register webhook: %v", err)
	}
	t.Cleanup(func() { _ = configurations.Delete(context.Background(), c.Name, metav1.DeleteOptions{}) }) // perhaps the test has
	return p
}

// webhookName returns the name of a webhook's configuration.
func webhookName(path string, p *InProcess) string {
	name := strings.Trim(strings.ReplaceAll(strings.ToLower(path), "/", "-"), "-")
	if name == "" {
		name = "webhook"
	}
	return fmt.Sprintf("%s-%d", name, p.Port())
}

// serveFor serves a handler until the test ends.
func serveFor(s *Server, t T, h http.Handler, names ...string) *InProcess {
	t.Helper()
	p, err := s.ServeInProcess(h, names...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(p.Stop)
	return p
}

var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
)

// ConversionWebhook lets the API server call handler to convert the objects of a custom resource definition between its versions. The
// handler ends with the test; the definition keeps naming it.
func (s *Server) ConversionWebhook(t T, definition string, handler http.Handler) *InProcess {
	t.Helper()
	p := serveFor(s, t, handler)
	url := p.URL("/convert")
	conversion := apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: p.CA()},
			ConversionReviewVersions: []string{"v1"},
		}}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"conversion": conversion}})
	if err != nil {
		t.Fatalf("register conversion webhook: %v", err)
	}
	client := dynamic.NewForConfigOrDie(s.Config()).Resource(definitions)
	if _, err := client.Patch(t.Context(), definition, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatalf("register conversion webhook: %v", err)
	}
	return p
}

// APIService lets handler serve a group-version, as an aggregated API server does: it gets the requests for /apis/GROUP/VERSION, and for
// the group's discovery. Their users are in the headers X-Remote-User and X-Remote-Group. APIService returns when the cluster finds the
// server available, which asks for /apis/GROUP/VERSION. It ends with the test.
func (s *Server) APIService(t T, gv schema.GroupVersion, handler http.Handler) *InProcess {
	t.Helper()
	const namespace = "default"
	service := "in-process-" + gv.Version + "-" + strings.ReplaceAll(gv.Group, ".", "-")
	p := serveFor(s, t, handler, service+"."+namespace+".svc")
	port := int32(p.Port())
	services := s.Client().CoreV1().Services(namespace)
	_, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: service}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: p.Host(), Ports: []corev1.ServicePort{{Port: port}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("register API service: %v", err)
	}
	a := &apiregistrationv1.APIService{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiregistration.k8s.io/v1", Kind: "APIService"},
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec: apiregistrationv1.APIServiceSpec{
			Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: service, Port: &port},
			Group:   gv.Group, Version: gv.Version, CABundle: p.CA(), GroupPriorityMinimum: 1000, VersionPriority: 15,
		},
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(a)
	if err != nil {
		t.Fatalf("register API service: %v", err)
	}
	client := dynamic.NewForConfigOrDie(s.Config()).Resource(apiServices)
	if _, err := client.Create(t.Context(), unstructuredOf(content), metav1.CreateOptions{}); err != nil {
		t.Fatalf("register API service: %v", err)
	}
	t.Cleanup(func() {
		_ = client.Delete(context.Background(), a.Name, metav1.DeleteOptions{}) // perhaps the test has
		_ = services.Delete(context.Background(), service, metav1.DeleteOptions{})
	})
	registered := unstructuredOf(content)
	s.WaitFor(t, registered, func() bool {
		conditions, _, _ := unstructured.NestedSlice(registered.Object, "status", "conditions") // none yet
		return slices.ContainsFunc(conditions, func(c any) bool {
			is, ok := c.(map[string]any)
			return ok && is["type"] == "Available" && is["status"] == "True"
		})
	})
	// The watch may be ahead of what forwards requests. A write to a registration is answered once it is in force, with all before it.
	inForce := []byte(`{"metadata":{"annotations":{"` + inProcess + `":"true"}}}`)
	if _, err := client.Patch(t.Context(), a.Name, types.MergePatchType, inForce, metav1.PatchOptions{}); err != nil {
		t.Fatalf("register API service: %v", err)
	}
	return p
}

// inProcess is the annotation of registrations whose server is in the process.
const inProcess = "mortise.dev/in-process"
