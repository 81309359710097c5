// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// hooksPlugins: a webhook adds a container; the plug-ins, which ran before it, run once more
// on what it made: the container gets the namespace's limits, and the token that all containers have. What
// they changed has the webhook called once more, and what a policy may say of the result it says in the second round too.
func hooksPlugins(t *testing.T, h *hooks, ns string, _ *warned) {
	ctx := t.Context()
	if _, err := h.client.CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer, Default: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
	}}}}
	if _, err := h.client.CoreV1().LimitRanges(ns).Create(ctx, limits, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := &policies{Interface: h.client}
	p.mutate(t, ns, admissionregistrationv1.MutatingAdmissionPolicySpec{
		MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: namedRules(rules("", "v1", "pods",
			admissionregistrationv1.Create)), NamespaceSelector: in(ns)},
		ReinvocationPolicy: admissionregistrationv1.IfNeededReinvocationPolicy,
		Mutations: []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
			ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{
				Expression: "Object{metadata: Object.metadata{annotations: {'containers': string(size(object.spec.containers))}}}",
			}}},
	})
	h.on("sidecar", func(r *admissionv1.AdmissionReview) any {
		var pod corev1.Pod
		if err := json.Unmarshal(r.Request.Object.Raw, &pod); err != nil || len(pod.Spec.Containers) > 1 {
			return allow(r)
		}
		return patching(`[{"op":"add","path":"/spec/containers/-","value":{"name":"second","image":"i:latest"}}]`)(r)
	})
	sidecar, once := h.mutating("sidecar", ns), h.mutating("allow", ns)
	sidecar.Rules, once.Rules = rules("", "v1", "pods", admissionregistrationv1.Create),
		rules("", "v1", "pods", admissionregistrationv1.Create)
	sidecar.ReinvocationPolicy = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy)
	h.mutate(t, "sidecar", sidecar, once)
	pod, err := h.client.CoreV1().Pods(ns).Create(ctx,
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	asked := h.take()
	if diff := cmp.Diff([]string{"sidecar", "allow", "sidecar"}, paths(asked)); diff != "" {
		t.Fatal(diff)
	}
	seen := func(r review) (cpu []string, mounts []int) {
		var p corev1.Pod
		if err := json.Unmarshal(r.Request.Object.Raw, &p); err != nil {
			t.Fatal(err)
		}
		for _, c := range p.Spec.Containers {
			cpu, mounts = append(cpu, c.Resources.Limits.Cpu().String()), append(mounts, len(c.VolumeMounts))
		}
		return cpu, mounts
	}
	for i, want := range [][]string{{"100m"}, {"100m", "0"}, {"100m", "100m"}} {
		cpu, mounts := seen(asked[i])
		if diff := cmp.Diff(want, cpu); diff != "" {
			t.Errorf("call %d saw limits %s", i, diff)
		}
		if want := [][]int{{1}, {1, 0}, {1, 1}}[i]; !cmp.Equal(want, mounts) {
			t.Errorf("call %d saw containers with %v mounts, want %v", i, mounts, want)
		}
	}
	if cpu, mounts := seen(review{AdmissionReview: admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{Object: encoded(t,
		pod)}}}); !cmp.Equal(cpu, []string{"100m", "100m"}) || !cmp.Equal(mounts, []int{1, 1}) || pod.Annotations["containers"] != "2" {
		t.Errorf("created with limits %v, mounts %v, annotations %v", cpu, mounts, pod.Annotations)
	}
}

// hooksDenied: what a webhook makes of an object is what validating plug-ins look at, and those that both change and validate.
func hooksDenied(t *testing.T, h *hooks, ns string, _ *warned) {
	space := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"baseline"}}}`)
	if _, err := h.client.CoreV1().Namespaces().Patch(t.Context(), ns, types.MergePatchType, space, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.CoreV1().ServiceAccounts(ns).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ patch, want string }{
		"a privileged pod": {`[{"op":"add","path":"/spec/hostNetwork","value":true}]`, "violates PodSecurity"},
		"a class that is missing": {`[{"op":"add","path":"/spec/priorityClassName","value":"none"}]`,
			"no PriorityClass with name none was found"},
		"an account that is not": {`[{"op":"replace","path":"/spec/serviceAccountName","value":"nobody"}]`,
			`error looking up service account ` + ns + `/nobody: serviceaccount "nobody" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			h.on("change", patching(c.patch))
			w := h.mutating("change", ns)
			w.Rules = rules("", "v1", "pods", admissionregistrationv1.Create)
			h.mutate(t, "change", w)
			_, err := h.client.CoreV1().Pods(ns).Create(t.Context(),
				&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
				metav1.CreateOptions{})
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("refused with %v, want %q", err, c.want)
			}
		})
	}
}

