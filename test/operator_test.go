// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/dynamic"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/mortise-dev/mortise/embed/embedtest"
)

const gardenFinalizer = "gardens.example.com/uproot"

// gardener is an operator as people write them: each Garden gets a ConfigMap, a condition, an event, and a farewell.
type gardener struct {
	client.Client
	recorder events.EventRecorder
}

func (r *gardener) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	g := &Garden{}
	if err := r.Get(ctx, request.NamespacedName, g); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !g.DeletionTimestamp.IsZero() {
		if controllerutil.RemoveFinalizer(g, gardenFinalizer) {
			r.recorder.Eventf(g, nil, corev1.EventTypeNormal, "Uprooted", "Uproot", "%d plants went", g.Spec.Plants)
			return ctrl.Result{}, client.IgnoreNotFound(r.Update(ctx, g))
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(g, gardenFinalizer) {
		return ctrl.Result{}, r.Update(ctx, g) // its event comes back
	}
	bed := coreapply.ConfigMap(g.Name, g.Namespace).WithData(map[string]string{"plants": fmt.Sprint(g.Spec.Plants), "soil": g.Spec.Soil}).
		WithOwnerReferences(metaapply.OwnerReference().WithAPIVersion("gardens.example.com/v1").WithKind("Garden").
			WithName(g.Name).WithUID(g.UID).WithController(true).WithBlockOwnerDeletion(true))
	if err := r.Apply(ctx, bed, client.FieldOwner("gardener"), client.ForceOwnership); err != nil {
		return ctrl.Result{}, err
	}
	before := g.DeepCopyObject().(*Garden)
	g.Status.Planted = g.Spec.Plants
	if meta.SetStatusCondition(&g.Status.Conditions, metav1.Condition{
		Type: "Ready", Status: metav1.ConditionTrue, Reason: "Planted", Message: "in " + g.Spec.Soil, ObservedGeneration: g.Generation,
	}) {
		r.recorder.Eventf(g, nil, corev1.EventTypeNormal, "Planted", "Plant", "%d plants stand", g.Spec.Plants)
		return ctrl.Result{}, r.Status().Patch(ctx, g, client.MergeFrom(before))
	}
	return ctrl.Result{}, nil
}

// gardenRules are its admission webhooks.
type gardenRules struct{}

func (gardenRules) Default(_ context.Context, g *Garden) error {
	if g.Spec.Soil == "" {
		g.Spec.Soil = "loam"
	}
	return nil
}

func (gardenRules) check(g *Garden) (admission.Warnings, error) {
	if g.Spec.Plants > 10 {
		return nil, errors.New("no garden is that large")
	}
	if g.Spec.Soil == "sand" {
		return admission.Warnings{"little grows in sand"}, nil
	}
	return nil, nil
}

func (r gardenRules) ValidateCreate(_ context.Context, g *Garden) (admission.Warnings, error) {
	return r.check(g)
}

func (r gardenRules) ValidateUpdate(_ context.Context, old, g *Garden) (admission.Warnings, error) {
	if g.Spec.Soil != old.Spec.Soil {
		return nil, errors.New("the soil stays")
	}
	return r.check(g)
}

func (gardenRules) ValidateDelete(_ context.Context, g *Garden) (admission.Warnings, error) {
	if g.Annotations["keep"] != "" {
		return nil, errors.New("the garden is to be kept")
	}
	return nil, nil
}

// ownCertificate writes a certificate for this machine, and for further names, into a folder, as controller-runtime wants it, and returns
// it.
func ownCertificate(t *testing.T, names ...string) (dir string, authority []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "gardener"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:  names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	for name, data := range map[string][]byte{"tls.crt": authority,
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, authority
}

// gardenHooks registers the operator's admission webhooks, each path of which is called as at says.
func gardenHooks(t *testing.T, c client.Client, at func(path string) admissionregistrationv1.WebhookClientConfig) {
	t.Helper()
	fail, none, exact := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Equivalent
	rules := func(ops ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
		return []admissionregistrationv1.RuleWithOperations{{Operations: ops, Rule: admissionregistrationv1.Rule{
			APIGroups: []string{"gardens.example.com"}, APIVersions: []string{"v1"}, Resources: []string{"gardens"},
		}}}
	}
	create, update, remove := admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete
	for _, o := range []client.Object{
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "gardener"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{
				Name: "default.gardens.example.com", ClientConfig: at("/mutate-gardens-example-com-v1-garden"), Rules: rules(create, update),
				FailurePolicy: &fail, SideEffects: &none, MatchPolicy: &exact, AdmissionReviewVersions: []string{"v1"},
			}}},
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "gardener"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "check.gardens.example.com", ClientConfig: at("/validate-gardens-example-com-v1-garden"), Rules: rules(create, update, remove),
				FailurePolicy: &fail, SideEffects: &none, MatchPolicy: &exact, AdmissionReviewVersions: []string{"v1"},
			}}},
	} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

type heard struct{ texts []string }

func (h *heard) HandleWarningHeader(_ int, _, text string) { h.texts = append(h.texts, text) }

