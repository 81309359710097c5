// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package envtest_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/envtest"
)

// manifests are what controller-gen writes for the webhook of a suite.
const manifests = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: mutating-webhook-configuration}
webhooks:
- name: mconfigmap.kb.io
  admissionReviewVersions: [v1]
  clientConfig: {service: {name: webhook-service, namespace: system, path: /mutate--v1-configmap}}
  failurePolicy: Fail
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  sideEffects: None
`

// defaulter labels ConfigMaps.
type defaulter struct{}

func (defaulter) Default(_ context.Context, m *corev1.ConfigMap) error {
	m.Labels = map[string]string{"defaulted": "yes"}
	return nil
}

// reconciler writes what it has seen into a ConfigMap.
type reconciler struct{ client client.Client }

func (r reconciler) Reconcile(ctx context.Context, q ctrl.Request) (ctrl.Result, error) {
	m := &corev1.ConfigMap{}
	if err := r.client.Get(ctx, q.NamespacedName, m); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if m.Labels["defaulted"] != "yes" || m.Data["reconciled"] == "yes" {
		return ctrl.Result{}, nil
	}
	m.Data = map[string]string{"reconciled": "yes"}
	return ctrl.Result{}, r.client.Update(ctx, m)
}

// TestSuite is a suite with a manager, a controller and a webhook, as kubebuilder makes them. The webhook has neither a port nor a
// certificate; it is dead before the manager runs and after it.
func TestSuite(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "manifests.yaml"), []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	env := &envtest.Environment{
		WebhooksInProcess: true, WebhookInstallOptions: envtest.WebhookInstallOptions{Paths: []string{dir}},
		Server: &embed.Server{Controllers: []string{"none"}},
	}
	administrator, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	}()
	manager, err := ctrl.NewManager(administrator, ctrl.Options{
		Scheme: scheme.Scheme, WebhookServer: env.WebhookServer(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)}, // of an earlier run in this process
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := ctrl.NewWebhookManagedBy(manager, &corev1.ConfigMap{}).WithDefaulter(defaulter{}).Complete(); err != nil {
		t.Fatal(err)
	}
	if err := ctrl.NewControllerManagedBy(manager).For(&corev1.ConfigMap{}).Complete(reconciler{manager.GetClient()}); err != nil {
		t.Fatal(err)
	}
	if err := manager.GetWebhookServer().StartedChecker()(nil); err == nil {
		t.Error("the webhook server runs before the manager does")
	}
	m := &corev1.ConfigMap{}
	m.Namespace, m.Name = "default", "early"
	c, err := client.New(administrator, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), m); !apierrors.IsInternalError(err) {
		t.Errorf("without a manager: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	<-manager.Elected()
	if !manager.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the caches do not fill")
	}
	m = &corev1.ConfigMap{}
	m.Namespace, m.Name = "default", "good"
	if err := c.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if m.Labels["defaulted"] != "yes" {
		t.Errorf("the object has labels %v", m.Labels)
	}
	env.Server.WaitFor(t, m, func() bool { return m.Data["reconciled"] == "yes" })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