// TestSideEffects is number 07 of the list above for webhooks that v1 of the API takes no more, such as an old cluster has in its store:
// those with side effects, and those that do not say. A dry run does not pass them over, whatever their failure policy: it is
// refused, and none of them is called. What is no dry run goes on as ever.
func TestSideEffects(t *testing.T) {
	h := startHooks(t, nil)
	h.on("allow", allow)
	var ws []admissionregistrationv1.ValidatingWebhook
	for _, c := range []struct {
		name   string
		says   *admissionregistrationv1.SideEffectClass
		policy admissionregistrationv1.FailurePolicyType
	}{
		{"some", ptr.To(admissionregistrationv1.SideEffectClassSome), admissionregistrationv1.Ignore},
		{"unknown", ptr.To(admissionregistrationv1.SideEffectClassUnknown), admissionregistrationv1.Ignore},
		{"silent", nil, admissionregistrationv1.Fail},
		{"silent-open", nil, admissionregistrationv1.Ignore},
	} {
		w := h.validating("allow", "default")
		w.Name, w.SideEffects, w.FailurePolicy = c.name+".example.com", c.says, ptr.To(c.policy)
		w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"for": c.name}}
		w.MatchPolicy = ptr.To(admissionregistrationv1.Equivalent)
		w.TimeoutSeconds = ptr.To(int32(30))
		ws = append(ws, w)
	}
	h.client = kubernetes.NewForConfigOrDie(stored(t,
		map[string]runtime.Object{"validatingwebhookconfigurations/old": &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "old", UID: "11111111-1111-1111-1111-111111111111", CreationTimestamp: metav1.Unix(1600000000, 0)},
			Webhooks:   ws,
		}}).Config())
	try := func(label string, opts metav1.CreateOptions) error {
		cm := configMap("x-" + label)
		cm.Labels = map[string]string{"for": label}
		_, err := h.client.CoreV1().ConfigMaps("default").Create(context.WithoutCancel(t.Context()), cm, opts)
		return err
	}
	for label, want := range map[string]metav1.Status{
		"some": {Code: http.StatusBadRequest, Reason: metav1.StatusReasonBadRequest,
			Message: `admission webhook "some.example.com" does not support dry run`},
		"unknown": {Code: http.StatusBadRequest, Reason: metav1.StatusReasonBadRequest,
			Message: `admission webhook "unknown.example.com" does not support dry run`},
		"silent": {Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
			Message: `Internal error occurred: failed calling webhook "silent.example.com": Webhook SideEffects is nil`},
	} {
		err := try(label, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		st := apierrors.APIStatus(nil)
		if !errors.As(err, &st) {
			t.Errorf("%s: a dry run was not refused with a status: %v", label, err)
			continue
		}
		got := metav1.Status{Code: st.Status().Code, Reason: st.Status().Reason, Message: st.Status().Message}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", label, diff)
		}
	}
	if err := try("silent-open", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("one that does not say, and whose failures are passed over: %v", err)
	}
	if asked := h.take(); len(asked) != 0 {
		t.Errorf("dry runs called %v", paths(asked))
	}
	for _, label := range []string{"some", "unknown", "silent", "silent-open"} {
		if err := try(label, metav1.CreateOptions{}); err != nil {
			t.Errorf("%s: %v", label, err)
		}
	}
	if n := len(h.take()); n != 4 {
		t.Errorf("%d webhooks were called for what is no dry run", n)
	}
	// The API takes no such webhook, but lets one be that is there.
	c := h.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := c.Create(t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "new"},
		Webhooks: ws[:1]}, metav1.CreateOptions{}); err == nil ||
		!strings.Contains(err.Error(), `webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"`) {
		t.Errorf("created: %v", err)
	}
	body := []byte(`[{"op":"add","path":"/webhooks/2/sideEffects","value":"None"},{"op":"add","path":"/webhooks/3/sideEffects","value":"None"}]`)
	if _, err := c.Patch(t.Context(), "old", types.JSONPatchType, body, metav1.PatchOptions{}); err != nil {
		t.Errorf("the old one cannot be written any more: %v", err)
	}
}

// encoded is a pod as reviews have it.
func encoded(t *testing.T, pod *corev1.Pod) (out runtime.RawExtension) {
	t.Helper()
	var err error
	if out.Raw, err = json.Marshal(pod); err != nil {
		t.Fatal(fmt.Errorf("encode pod: %w", err))
	}
	return out
}
