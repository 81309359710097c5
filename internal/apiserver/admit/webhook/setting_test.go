// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// hookServer answers reviews with a fixed response, in which UID stands for the review's uid.
type hookServer struct {
	*httptest.Server
	status int
	say    string
	other  map[string]string   // the responses at other paths
	meet   func(*http.Request) // called before each response

	mu    sync.Mutex
	asked []string                       // by path
	about []*admissionv1.AdmissionReview // the received reviews
}

// paths returns the paths of all calls so far, in order of arrival.
func (s *hookServer) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func newHookServer(t *testing.T) *hookServer {
	t.Helper()
	s := &hookServer{}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(q.Body).Decode(review); err != nil {
			t.Errorf("read review: %v", err)
		}
		s.mu.Lock()
		s.asked, s.about = append(s.asked, strings.TrimPrefix(q.URL.Path, "/")), append(s.about, review)
		s.mu.Unlock()
		if s.meet != nil {
			s.meet(q)
		}
		w.Header().Set("Content-Type", "application/json")
		if s.status != 0 {
			w.WriteHeader(s.status)
		}
		say, ok := s.other[strings.TrimPrefix(q.URL.Path, "/")]
		if !ok {
			say = s.say
		}
		_, _ = w.Write([]byte(strings.ReplaceAll(say, "UID", string(review.Request.UID))))
	}))
	t.Cleanup(s.Close)
	return s
}

// newest returns the last received review.
func (s *hookServer) newest(t *testing.T) *admissionv1.AdmissionReview {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.about) == 0 {
		t.Fatal("the webhook was not asked")
	}
	return s.about[len(s.about)-1]
}

