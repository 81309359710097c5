// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"encoding/base64"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// operatorManifest deploys the operator as its authors would: with an account of its own, rights for what it does, a lease for its
// election, and a Service by which the server calls its webhooks. PROGRAM is this test's program.
const operatorManifest = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: gardener}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: gardener}
rules:
- {apiGroups: [gardens.example.com], resources: [gardens], verbs: [get, list, watch, update, patch]}
- {apiGroups: [gardens.example.com], resources: [gardens/status, gardens/finalizers], verbs: [get, update, patch]}
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch, create, patch]}
- {apiGroups: ["", events.k8s.io], resources: [events], verbs: [create, patch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: gardener}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: gardener}
subjects: [{kind: ServiceAccount, name: gardener, namespace: default}]
---
apiVersion: v1
kind: Service
metadata: {name: gardener}
spec: {selector: {app: gardener}, ports: [{port: 443, targetPort: webhooks}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: gardener}
spec:
  selector: {matchLabels: {app: gardener}}
  template:
    metadata: {labels: {app: gardener}}
    spec:
      serviceAccountName: gardener
      terminationGracePeriodSeconds: 5
      containers:
      - name: gardener
        image: IMAGE
        command: [/gardener]
        env: [{name: VARIABLE, value: pod}, {name: RUNS, value: operator}]
        ports: [{name: webhooks, containerPort: 9443}]
        readinessProbe: {httpGet: {path: /readyz, port: 8081}, periodSeconds: 1}
        volumeMounts:
        - {name: program, mountPath: /gardener, readOnly: true}
        - {name: certificate, mountPath: /certificate, readOnly: true}
      volumes:
      - {name: program, hostPath: {path: PROGRAM}}
      - {name: certificate, secret: {secretName: gardener}}
`

// operatorInPod deploys an operator that is written with controller-runtime: it finds the server by its service account, elects itself,
// reconciles, and the server calls its webhooks, that of conversion too, by its Service.
func operatorInPod(t *testing.T, n *realNode) {
	ctx := t.Context()
	dir, authority := ownCertificate(t, "gardener.default.svc")
	n.kubectl("create", "secret", "tls", "gardener", "--cert", filepath.Join(dir, "tls.crt"), "--key", filepath.Join(dir, "tls.key"))
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	try(t, err)
	definition := gardenDefinition("", nil)
	try(t, unstructured.SetNestedMap(definition.Object, map[string]any{
		"service":  map[string]any{"namespace": "default", "name": "gardener", "path": "/convert"},
		"caBundle": base64.StdEncoding.EncodeToString(authority),
	}, "spec", "conversion", "webhook", "clientConfig"))
	scheme, err := gardenScheme()
	try(t, err)
	try(t, clientgoscheme.AddToScheme(scheme))
	c, err := client.New(n.program.config, client.Options{Scheme: scheme})
	try(t, err)
	try(t, c.Create(ctx, definition))
	n.apply(t, strings.NewReplacer("PROGRAM", self, "VARIABLE", aloneTest, "RUNS", podRuns).Replace(operatorManifest))
	n.kubectl("rollout", "status", "deployment/gardener", "--timeout=100s")
	gardenHooks(t, c, func(path string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{CABundle: authority,
			Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "gardener", Path: &path}}
	})
	defer func() {
		n.kubectl("delete", "validatingwebhookconfiguration/gardener", "mutatingwebhookconfiguration/gardener")
		n.kubectl("delete", "crd", "gardens.gardens.example.com", "--timeout=60s")
		n.kubectl("delete", "deployment/gardener", "secret/gardener", "--cascade=foreground", "--timeout=60s")
	}()

	// A user still writes v1beta1; the webhooks are for v1.
	old := &OldGarden{ObjectMeta: metav1.ObjectMeta{Name: "rose", Namespace: "default"}, Spec: OldGardenSpec{Size: 3}}
	if err := c.Create(ctx, old); err != nil || old.Spec.Soil != "loam" {
		t.Fatalf("created %+v: %v", old.Spec, err)
	}
	await(t, n.c, "default", "rose", func(m *corev1.ConfigMap) bool { return m.Data["plants"] == "3" && m.Data["soil"] == "loam" })
	large := &OldGarden{ObjectMeta: metav1.ObjectMeta{Name: "park", Namespace: "default"}, Spec: OldGardenSpec{Size: 11}}
	if err := c.Create(ctx, large); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "no garden is that large") {
		t.Errorf("too large: %v", err)
	}
	lease, err := n.c.CoordinationV1().Leases("default").Get(ctx, "gardener.example.com", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil || !strings.HasPrefix(*lease.Spec.HolderIdentity, "gardener-") {
		t.Errorf("elected %v: %v", lease, err)
	}
	// The operator sees to its object's end.
	n.kubectl("delete", "gardens.v1.gardens.example.com/rose", "--timeout=60s")
	n.kubectl("wait", "configmap/rose", "--for=delete", "--timeout=60s")
}

// operateInPod is the operator, in a pod.
func operateInPod() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(logr.Discard())
	own, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	scheme, err := gardenScheme()
	if err != nil {
		return err
	}
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	m, err := ctrl.NewManager(own, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: ":8081",
		LeaderElection: true, LeaderElectionID: "gardener.example.com", LeaderElectionReleaseOnCancel: true,
		WebhookServer: webhook.NewServer(webhook.Options{Port: 9443, CertDir: "/certificate"}),
	})
	if err != nil {
		return err
	}
	if err := ctrl.NewWebhookManagedBy(m, &Garden{}).WithDefaulter(gardenRules{}).WithValidator(gardenRules{}).Complete(); err != nil {
		return err
	}
	if err := m.AddReadyzCheck("webhooks", m.GetWebhookServer().StartedChecker()); err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(m).Named("gardener").For(&Garden{}).Owns(&corev1.ConfigMap{}).
		Complete(&gardener{m.GetClient(), m.GetEventRecorder("gardener")}); err != nil {
		return err
	}
	return m.Start(ctx)
}
