// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	gocmp "github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// everything returns constraints that match all requests.
func everything() *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{}}
}

// denial returns a policy with a validation expression, and its binding.
func denial(name, expression string, failure admissionregistrationv1.FailurePolicyType) (*admissionregistrationv1.ValidatingAdmissionPolicy,
	*admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
	p := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.MatchConstraints, p.Spec.FailurePolicy = everything(), &failure
	p.Spec.Validations = []admissionregistrationv1.Validation{{Expression: expression, Message: "no"}}
	b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name + "-binding"}}
	b.Spec.PolicyName, b.Spec.ValidationActions = name, []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	return p, b
}

func shelved(objects ...resource.Object) *library {
	l := &library{objects: map[string]resource.Object{
		"namespaces//default": &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}}
	for _, obj := range objects {
		l.put(obj)
	}
	return l
}

func (l *library) put(obj resource.Object) {
	plural := map[string]string{
		"*v1.ValidatingAdmissionPolicy":        "validatingadmissionpolicies",
		"*v1.ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
		"*v1.MutatingAdmissionPolicy":          "mutatingadmissionpolicies",
		"*v1.MutatingAdmissionPolicyBinding":   "mutatingadmissionpolicybindings",
	}[fmt.Sprintf("%T", obj)]
	l.objects[plural+"//"+obj.GetName()] = obj
}

// change returns the change of an object to its current state.
func (l *library) change(r schema.GroupResource, name string) *feed.Change {
	return &feed.Change{Resource: r, Name: name, Object: l.objects[r.Resource+"//"+name]}
}

// verdictOn returns the verdict of the policies on the creation of an object; empty: it is admitted.
func verdictOn(t *testing.T, h *admit.Host, v *Validating, l *library, obj resource.Object) string {
	t.Helper()
	var d *resource.Descriptor
	for _, k := range h.Kinds() {
		if fmt.Sprintf("%T", k.Versions[0].New()) == fmt.Sprintf("%T", obj) {
			d = k
			break
		}
	}
	a := &admit.Attributes{Operation: admit.Create, Descriptor: d, Version: "v1", Namespace: obj.GetNamespace(), Name: obj.GetName(),
		Object: obj, Options: &metav1.CreateOptions{}, User: &user.DefaultInfo{Name: "u"},
		Warn: func(string) {}, Annotate: func(string, string) {}}
	if err := v.Validate(t.Context(), l, a); err != nil {
		return err.Error()
	}
	return ""
}

