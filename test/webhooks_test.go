// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// warned keeps the warnings of answers.
type warned struct {
	mu   sync.Mutex
	said []string
}

func (w *warned) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

// TestWebhooks goes through what webhooks are easily got wrong in, as numbered for extension point A10.
func TestWebhooks(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	heard := &warned{}
	config := rest.CopyConfig(cluster.Config())
	config.WarningHandler = heard
	client := kubernetes.NewForConfigOrDie(config)
	h := startHooks(t, client)
	h.on("allow", allow)
	for _, c := range []struct {
		name string
		test func(t *testing.T, h *hooks, ns string, heard *warned)
	}{
		{"01 mutating ones are called one by one in order", hooksInOrder},
		{"01b one name in two configurations", hooksSameName},
		{"02 at most once more, where others changed something afterwards", hooksAgain},
		{"02b built-in plug-ins and policies are called once more, too", hooksPlugins},
		{"02c what is wrong with what a webhook made is found", hooksDenied},
		{"03 defaults are filled in after each patch", hooksDefaults},
		{"04 validating ones are called at once", hooksAtOnce},
		{"05 answers are checked", hooksAnswers},
		{"06 a patch of a deletion", hooksPatchDeletion},
		{"07 dry runs", hooksDryRun},
		{"08 generated names", hooksGeneratedName},
		{"08b generated names that are taken meanwhile", hooksTakenName},
		{"09 deletions, connections, subresources", hooksOperations},
		{"09b the deletion of what has no grace left", hooksGrace},
		{"10 the version of the rule", hooksEquivalent},
		{"11 namespaces, and what is in none", hooksNamespaces},
		{"12 what no webhook sees", hooksExempt},
		{"12b none of the kinds that configure admission, no review", hooksExemptAll},
		{"13 a configuration counts with its commit", hooksCommit},
		{"14 warnings", hooksWarnings},
		{"15 broken managed fields", hooksManagedFields},
		{"16 who asks", hooksAgent},
		{"17 failure policy", hooksFailure},
		{"18 match conditions", hooksConditions},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.test(t, h, h.namespace(t, "n"+strings.Fields(c.name)[0]), heard)
		})
	}
}

func create(t *testing.T, h *hooks, ns string, cm *corev1.ConfigMap, opts ...metav1.CreateOptions) *corev1.ConfigMap {
	t.Helper()
	out, err := h.client.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, append(opts, metav1.CreateOptions{})[0])
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// refused creates a config map, which must not be.
func refused(t *testing.T, h *hooks, ns, name string, opts ...metav1.CreateOptions) metav1.Status {
	t.Helper()
	_, err := h.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap(name), append(opts, metav1.CreateOptions{})[0])
	st, ok := err.(apierrors.APIStatus)
	if !ok {
		t.Fatalf("created, or no status: %v", err)
	}
	return st.Status()
}

func hooksInOrder(t *testing.T, h *hooks, ns string, _ *warned) {
	for _, p := range []string{"one", "two", "three", "four"} {
		h.on(p, func(r *admissionv1.AdmissionReview) any {
			var cm corev1.ConfigMap
			_ = json.Unmarshal(r.Request.Object.Raw, &cm)
			return patching(fmt.Sprintf(`[{"op":"add","path":"/data/%s","value":"%d"}]`, p, len(cm.Data)))(r)
		})
	}
	h.mutate(t, "b-first-made", h.mutating("four", ns))
	h.mutate(t, "a-last-made", h.mutating("one", ns), h.mutating("two", ns), h.mutating("three", ns))
	cm := create(t, h, ns, configMap("x"))
	if diff := cmp.Diff([]string{"one", "two", "three", "four"}, paths(h.take())); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"a": "b", "one": "1", "two": "2", "three": "3", "four": "4"}, cm.Data); diff != "" {
		t.Error(diff)
	}
}