// TestOperator runs an operator with its own kind in two versions, webhooks for conversion, defaults and validation, and all
// that operators do, unmodified, over TLS.
func TestOperator(t *testing.T) {
	cluster := embedtest.New(t)
	ctrl.SetLogger(logr.Discard())
	ctx := t.Context()
	dir, authority := ownCertificate(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("https://127.0.0.1:%d", port)
	crds := dynamic.NewForConfigOrDie(cluster.Config()).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
	definition := gardenDefinition(url, []byte(base64.StdEncoding.EncodeToString(authority)))
	if _, err := crds.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	scheme, err := gardenScheme()
	if err == nil {
		err = clientgoscheme.AddToScheme(scheme)
	}
	if err != nil {
		t.Fatal(err)
	}
	again := true
	m, err := ctrl.NewManager(cluster.Config(), ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller:    config.Controller{SkipNameValidation: &again},
		WebhookServer: webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, CertDir: dir}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := ctrl.NewWebhookManagedBy(m, &Garden{}).WithDefaulter(gardenRules{}).WithValidator(gardenRules{}).Complete(); err != nil {
		t.Fatal(err)
	}
	if err := ctrl.NewControllerManagedBy(m).Named("gardener").For(&Garden{}).Owns(&corev1.ConfigMap{}).
		Complete(&gardener{m.GetClient(), m.GetEventRecorder("gardener")}); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- m.Start(running) }()
	if !m.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the caches do not fill")
	}

	warned := &heard{}
	own := rest.CopyConfig(cluster.Config())
	own.WarningHandler = warned
	c, err := client.NewWithWatch(own, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	gardenHooks(t, c, func(path string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{URL: new(url + path), CABundle: authority}
	})

	// A user still writes v1beta1; the webhooks are for v1.
	old := &OldGarden{ObjectMeta: metav1.ObjectMeta{Name: "rose", Namespace: "default"}, Spec: OldGardenSpec{Size: 3}}
	if err := c.Create(ctx, old); err != nil {
		t.Fatal(err)
	}
	if old.Spec.Soil != "loam" {
		t.Errorf("the defaulting webhook: %v", old.Spec)
	}
	k := cluster.Client()
	await(t, k, "default", "rose", func(m *corev1.ConfigMap) bool { return m.Data["plants"] == "3" && m.Data["soil"] == "loam" })
	large := &OldGarden{ObjectMeta: metav1.ObjectMeta{Name: "park", Namespace: "default"}, Spec: OldGardenSpec{Size: 11}}
	if err := c.Create(ctx, large); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), `admission webhook "check.gardens.example.com" denied the request: no garden is that large`) {
		t.Errorf("too large: %v", err)
	}
	sandy := &Garden{ObjectMeta: metav1.ObjectMeta{Name: "dune", Namespace: "default", Annotations: map[string]string{"keep": "yes"}},
		Spec: GardenSpec{Plants: 1, Soil: "sand"}}
	if err := c.Create(ctx, sandy); err != nil || len(warned.texts) != 1 || warned.texts[0] != "little grows in sand" {
		t.Errorf("sand: %v, %q", err, warned.texts)
	}
	if err := c.Delete(ctx, sandy); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the garden is to be kept") {
		t.Errorf("delete what is kept: %v", err)
	}

	g := &Garden{}
	key := client.ObjectKey{Namespace: "default", Name: "rose"}
	if err := c.Get(ctx, key, g); err != nil {
		t.Fatal(err)
	}
	before := g.DeepCopyObject().(*Garden)
	g.Spec.Plants = 5
	if err := c.Patch(ctx, g, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	await(t, k, "default", "rose", func(m *corev1.ConfigMap) bool {
		return m.Data["plants"] == "5" && len(m.OwnerReferences) == 1 && m.OwnerReferences[0].UID == g.UID
	})
	moved := g.DeepCopyObject().(*Garden)
	moved.Spec.Soil = "clay"
	if err := c.Patch(ctx, moved, client.MergeFrom(g)); !apierrors.IsForbidden(err) {
		t.Errorf("another soil: %v", err)
	}
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	gardens, err := c.Watch(limited, &GardenList{}, client.InNamespace("default"))
	if err != nil {
		t.Fatal(err)
	}
	for e := range gardens.ResultChan() {
		if now, ok := e.Object.(*Garden); ok && now.Name == "rose" && now.Status.Planted == 5 {
			g = now
			gardens.Stop()
		}
	}
	if r := meta.FindStatusCondition(g.Status.Conditions, "Ready"); r == nil || r.ObservedGeneration != g.Generation || g.Generation != 2 {
		t.Errorf("generation %d, condition %v", g.Generation, r)
	}

	beds, err := k.CoreV1().ConfigMaps("default").Watch(limited,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "rose").String()})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(ctx, g); err != nil {
		t.Fatal(err)
	}
	for e := range beds.ResultChan() {
		if e.Type == watch.Deleted {
			beds.Stop()
		}
	}
	if err := c.Get(ctx, key, g); !apierrors.IsNotFound(err) {
		t.Errorf("the garden is still there: %v", err)
	}
	list := &eventsv1.EventList{}
	if err := c.List(ctx, list, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	reasons := map[string]bool{}
	for _, e := range list.Items {
		reasons[e.Regarding.Name+" "+e.Reason+": "+e.Note] = true
	}
	if !reasons["rose Planted: 3 plants stand"] {
		t.Errorf("events %v", reasons)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