// answerOf returns a review with a response.
func answerOf(response string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"UID",` + response + `}}`
}

func patchOf(patch string) string {
	return answerOf(`"allowed":true,"patchType":"JSONPatch","patch":"` + base64.StdEncoding.EncodeToString([]byte(patch)) + `"`)
}

// setting is a server with both plug-ins, and webhooks of both kinds of the same name.
type setting struct {
	host       *admit.Host
	mutating   *Mutating
	validating *Validating
	objects    *cupboard
	kinds      []*resource.Descriptor
	panics     string // the key of an audit annotation that panics
}

// cupboard is a backend of a few objects, by resource and name.
type cupboard struct {
	resource.Backend
	objects map[string]resource.Object
	broken  error
}

func (c *cupboard) Get(_ context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error) {
	if c.broken != nil {
		return nil, c.broken
	}
	if obj := c.objects[r.Resource+"/"+namespace+"/"+name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(r, name)
}

func (c *cupboard) List(_ context.Context, r schema.GroupResource, namespace string) ([]resource.Object, error) {
	if c.broken != nil {
		return nil, c.broken
	}
	var out []resource.Object
	for _, k := range slices.Sorted(maps.Keys(c.objects)) {
		if strings.HasPrefix(k, r.Resource+"/"+namespace) {
			out = append(out, c.objects[k])
		}
	}
	return out, nil
}

func (s *setting) kind(r schema.GroupResource) *resource.Descriptor {
	for _, d := range s.kinds {
		if d.GroupResource() == r {
			return d
		}
	}
	return nil
}

// kinds returns pods in two versions, of which the second has an annotation; config maps; the two kinds of
// configurations; and widgets, a custom kind.
// are custom.
func kinds() []*resource.Descriptor {
	one := func(group, plural, kind string, made func() resource.Object) *resource.Descriptor {
		return &resource.Descriptor{
			Group: group, Resource: plural, Kind: kind, ListKind: kind + "List", Namespaced: group != admissionregistrationv1.GroupName,
			Storage: "v1", Prefix: plural,
			Versions: []resource.Version{{Name: "v1", New: made}},
		}
	}
	pods := one("", "pods", "Pod", func() resource.Object { return &corev1.Pod{} })
	pods.Versions[0].Default = func(obj resource.Object) {
		if p := obj.(*corev1.Pod); p.Spec.RestartPolicy == "" {
			p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		}
	}
	form := func(name, cannot string) func(resource.Object) (resource.Object, error) {
		return func(obj resource.Object) (resource.Object, error) {
			if obj.GetName() == cannot {
				return nil, errors.New("no such form")
			}
			obj.SetAnnotations(map[string]string{"form": name})
			return obj, nil
		}
	}
	pods.Versions = append(pods.Versions, resource.Version{
		Name: "v1beta1", New: func() resource.Object { return &corev1.Pod{} }, FromHub: form("v1beta1", "no-beta"), ToHub: form("v1", "no-hub"),
	})
	return []*resource.Descriptor{
		pods, one("", "configmaps", "ConfigMap", func() resource.Object { return &corev1.ConfigMap{} }),
		one(group, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", func() resource.Object {
			return &admissionregistrationv1.MutatingWebhookConfiguration{}
		}),
		one(group, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", func() resource.Object {
			return &admissionregistrationv1.ValidatingWebhookConfiguration{}
		}),
		one("example.com", "widgets", "Widget", nil),
	}
}

func newSetting(t *testing.T, protection Protection, prepare ...func(*setting)) *setting {
	t.Helper()
	s := &setting{mutating: NewMutating(Options{}), validating: NewValidating(Options{}),
		objects: &cupboard{objects: map[string]resource.Object{}}}
	s.kinds = kinds()
	s.host = &admit.Host{
		Log: slog.New(slog.DiscardHandler), Ledger: extension.NewLedger(clock.RealClock{}), Metrics: prometheus.NewRegistry(),
		Kinds: func() []*resource.Descriptor { return s.kinds }, Kind: s.kind,
		Backend: func() resource.Backend { return s.objects },
		Authorize: func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "", nil
		},
	}
	for _, f := range prepare {
		f(s)
	}
	s.mutating.Protect(protection)
	s.validating.Protect(protection)
	if err := errors.Join(s.mutating.Join(s.host), s.validating.Join(s.host)); err != nil {
		t.Fatal(err)
	}
	return s
}

// webhookOf returns a webhook for all pods and config maps.
func webhookOf(server *hookServer, name string) admissionregistrationv1.MutatingWebhook {
	url := server.URL + "/" + name
	return admissionregistrationv1.MutatingWebhook{
		Name: name + ".example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
		TimeoutSeconds: ptr.To(int32(10)),
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url,
			CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
		Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{"*"},
			Rule: admissionregistrationv1.Rule{
				APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"pods", "configmaps"},
			}}},
		NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
	}
}

// register registers mutating or validating webhooks.
func (s *setting) register(t *testing.T, mutating bool, hooks ...admissionregistrationv1.MutatingWebhook) {
	t.Helper()
	s.store(mutating, "c", hooks...)
	s.committed(t, "c")
}

// store stores a configuration without notifying the plug-ins, and returns its key in the backend.
func (s *setting) store(mutating bool, name string, hooks ...admissionregistrationv1.MutatingWebhook) (key string) {
	if mutating {
		key = "mutatingwebhookconfigurations//" + name
		s.objects.objects[key] = &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: hooks}
		return key
	}
	c := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, h := range hooks {
		c.Webhooks = append(c.Webhooks, admissionregistrationv1.ValidatingWebhook{
			Name: h.Name, ClientConfig: h.ClientConfig, Rules: h.Rules, FailurePolicy: h.FailurePolicy, MatchPolicy: h.MatchPolicy,
			NamespaceSelector: h.NamespaceSelector, ObjectSelector: h.ObjectSelector, SideEffects: h.SideEffects, TimeoutSeconds: h.TimeoutSeconds,
			AdmissionReviewVersions: h.AdmissionReviewVersions, MatchConditions: h.MatchConditions,
		})
	}
	key = "validatingwebhookconfigurations//" + name
	s.objects.objects[key] = c
	return key
}

// change returns the change of an object to its current state.
func (s *setting) change(r schema.GroupResource, namespace, name string) *feed.Change {
	return &feed.Change{Resource: r, Namespace: namespace, Name: name, Object: s.objects.objects[r.Resource+"/"+namespace+"/"+name]}
}

// committed notifies the plug-ins of a change of the configurations with a name.
func (s *setting) committed(t *testing.T, name string) {
	t.Helper()
	for _, p := range []admit.Follower{s.mutating, s.validating} {
		if err := p.Apply(t.Context(), s.change(p.Follows()[0], "", name)); err != nil {
			t.Fatal(err)
		}
	}
}

func creation() *admit.Attributes {
	obj := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", Labels: map[string]string{"team": "a"}},
	}
	obj.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	return &admit.Attributes{
		Operation: admit.Create, Version: "v1", Namespace: "ns", Name: "p", Object: obj, Options: &metav1.CreateOptions{},
		User: &user.DefaultInfo{Name: "u"}, Warn: func(string) {}, Annotate: func(string, string) {},
	}
}

type heard []string

func (h *heard) AddWarning(_, text string) { *h = append(*h, text) }

// admit passes a request through both plug-ins.
func (s *setting) admit(ctx context.Context, a *admit.Attributes) error {
	chain := admit.Chain{s.mutating, s.validating}
	if err := chain.Mutate(ctx, s.objects, a); err != nil {
		return err
	}
	return chain.Validate(ctx, s.objects, a)
}

// verdict formats an error with its code and reason, or returns "allowed".
func verdict(err error) string {
	var st apierrors.APIStatus
	switch {
	case err == nil:
		return "allowed"
	case errors.As(err, &st):
		return fmt.Sprintf("%d %s: %s", st.Status().Code, st.Status().Reason, err)
	}
	return err.Error()
}

// outcome returns all results of a request, one a line.
func (s *setting) outcome(t *testing.T, server *hookServer, a *admit.Attributes) string {
	t.Helper()
	return s.outcomeIn(t.Context(), server, a)
}

// outcomeIn is outcome with a context.
func (s *setting) outcomeIn(ctx context.Context, server *hookServer, a *admit.Attributes) string {
	if a.Descriptor == nil {
		a.Descriptor = s.kinds[0]
	}
	notes := map[string]string{}
	var mu sync.Mutex
	a.Annotate = func(k, v string) {
		if k == s.panics {
			panic("no such key")
		}
		mu.Lock()
		defer mu.Unlock()
		notes[k] = v
	}
	var warnings heard
	a.Warn = func(text string) { warnings = append(warnings, text) }
	err := s.admit(warning.WithWarningRecorder(ctx, &warnings), a)
	lines := []string{strings.ReplaceAll(verdict(err), server.URL, "URL")}
	if a.Object != nil && len(a.Object.GetLabels()) > 1 {
		lines = append(lines, fmt.Sprintf("labels %v", a.Object.GetLabels()))
	}
	for _, w := range warnings {
		lines = append(lines, "warning "+w)
	}
	for _, k := range slices.Sorted(maps.Keys(notes)) {
		lines = append(lines, k+" = "+notes[k])
	}
	return strings.Join(lines, "\n")
}

// counted returns the plug-ins' metrics without the durations.
func (s *setting) counted(t *testing.T) string {
	t.Helper()
	var out []string
	for line := range strings.Lines(admittest.Counts(t, s.host.Metrics.(prometheus.Gatherer))) {
		if line = strings.TrimPrefix(strings.TrimSpace(line), "apiserver_admission_webhook_"); !strings.HasPrefix(line, "admission_duration") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}