func hooksAgain(t *testing.T, h *hooks, ns string, _ *warned) {
	label := func(key string) func(*admissionv1.AdmissionReview) any {
		return patching(`[{"op":"add","path":"/data/` + key + `","value":"x"}]`)
	}
	h.on("again1", label("one"))
	h.on("again2", label("two"))
	h.on("late", label("late"))
	one, two, late := h.mutating("again1", ns), h.mutating("again2", ns), h.mutating("late", ns)
	one.ReinvocationPolicy = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy)
	two.ReinvocationPolicy = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy)
	late.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "later", Expression: "has(object.data.two)"}}
	h.mutate(t, "again", late, one, two)
	create(t, h, ns, configMap("x"))
	// The second changes what the first saw, so the first is called again; the second changed nothing afterwards. The one that did not
	// match at first is not called in the second round, though it would match.
	if diff := cmp.Diff([]string{"again1", "again2", "again1"}, paths(h.take())); diff != "" {
		t.Error(diff)
	}
}

func hooksDefaults(t *testing.T, h *hooks, ns string, _ *warned) {
	h.on("container", patching(`[{"op":"add","path":"/spec/containers/-","value":{"name":"second","image":"i:latest"}}]`))
	first, second := h.mutating("container", ns), h.mutating("allow", ns)
	first.Rules, second.Rules = rules("", "v1", "pods"), rules("", "v1", "pods")
	h.mutate(t, "defaults", first, second)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}, ServiceAccountName: "x",
			AutomountServiceAccountToken: ptr.To(false)}}
	if _, err := h.client.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	asked := h.take()
	if len(asked) != 2 {
		t.Fatalf("asked %v", paths(asked))
	}
	var seen corev1.Pod
	if err := json.Unmarshal(asked[1].Request.Object.Raw, &seen); err != nil {
		t.Fatal(err)
	}
	if n := len(seen.Spec.Containers); n != 2 || seen.Spec.Containers[1].ImagePullPolicy != corev1.PullAlways ||
		seen.Spec.Containers[1].TerminationMessagePath == "" {
		t.Errorf("the next webhook saw %+v", seen.Spec.Containers)
	}
}

func hooksAtOnce(t *testing.T, h *hooks, ns string, _ *warned) {
	var all sync.WaitGroup
	all.Add(2)
	wait := func(r *admissionv1.AdmissionReview) any { // each answers when both were asked
		all.Done()
		all.Wait()
		if r.Request.SubResource == "" {
			return deny("no, says one")(r)
		}
		return allow(r)
	}
	h.on("both1", wait)
	h.on("both2", func(r *admissionv1.AdmissionReview) any {
		all.Done()
		all.Wait()
		return allow(r)
	})
	h.validate(t, "both", h.validating("both1", ns), h.validating("both2", ns))
	if st := refused(t, h, ns, "x"); st.Message != `admission webhook "both1.example.com" denied the request: no, says one` || st.Code != 403 {
		t.Errorf("refused with %d %q", st.Code, st.Message)
	}
	if n := len(h.take()); n != 2 {
		t.Errorf("%d were asked", n)
	}
}