// TestFailurePolicy checks that a policy that cannot be evaluated rejects the request unless its failure policy is
// Ignore, and that a denial rejects it in any case. testdata/failure.yaml has all other failures.
func TestFailurePolicy(t *testing.T) {
	const by = `pods "p" is forbidden: ValidatingAdmissionPolicy 'd' with binding 'd-binding' denied request: `
	for _, c := range []struct {
		failure    admissionregistrationv1.FailurePolicyType
		expression string
		want       string
	}{
		{admissionregistrationv1.Fail, "true", ""},
		{admissionregistrationv1.Ignore, "true", ""},
		{admissionregistrationv1.Fail, "false", by + "no"},
		{admissionregistrationv1.Ignore, "false", by + "no"},
		{admissionregistrationv1.Fail, "object.spec.hostname == ''",
			by + "expression 'object.spec.hostname == ''' resulted in error: no such key: hostname"},
		{admissionregistrationv1.Ignore, "object.spec.hostname == ''", ""},
	} {
		h, v, _ := server(t, Options{})
		p, b := denial("d", c.expression, c.failure)
		l := shelved(p, b)
		if err := v.Load(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		if got := verdictOn(t, h, v, l, pod()); got != c.want {
			t.Errorf("%s, %s: got %q, want %q", c.failure, c.expression, got, c.want)
		}
	}
}

// TestFollows checks that a policy or binding is in force from its commit on, until it is deleted.
func TestFollows(t *testing.T) {
	h, v, m := server(t, Options{})
	l := shelved()
	p, b := denial("d", "false", admissionregistrationv1.Fail)
	step := func(what string, r schema.GroupResource, name string, refused bool) {
		t.Helper()
		if err := v.Apply(t.Context(), l.change(r, name)); err != nil {
			t.Fatal(err)
		}
		if got := verdictOn(t, h, v, l, pod()); (got != "") != refused {
			t.Errorf("%s: %q", what, got)
		}
	}
	l.put(p)
	step("a policy alone", v.policies, "d", false)
	l.put(b)
	step("a policy and its binding", v.bindings, "d-binding", true)
	delete(l.objects, "validatingadmissionpolicies//d")
	step("the policy is gone", v.policies, "d", false)
	l.put(p)
	step("the policy is back", v.policies, "d", true)
	delete(l.objects, "validatingadmissionpolicybindings//d-binding")
	step("the binding is gone", v.bindings, "d-binding", false)

	l.unreadable = "validatingadmissionpolicies"
	if err := v.Load(t.Context(), l); err == nil || err.Error() != "disk full" {
		t.Errorf("policies that cannot be listed: %v", err)
	}
	l.unreadable = ""
	for r, want := range map[schema.GroupResource]string{v.policies: "read policy x: it is a *v1.Pod",
		v.bindings: "read policy binding x: it is a *v1.Pod"} {
		l.objects[r.Resource+"//x"] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
		for _, err := range []error{v.Apply(t.Context(), l.change(r, "x")), v.Load(t.Context(), l)} {
			if err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		}
		delete(l.objects, r.Resource+"//x")
	}
	for r, want := range map[schema.GroupResource]string{m.policies: "read policy x: it is a *v1.Pod",
		m.bindings: "read policy binding x: it is a *v1.Pod"} {
		l.objects[r.Resource+"//x"] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
		if err := m.Apply(t.Context(), l.change(r, "x")); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if got := fmt.Sprint(v.Name(), " ", v.Follows(), " ", m.Name(), " ",
		m.Follows()); got != "ValidatingAdmissionPolicy [validatingadmissionpolicies.admissionregistration.k8s.io validatingadmissionpolicybindings.admissionregistration.k8s.io] "+
		"MutatingAdmissionPolicy [mutatingadmissionpolicies.admissionregistration.k8s.io mutatingadmissionpolicybindings.admissionregistration.k8s.io]" {
		t.Error(got)
	}
}

const manifest = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: file.static.k8s.io}
spec:
  matchConstraints: {namespaceSelector: {}, objectSelector: {}}
  validations: [{expression: "false", message: from a file}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: binding.static.k8s.io}
spec: {policyName: file.static.k8s.io, validationActions: [Deny], matchResources: {namespaceSelector: {}, objectSelector: {}}}
`

// TestManifests checks that policies from files come before those of the API, apply to requests that those do not, and
// cannot be removed through the API.
func TestManifests(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(manifest)
	h, v, _ := server(t, Options{Manifests: dir})
	p, b := denial("d", "false", admissionregistrationv1.Fail)
	l := shelved(p, b)
	if err := v.Load(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	other, _ := denial("other", "true", admissionregistrationv1.Fail)
	const by = "ValidatingAdmissionPolicy 'file.static.k8s.io' with binding 'binding.static.k8s.io' denied request: from a file"
	for _, obj := range []resource.Object{pod(), other, b} {
		if got := verdictOn(t, h, v, l, obj); !strings.Contains(got, by) {
			t.Errorf("%T: %q", obj, got)
		}
	}
	if changed, err := v.readManifests(); changed || err != nil {
		t.Errorf("read again: %v, %v", changed, err)
	}
	write("kind: Nothing")
	if changed, err := v.readManifests(); changed || err == nil {
		t.Errorf("a bad file: %v, %v", changed, err)
	}
	if got := verdictOn(t, h, v, l, other); !strings.Contains(got, by) {
		t.Errorf("what was read before does not stay: %q", got)
	}
	write(strings.Replace(manifest, "from a file", "from another", 1))
	if changed, err := v.readManifests(); !changed || err != nil {
		t.Errorf("read anew: %v, %v", changed, err)
	}
	if got := verdictOn(t, h, v, l, other); !strings.Contains(got, "from another") {
		t.Errorf("read anew: %q", got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if changed, err := v.readManifests(); !changed || err != nil {
		t.Errorf("no file: %v, %v", changed, err)
	}
	if got := verdictOn(t, h, v, l, pod()); !strings.Contains(got, "'d-binding' denied") {
		t.Errorf("the policy of the API: %q", got)
	}
	if got := verdictOn(t, h, v, l, other); got != "" {
		t.Errorf("policies meet one of the API: %q", got)
	}
	write("kind: Nothing")
	_, bad, _ := server(t, Options{Manifests: dir})
	if err := bad.Load(t.Context(), l); err == nil {
		t.Error("started with a bad file")
	}
}

// TestRunWithoutManifests checks that Run without a directory runs until its context ends.
func TestRunWithoutManifests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, v, _ := server(t, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- v.Run(ctx) }()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("ended early: %v", err)
		default:
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestAuditBounds checks that the audit event contains at most 50 failures, and at most 10 KiB of an annotation.
func TestAuditBounds(t *testing.T) {
	for _, n := range []int{1, 50, 51} {
		h, v, _ := server(t, Options{})
		p, b := denial("d", "true", admissionregistrationv1.Fail)
		p.Spec.Validations = nil
		for i := range n {
			p.Spec.Validations = append(p.Spec.Validations, admissionregistrationv1.Validation{Expression: "false", Message: fmt.Sprint("m", i)})
		}
		p.Spec.AuditAnnotations = []admissionregistrationv1.AuditAnnotation{{Key: "long",
			ValueExpression: "'" + strings.Repeat("x", maxAnnotation+n-50) + "'"}}
		b.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit}
		l := shelved(p, b)
		if err := v.Load(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		notes := map[string]string{}
		a := &admit.Attributes{Operation: admit.Create, Descriptor: h.Kinds()[0], Version: "v1", Namespace: "default", Name: "p", Object: pod(),
			Options: &metav1.CreateOptions{}, User: &user.DefaultInfo{Name: "u"},
			Warn: func(string) {}, Annotate: func(k, v string) { notes[k] = v }}
		if err := v.Validate(t.Context(), l, a); err != nil {
			t.Fatal(err)
		}
		var failures []failure
		if err := json.Unmarshal([]byte(notes["validation.policy.admission.k8s.io/validation_failure"]), &failures); err != nil {
			t.Fatal(err)
		}
		if len(failures) != min(n, 50) || failures[0].Message != "m0" {
			t.Errorf("%d failures: the log has %d", n, len(failures))
		}
		if got, want := len(notes["d/long"]), min(10*1024, 10*1024+n-50); got != want {
			t.Errorf("an annotation of %d bytes, want %d", got, want)
		}
	}
}

// TestInterfaces covers the methods that the library for JSON patches may call.
func TestInterfaces(t *testing.T) {
	h, _, _ := server(t, Options{})
	obj := pod()
	q := matching.NewRequest(h, shelved(), &admit.Attributes{Operation: admit.Create, Descriptor: h.Kinds()[0], Version: "v1", Object: obj})
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	v := &matching.Versioned{Form: matching.Form{Kind: kind}, Object: obj}
	i := interfaces{v: v, q: q, kinds: h.Kinds}
	if i.GetObjectDefaulter() != nil || i.GetObjectConvertor() != nil || i.GetEquivalentResourceMapper() != nil ||
		i.GetObjectCreater() == nil || i.GetObjectTyper() == nil {
		t.Error("what nobody needs is there, or what somebody needs is not")
	}
	if !i.Recognizes(kind) || i.Recognizes(corev1.SchemeGroupVersion.WithKind("Node")) {
		t.Error("recognizes another kind")
	}
	for gvk, want := range map[schema.GroupVersionKind]string{
		kind: "*v1.Pod", corev1.SchemeGroupVersion.WithKind("Node"): "*v1.Node",
		{Group: "apps", Version: "v1", Kind: "Deployment"}: "*v1.Deployment",
		{Group: "apps", Version: "v0", Kind: "Deployment"}: "", {Version: "v1", Kind: "Deployment"}: "", {Version: "v2", Kind: "Pod"}: "",
		{Version: "v1", Kind: "Nothing"}: "",
	} {
		made, err := i.New(gvk)
		if got := fmt.Sprintf("%T", made); err == nil && got != want || (err == nil) == (want == "") {
			t.Errorf("%v: got %s, %v", gvk, got, err)
		}
	}
	free := &unstructured.Unstructured{}
	free.SetAPIVersion("example.com/v1")
	for said, want := range map[string]string{"": "/v1, Kind=Pod", "Widget": "example.com/v1, Kind=Widget"} {
		free.SetKind(said)
		kinds, unversioned, err := i.ObjectKinds(free)
		if err != nil || unversioned || len(kinds) != 1 || kinds[0].String() != want {
			t.Errorf("%q: %v, %v, %v", said, kinds, unversioned, err)
		}
	}
	if kinds, _, err := i.ObjectKinds(pod()); err != nil || kinds[0] != kind {
		t.Errorf("%v, %v", kinds, err)
	}
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	for _, c := range []struct {
		is, becomes resource.Object
		want        string
	}{
		{obj, pod(), ""}, {obj, free, ""}, {free, obj, ""},
		{obj, node, "failed to convert object: converting (v1.Node) to (core.Pod): unknown conversion"},
	} {
		err := sameKind(&matching.Versioned{Form: v.Form, Object: c.is}, c.becomes)
		if got := fmt.Sprint(errors.Join(err)); c.want == "" && err != nil || c.want != "" && got != c.want {
			t.Errorf("%T to %T: %v", c.is, c.becomes, err)
		}
	}
}

// TestManifestWithoutBinding checks that a policy in a file applies only through a binding, even if it is invalid.
func TestManifestWithoutBinding(t *testing.T) {
	dir := t.TempDir()
	alone, _, _ := strings.Cut(manifest, "---")
	alone = strings.Replace(alone, "  matchConstraints: {namespaceSelector: {}, objectSelector: {}}\n", "", 1)
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(alone), 0o600); err != nil {
		t.Fatal(err)
	}
	h, v, _ := server(t, Options{Manifests: dir})
	l := shelved()
	if err := v.Load(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got := verdictOn(t, h, v, l, pod()); got != "" {
		t.Error(got)
	}
}

// loads passes the messages that are logged on.
type loads struct {
	slog.Handler
	messages chan string
}

func (l loads) Handle(_ context.Context, r slog.Record) error {
	l.messages <- r.Message
	return nil
}

// TestRun checks that a plug-in with a directory of manifests follows it until its context ends.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	h, v, _ := server(t, Options{Manifests: dir})
	logged := loads{slog.NewTextHandler(io.Discard, nil), make(chan string, 100)}
	h.Log = slog.New(logged)
	l := shelved()
	if err := v.Load(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	whole := filepath.Join(t.TempDir(), "whole")
	if err := os.WriteFile(whole, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(whole, filepath.Join(dir, "policy.yaml")); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-logged.messages:
		if got != "Reloaded admission manifests" {
			t.Error(got)
		}
	case err := <-ended:
		t.Fatalf("ended early: %v", err)
	}
	if got := verdictOn(t, h, v, l, pod()); !strings.Contains(got, "from a file") {
		t.Errorf("the policy in the new file: %q", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestLedger checks that the ledger lists the policies in force with their source.
func TestLedger(t *testing.T) {
	h, v, _ := server(t, Options{})
	p, b := denial("d", "false", admissionregistrationv1.Fail)
	alone, _ := denial("alone", "false", admissionregistrationv1.Fail)
	if err := v.Load(t.Context(), shelved(p, b, alone)); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range h.Ledger.Snapshot() {
		got = append(got, fmt.Sprint(e.Point, " ", e.Name, " ", e.Where))
	}
	if want := []string{"validating-admission-policy d validatingadmissionpolicies/d"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if err := v.Load(t.Context(), shelved(alone)); err != nil {
		t.Fatal(err)
	}
	if left := h.Ledger.Snapshot(); len(left) > 0 {
		t.Errorf("deleted and still listed: %+v", left)
	}
}

// TestLedgerCounts checks that the ledger counts evaluations of policies and their errors, and that a denial is not an
// error.
func TestLedgerCounts(t *testing.T) {
	h, v, m := server(t, Options{})
	denies, first := denial("denies", "false", admissionregistrationv1.Fail)
	allows, second := denial("allows", "true", admissionregistrationv1.Fail)
	broken, third := denial("broken", "object.nosuch == 1", admissionregistrationv1.Ignore)
	elsewhere, fourth := denial("elsewhere", "false", admissionregistrationv1.Fail)
	elsewhere.Spec.MatchConstraints = about("apps", "v1", "deployments")
	labels, fifth := labelling(`"y"`, everything())
	fails, sixth := labelling("object.metadata.labels.late", everything())
	fails.Name, sixth.Name, sixth.Spec.PolicyName = "n", "n-binding", "n"
	l := shelved(denies, first, allows, second, broken, third, elsewhere, fourth, labels, fifth, fails, sixth)
	if err := errors.Join(v.Load(t.Context(), l), m.Load(t.Context(), l)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := verdictOn(t, h, v, l, pod()); !strings.Contains(got, "'denies'") {
			t.Errorf("the verdict is %q", got)
		}
		if err := m.Mutate(t.Context(), l, creation(kindOf(h.Kinds(), schema.GroupResource{Resource: "pods"}), pod())); err == nil {
			t.Error("a mutation that fails is passed over")
		}
	}
	var got []string
	for _, e := range h.Ledger.Snapshot() {
		got = append(got, fmt.Sprintf("%s: %s, %d calls, %d failed, error %t", e.Name, e.State, e.Calls, e.Failures, e.LastError != ""))
	}
	want := []string{
		"m: ok, 2 calls, 0 failed, error false", "n: failing, 2 calls, 2 failed, error true",
		"allows: ok, 2 calls, 0 failed, error false", "broken: failing, 2 calls, 2 failed, error true",
		"denies: ok, 2 calls, 0 failed, error false",
		"elsewhere: never called, 0 calls, 0 failed, error false",
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("the ledger (-want +got):\n%s", diff)
	}
}

// TestConfigurationsOfWebhooks checks that policies apply to configurations of webhooks, unlike to policies.
func TestConfigurationsOfWebhooks(t *testing.T) {
	_, v, _ := server(t, Options{})
	p, b := denial("d", "false", admissionregistrationv1.Fail)
	l := shelved(p, b)
	if err := v.Load(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	for plural, want := range map[string]string{"validatingwebhookconfigurations": "no", "mutatingadmissionpolicybindings": ""} {
		d := &resource.Descriptor{Group: group, Resource: plural, Kind: "Any", Versions: []resource.Version{{Name: "v1"}}, Storage: "v1"}
		err := v.Validate(t.Context(), l, creation(d,
			&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "c"}}))
		if (err != nil) != (want != "") || err != nil && !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", plural, err, want)
		}
	}
}

// TestJoinTwice checks that a server has only one plug-in of each name, because their metrics have the same names.
func TestJoinTwice(t *testing.T) {
	h, _, _ := server(t, Options{})
	for _, p := range []admit.Hosted{NewValidating(Options{}), NewMutating(Options{})} {
		if err := p.Join(h); err == nil || !strings.Contains(err.Error(), "duplicate metrics collector registration attempted") {
			t.Errorf("%s: %v", p.Name(), err)
		}
	}
}
