// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// hooksSameName has webhooks of one name: in two configurations they are two, in one they are refused.
func hooksSameName(t *testing.T, h *hooks, ns string, _ *warned) {
	h.on("same1", allow)
	h.on("same2", patching(`[{"op":"add","path":"/data/two","value":"x"}]`))
	one, two := h.mutating("same1", ns), h.mutating("same2", ns)
	one.Name, two.Name = "same.example.com", "same.example.com"
	one.ReinvocationPolicy = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy)
	_, err := h.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(),
		&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "same"}, Webhooks: []admissionregistrationv1.MutatingWebhook{one, two},
		}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `webhooks[1].name: Duplicate value: "same.example.com"`) {
		t.Errorf("two of one name in one configuration: %v", err)
	}
	h.mutate(t, "same-b", two)
	h.mutate(t, "same-a", one)
	create(t, h, ns, configMap("x"))
	if diff := cmp.Diff([]string{"same1", "same2", "same1"}, paths(h.take())); diff != "" {
		t.Error(diff)
	}
}

// hooksTakenName has a webhook that takes the generated name for another object while it is asked: the server finds another name, for
// which the validating ones are asked again, and the mutating ones are not. A name that a webhook gives is not another's to change.
func hooksTakenName(t *testing.T, h *hooks, ns string, _ *warned) {
	var taken atomic.Bool
	h.on("taker", func(r *admissionv1.AdmissionReview) any {
		var cm corev1.ConfigMap
		if err := json.Unmarshal(r.Request.Object.Raw, &cm); err != nil {
			return deny(err.Error())(r)
		}
		if cm.GenerateName != "" && taken.CompareAndSwap(false, true) {
			if _, err := h.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap(r.Request.Name), metav1.CreateOptions{}); err != nil {
				return deny(err.Error())(r)
			}
		}
		return allow(r)
	})
	h.mutate(t, "taken", h.mutating("allow", ns))
	h.validate(t, "taken", h.validating("taker", ns))
	cm := create(t, h, ns, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "gen-"}})
	mutating, validating := 0, []string{}
	for _, r := range h.take() {
		var asked corev1.ConfigMap
		if err := json.Unmarshal(r.Request.Object.Raw, &asked); err != nil {
			t.Fatal(err)
		}
		switch {
		case asked.GenerateName == "": // the one that took the name
		case r.Request.Name == "":
			mutating++
		default:
			validating = append(validating, r.Request.Name)
		}
	}
	if mutating != 1 || len(validating) != 2 || validating[0] == validating[1] || validating[1] != cm.Name {
		t.Errorf("mutating asked %d times, validating for %q; it is %q", mutating, validating, cm.Name)
	}
	if _, err := h.client.CoreV1().ConfigMaps(ns).Get(t.Context(), validating[0], metav1.GetOptions{}); err != nil {
		t.Errorf("the one that took the name: %v", err)
	}

	h.on("namer", patching(`[{"op":"add","path":"/metadata/name","value":"`+cm.Name+`"}]`))
	h.mutate(t, "namer", h.mutating("namer", ns))
	if _, err := h.client.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "gen-"}},
		metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a webhook gives a name that is taken: %v", err)
	}
}

// exempt writes one of each kind that configures admission, and asks each review.
func exempt(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	c := client.AdmissionregistrationV1()
	meta := metav1.ObjectMeta{Name: "exempt.example.com"}
	match := &admissionregistrationv1.MatchResources{ResourceRules: namedRules(rules("nothing.example.com", "v1", "nothings"))}
	ctx, opts, del := t.Context(), metav1.CreateOptions{}, metav1.DeleteOptions{}
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := c.ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta}, opts)
	check("ValidatingWebhookConfiguration", err)
	_, err = c.MutatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta}, opts)
	check("MutatingWebhookConfiguration", err)
	_, err = c.ValidatingAdmissionPolicies().Create(ctx,
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: match, Validations: validations("true"),
		}}, opts)
	check("ValidatingAdmissionPolicy", err)
	_, err = c.ValidatingAdmissionPolicyBindings().Create(ctx,
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta,
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: meta.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			}}, opts)
	check("ValidatingAdmissionPolicyBinding", err)
	_, err = c.MutatingAdmissionPolicies().Create(ctx,
		&admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: match, ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeJSONPatch,
				JSONPatch: &admissionregistrationv1.JSONPatch{Expression: `[JSONPatch{op: "remove", path: "/data/x"}]`}}},
		}}, opts)
	check("MutatingAdmissionPolicy", err)
	_, err = c.MutatingAdmissionPolicyBindings().Create(ctx,
		&admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: meta,
			Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: meta.Name}}, opts)
	check("MutatingAdmissionPolicyBinding", err)
	check("deletion", c.ValidatingWebhookConfigurations().Delete(ctx, meta.Name, del))
	check("deletion", c.MutatingWebhookConfigurations().Delete(ctx, meta.Name, del))
	check("deletion", c.ValidatingAdmissionPolicyBindings().Delete(ctx, meta.Name, del))
	check("deletion", c.ValidatingAdmissionPolicies().Delete(ctx, meta.Name, del))
	check("deletion", c.MutatingAdmissionPolicyBindings().Delete(ctx, meta.Name, del))
	check("deletion", c.MutatingAdmissionPolicies().Delete(ctx, meta.Name, del))

	_, err = client.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "x"}}, opts)
	check("TokenReview", err)
	_, err = client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, opts)
	check("SelfSubjectReview", err)
	of := &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Namespace: "default"}
	z := client.AuthorizationV1()
	_, err = z.SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "jane", ResourceAttributes: of}}, opts)
	check("SubjectAccessReview", err)
	_, err = z.SelfSubjectAccessReviews().Create(ctx,
		&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: of}}, opts)
	check("SelfSubjectAccessReview", err)
	_, err = z.LocalSubjectAccessReviews("default").Create(ctx,
		&authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "default"},
			Spec: authorizationv1.SubjectAccessReviewSpec{User: "jane", ResourceAttributes: of}}, opts)
	check("LocalSubjectAccessReview", err)
	_, err = z.SelfSubjectRulesReviews().Create(ctx,
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}, opts)
	check("SelfSubjectRulesReview", err)
}

// never are rules for all that neither webhooks nor policies are asked about.
func never() []admissionregistrationv1.RuleWithOperations {
	return slices.Concat(rules("admissionregistration.k8s.io", "*", "*"), rules("authentication.k8s.io", "*", "*"),
		rules("authorization.k8s.io", "*", "*"))
}

// hooksExemptAll has webhooks that would refuse all that configures admission, and all reviews: they are not asked, and can be taken back.
func hooksExemptAll(t *testing.T, h *hooks, ns string, _ *warned) {
	h.on("exempt", deny("never"))
	v, m := h.validating("exempt", ns), h.mutating("exempt", ns)
	v.Rules, m.Rules = slices.Concat(never(), rules("", "v1", "configmaps")), never()
	v.NamespaceSelector, m.NamespaceSelector = nil, nil
	v.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "here",
		Expression: "request.resource.group != '' || request.namespace == '" + ns + "'"}}
	h.validate(t, "exempt-all", v)
	h.mutate(t, "exempt-all", m)
	exempt(t, h.client)
	if asked := h.take(); len(asked) != 0 {
		t.Errorf("asked %d times, first for %v", len(asked), asked[0].Request.Resource)
	}
	if st := refused(t, h, ns, "x"); !strings.Contains(st.Message, "never") { // it is asked for other things
		t.Errorf("refused with %q", st.Message)
	}
}