func hooksAnswers(t *testing.T, h *hooks, ns string, _ *warned) {
	h.mutate(t, "answers", h.mutating("answer", ns))
	v := h.validating("vanswer", ns)
	h.validate(t, "answers", v)
	jsonPatch := ptr.To(admissionv1.PatchTypeJSONPatch)
	raw := func(res *admissionv1.AdmissionResponse, gvk metav1.TypeMeta) any {
		return &admissionv1.AdmissionReview{TypeMeta: gvk, Response: res}
	}
	for i, c := range []struct {
		mutating, validating func(*admissionv1.AdmissionReview) any
		want                 string
	}{
		{func(r *admissionv1.AdmissionReview) any {
			return raw(&admissionv1.AdmissionResponse{UID: "x", Allowed: true}, r.TypeMeta)
		}, allow, `expected response.uid="`},
		{func(r *admissionv1.AdmissionReview) any { return raw(nil, r.TypeMeta) }, allow, "webhook response was absent"},
		{func(r *admissionv1.AdmissionReview) any {
			return raw(&admissionv1.AdmissionResponse{UID: r.Request.UID, Allowed: true},
				metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "Other"})
		}, allow, `no kind "Other" is registered for version "admission.k8s.io/v1"`},
		{func(r *admissionv1.AdmissionReview) any {
			return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte("[]")}
		}, allow, "webhook returned response.patch but not response.patchType"},
		{func(r *admissionv1.AdmissionReview) any {
			return &admissionv1.AdmissionResponse{Allowed: true, PatchType: jsonPatch}
		}, allow, "webhook returned response.patchType but not response.patch"},
		{patching(`{`), allow, "received undecodable patch in webhook response"},
		{patching(`[{"op":"test","path":"/data/a","value":"z"}]`), allow, "testing value /data/a failed"},
		{allow, patching(`[]`), "validating webhook may not return response.patch"},
		{allow, func(*admissionv1.AdmissionReview) any {
			return &admissionv1.AdmissionResponse{Allowed: true, PatchType: jsonPatch}
		}, "validating webhook may not return response.patchType"},
		{deny("mutating no"), allow, `admission webhook "answer.example.com" denied the request: mutating no`},
		{allow, func(*admissionv1.AdmissionReview) any { return &admissionv1.AdmissionResponse{} },
			`admission webhook "vanswer.example.com" denied the request without explanation`},
		{allow, func(*admissionv1.AdmissionReview) any {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Reason: "Because"}}
		}, `admission webhook "vanswer.example.com" denied the request: Because`},
	} {
		h.on("answer", c.mutating)
		h.on("vanswer", c.validating)
		if st := refused(t, h, ns, "x"); !strings.Contains(st.Message, c.want) || st.Code < 400 {
			t.Errorf("%d: refused with %d %q, want %q", i, st.Code, st.Message, c.want)
		}
	}
	// v1beta1 is not checked so.
	h.on("answer", func(r *admissionv1.AdmissionReview) any {
		return map[string]any{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1",
			"response": map[string]any{"uid": "other", "allowed": true, "patch": []byte(`[{"op":"add","path":"/data/v","value":"beta"}]`)}}
	})
	h.on("vanswer", allow)
	old := h.mutating("answer", ns)
	old.AdmissionReviewVersions = []string{"v9", "v1beta1"}
	h.mutate(t, "beta", old)
	h.on("answer", func(r *admissionv1.AdmissionReview) any {
		if r.APIVersion == "admission.k8s.io/v1" {
			return allow(r)
		}
		return map[string]any{"kind": "AdmissionReview", "apiVersion": r.APIVersion,
			"response": map[string]any{"uid": "other", "allowed": true, "patch": []byte(`[{"op":"add","path":"/data/v","value":"beta"}]`)}}
	})
	if cm := create(t, h, ns, configMap("beta")); cm.Data["v"] != "beta" {
		t.Errorf("data %v", cm.Data)
	}
}

func hooksPatchDeletion(t *testing.T, h *hooks, ns string, _ *warned) {
	create(t, h, ns, configMap("x"))
	h.on("deletion", patching(`[{"op":"add","path":"/data/x","value":"y"}]`))
	h.mutate(t, "on-delete", h.mutating("deletion", ns))
	err := h.client.CoreV1().ConfigMaps(ns).Delete(t.Context(), "x", metav1.DeleteOptions{})
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(),
		`admission webhook "deletion.example.com" attempted to modify the object, which is not supported for this operation`) {
		t.Errorf("deleted: %v", err)
	}
}

func hooksDryRun(t *testing.T, h *hooks, ns string, _ *warned) {
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	w := h.validating("allow", ns)
	w.SideEffects = ptr.To(admissionregistrationv1.SideEffectClassNoneOnDryRun)
	h.validate(t, "dry", w)
	create(t, h, ns, configMap("x"), dry)
	asked := h.take()
	if len(asked) != 1 || !*asked[0].Request.DryRun || !strings.Contains(string(asked[0].Request.Options.Raw), `"dryRun":["All"]`) {
		t.Errorf("asked %+v", asked)
	}
	if _, err := h.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run was stored: %v", err)
	}
}

func hooksGeneratedName(t *testing.T, h *hooks, ns string, _ *warned) {
	h.mutate(t, "names", h.mutating("allow", ns))
	h.validate(t, "names", h.validating("allow", ns))
	cm := create(t, h, ns, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "gen-"}})
	asked := h.take()
	if len(asked) != 2 || asked[0].Request.Name != "" || asked[1].Request.Name != cm.Name {
		t.Errorf("asked for %q, then %q; it is %q", asked[0].Request.Name, asked[1].Request.Name, cm.Name)
	}
}

func hooksOperations(t *testing.T, h *hooks, ns string, _ *warned) {
	w := h.validating("allow", ns)
	w.Rules = append(append(append(rules("", "v1", "configmaps"), rules("", "v1", "pods/exec")...),
		rules("apps", "v1", "deployments/scale")...), rules("apps", "v1", "deployments/status")...)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}
	if _, err := h.client.AppsV1().Deployments(ns).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create(t, h, ns, configMap("x"))
	h.validate(t, "operations", w)
	if err := h.client.CoreV1().ConfigMaps(ns).Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.AppsV1().Deployments(ns).UpdateScale(t.Context(), "d",
		&autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: ns}, Spec: autoscalingv1.ScaleSpec{Replicas: 3}},
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.AppsV1().Deployments(ns).Patch(t.Context(), "d", types.MergePatchType, []byte(`{"status":{"replicas":1}}`),
		metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	// There is no such pod; who connects is admitted before that is found.
	err := h.client.CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Name("none").SubResource("exec").Param("command",
		"ls").Param("stdout", "true").Do(t.Context()).Error()
	if err == nil {
		t.Error("connected to a pod that is not")
	}
	if err := h.client.CoreV1().RESTClient().Get().Namespace(ns).Resource("pods").Name("none").SubResource("log").Do(
		t.Context()).Error(); !apierrors.IsNotFound(err) {
		t.Errorf("log of a pod that is not: %v", err)
	}
	type question struct {
		Operation                admissionv1.Operation
		Resource, Sub, Kind      string
		Object, Old, Options     string
		RequestKind, RequestName string
	}
	var got []question
	for _, r := range h.take() {
		q := r.Request
		kind := func(b []byte) string {
			var m metav1.TypeMeta
			_ = json.Unmarshal(b, &m)
			return m.Kind
		}
		got = append(got, question{q.Operation, q.Resource.Resource, q.SubResource, q.Kind.Kind, kind(q.Object.Raw), kind(q.OldObject.Raw),
			kind(q.Options.Raw), q.RequestKind.Kind, q.Name})
	}
	want := []question{
		{"DELETE", "configmaps", "", "ConfigMap", "", "ConfigMap", "DeleteOptions", "ConfigMap", "x"},
		{"UPDATE", "deployments", "scale", "Scale", "Scale", "Scale", "UpdateOptions", "Scale", "d"},
		{"UPDATE", "deployments", "status", "Deployment", "Deployment", "Deployment", "UpdateOptions", "Deployment", "d"},
		{"CONNECT", "pods", "exec", "PodExecOptions", "PodExecOptions", "", "", "PodExecOptions", "none"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// hooksGrace deletes a pod of no node, whose grace is over at once: the webhook is asked about the pod, and about the pod that is
// being deleted.
func hooksGrace(t *testing.T, h *hooks, ns string, _ *warned) {
	if _, err := h.client.CoreV1().ServiceAccounts(ns).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := h.client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w := h.validating("allow", ns)
	w.Rules = rules("", "v1", "pods", admissionregistrationv1.Delete)
	h.validate(t, "grace", w)
	if err := h.client.CoreV1().Pods(ns).Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var marked []bool
	for _, r := range h.take() {
		var old corev1.Pod
		if err := json.Unmarshal(r.Request.OldObject.Raw, &old); err != nil {
			t.Fatal(err)
		}
		marked = append(marked, old.DeletionTimestamp != nil)
	}
	if diff := cmp.Diff([]bool{false, true}, marked); diff != "" {
		t.Error(diff)
	}
}

func hooksEquivalent(t *testing.T, h *hooks, ns string, _ *warned) {
	w := h.mutating("event", ns)
	w.Rules = rules("", "v1", "events")
	h.on("event", patching(`[{"op":"replace","path":"/message","value":"changed"}]`))
	exact := h.validating("allow", ns)
	exact.Rules, exact.MatchPolicy = rules("", "v1", "events"), ptr.To(admissionregistrationv1.Exact)
	h.mutate(t, "equivalent", w)
	h.validate(t, "exact", exact)
	e := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, EventTime: metav1.NowMicro(), ReportingController: "test.example.com/x",
		ReportingInstance: "i", Action: "a", Reason: "r", Type: "Normal", Note: "said",
		Regarding: corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: ns}}
	out, err := h.client.EventsV1().Events(ns).Create(t.Context(), e, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if out.Note != "changed" {
		t.Errorf("note %q", out.Note)
	}
	asked := h.take()
	if len(asked) != 1 {
		t.Fatalf("asked %v", paths(asked))
	}
	q := asked[0].Request
	if q.Kind != (metav1.GroupVersionKind{Version: "v1", Kind: "Event"}) ||
		*q.RequestKind != (metav1.GroupVersionKind{Group: "events.k8s.io", Version: "v1", Kind: "Event"}) ||
		q.Resource.Group != "" || q.RequestResource.Group != "events.k8s.io" {
		t.Errorf("kind %v of request %v", q.Kind, q.RequestKind)
	}
	var seen corev1.Event
	if err := json.Unmarshal(q.Object.Raw, &seen); err != nil || seen.Message != "said" || seen.APIVersion != "v1" {
		t.Errorf("saw %+v: %v", seen, err)
	}
}

func hooksNamespaces(t *testing.T, h *hooks, ns string, _ *warned) {
	w := h.validating("allow", ns)
	w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"watched": "yes"}}
	w.Rules = append(rules("", "v1", "namespaces", "CREATE", "UPDATE"), rules("", "v1", "nodes")...)
	h.validate(t, "namespaces", w)
	spaces := h.client.CoreV1().Namespaces()
	if _, err := spaces.Patch(t.Context(), ns, types.MergePatchType, []byte(`{"metadata":{"labels":{"other":"x"}}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := len(h.take()); n != 0 {
		t.Errorf("asked %d times about a namespace without the label", n)
	}
	if _, err := spaces.Patch(t.Context(), ns, types.MergePatchType, []byte(`{"metadata":{"labels":{"watched":"yes"}}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if asked := h.take(); len(asked) != 1 || asked[0].Request.Namespace != ns {
		t.Errorf("asked %+v when the label came", asked)
	}
	if _, err := h.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "outside"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := len(h.take()); n != 1 {
		t.Errorf("asked %d times about what is in no namespace", n)
	}
	if err := h.client.CoreV1().Nodes().Delete(t.Context(), "outside", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	h.take()
}

func hooksExempt(t *testing.T, h *hooks, ns string, _ *warned) {
	w := h.validating("never", ns)
	w.NamespaceSelector = nil
	w.Rules = append(append(rules("admissionregistration.k8s.io", "*", "*"), rules("authentication.k8s.io", "*", "*")...),
		rules("authorization.k8s.io", "*", "*")...)
	h.on("never", deny("never"))
	h.validate(t, "exempt", w)
	h.validate(t, "exempt-other", h.validating("allow", "nowhere"))
	if _, err := h.client.AuthenticationV1().TokenReviews().Create(t.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "x"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := h.client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{},
		metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if n := len(h.take()); n != 0 {
		t.Errorf("asked %d times", n)
	}
}

func hooksCommit(t *testing.T, h *hooks, ns string, _ *warned) {
	h.on("commit", deny("not now"))
	c := h.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	for i := range 20 {
		cfg := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "commit"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{h.validating("commit", ns)}}
		if _, err := c.Create(t.Context(), cfg, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		refused(t, h, ns, fmt.Sprint("x", i))
		if err := c.Delete(t.Context(), "commit", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		create(t, h, ns, configMap(fmt.Sprint("x", i)))
	}
}

func hooksWarnings(t *testing.T, h *hooks, ns string, heard *warned) {
	h.on("warn", func(*admissionv1.AdmissionReview) any {
		return &admissionv1.AdmissionResponse{Allowed: true, Warnings: []string{"mind the gap", strings.Repeat("x", 300)}}
	})
	h.on("warn-more", func(*admissionv1.AdmissionReview) any {
		return &admissionv1.AdmissionResponse{Allowed: true, Warnings: []string{strings.Repeat("y", 4000)}}
	})
	h.validate(t, "warn", h.validating("warn", ns))
	heard.said = nil
	create(t, h, ns, configMap("x"))
	if !slices.Contains(heard.said, "mind the gap") || !slices.Contains(heard.said, strings.Repeat("x", 300)) {
		t.Errorf("heard %q", heard.said)
	}
	h.mutate(t, "warn", h.mutating("warn-more", ns))
	heard.said = nil
	create(t, h, ns, configMap("y"))
	if !slices.Contains(heard.said, strings.Repeat("y", 256)) || !slices.Contains(heard.said, strings.Repeat("x", 256)) {
		t.Errorf("heard %q", heard.said)
	}
}

func hooksManagedFields(t *testing.T, h *hooks, ns string, heard *warned) {
	h.on("fields", patching(`[{"op":"add","path":"/metadata/managedFields/0/operation","value":"Nonsense"},{"op":"add","path":"/data/c","value":"d"}]`))
	h.mutate(t, "fields", h.mutating("fields", ns))
	heard.said = nil
	cm := create(t, h, ns, configMap("x"))
	if len(cm.ManagedFields) != 1 || cm.ManagedFields[0].Operation != metav1.ManagedFieldsOperationUpdate || cm.Data["c"] != "d" {
		t.Errorf("managed fields %+v, data %v", cm.ManagedFields, cm.Data)
	}
	if len(heard.said) != 1 || !strings.HasPrefix(heard.said[0], ".metadata.managedFields was in an invalid state after admission") {
		t.Errorf("heard %q", heard.said)
	}
}

func hooksAgent(t *testing.T, h *hooks, ns string, _ *warned) {
	w := h.validating("allow", ns)
	w.TimeoutSeconds = ptr.To(int32(7))
	h.validate(t, "agent", w)
	create(t, h, ns, configMap("x"))
	if asked := h.take(); len(asked) != 1 || asked[0].agent != "kube-apiserver-admission" || asked[0].query != "timeout=7s" {
		t.Errorf("asked by %q with %q", asked[0].agent, asked[0].query)
	}
}

func hooksFailure(t *testing.T, h *hooks, ns string, _ *warned) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	w := h.validating("x", ns)
	w.ClientConfig.URL = ptr.To(strings.Replace(gone.URL, "http:", "https:", 1))
	w.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	m := h.mutating("missing", ns)
	m.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	h.validate(t, "open", w)
	h.mutate(t, "open", m)
	create(t, h, ns, configMap("x"))
	w.FailurePolicy = nil
	h.validate(t, "closed", w)
	if st := refused(t, h, ns, "y"); st.Code != 500 ||
		!strings.HasPrefix(st.Message, `Internal error occurred: failed calling webhook "x.example.com": failed to call webhook: Post "https://`) {
		t.Errorf("refused with %d %q", st.Code, st.Message)
	}
	// A request that has no time left does not go on, whatever the policy.
	h.on("held", func(r *admissionv1.AdmissionReview) any { <-t.Context().Done(); return allow(r) })
	held := h.mutating("held", ns)
	held.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	h.mutate(t, "then-held", held)
	ctx, cancel := context.WithCancel(t.Context())
	h.on("missing", func(r *admissionv1.AdmissionReview) any { cancel(); return allow(r) })
	if _, err := h.client.CoreV1().ConfigMaps(ns).Create(ctx, configMap("z"), metav1.CreateOptions{}); err == nil {
		t.Error("created though nobody waits")
	}
	if _, err := h.client.CoreV1().ConfigMaps(ns).Get(t.Context(), "z", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("stored though nobody waits: %v", err)
	}
}

func hooksConditions(t *testing.T, h *hooks, ns string, _ *warned) {
	w := h.validating("conditions", ns)
	h.on("conditions", deny("matched"))
	w.MatchConditions = []admissionregistrationv1.MatchCondition{
		{Name: "named", Expression: "object.metadata.name.startsWith('x')"},
		{Name: "may", Expression: "authorizer.group('').resource('configmaps').namespace(request.namespace).check('create').allowed()"},
	}
	h.validate(t, "conditions", w)
	create(t, h, ns, configMap("a"))
	refused(t, h, ns, "x")
	wrong := h.validating("conditions", ns)
	wrong.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "wrong", Expression: "object.nothing == 1"}}
	h.validate(t, "wrong", wrong)
	if st := refused(t, h, ns, "b"); st.Code != 403 || !strings.Contains(st.Message, "no such key: nothing") {
		t.Errorf("refused with %d %q", st.Code, st.Message)
	}
}
