// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension"
)

// careful is a bare server whose webhooks are called with care, and a client that hears its warnings.
func careful(t *testing.T, w options.Webhooks) (*embed.Server, *hooks, *warned) {
	t.Helper()
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}, APIServer: options.APIServer{Webhooks: w}})
	heard := &warned{}
	config := rest.CopyConfig(cluster.Config())
	config.WarningHandler = heard
	h := startHooks(t, kubernetes.NewForConfigOrDie(config))
	h.on("allow", allow)
	return cluster, h, heard
}

// TestAdmissionDeadline: all webhooks of a request share one deadline. When it is used up, those that were not asked count as failed,
// and the error says who took how long.
func TestAdmissionDeadline(t *testing.T) {
	_, h, _ := careful(t, options.Webhooks{Deadline: 2 * time.Second})
	ns := h.namespace(t, "deadline")
	release := make(chan struct{})
	defer close(release)
	h.on("slow", func(r *admissionv1.AdmissionReview) any { <-release; return allow(r) })
	slow := h.mutating("slow", ns)
	slow.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	slow.TimeoutSeconds = ptr.To(int32(30)) // longer than the deadline, by more than a slow machine adds
	next, last := h.mutating("next", ns), h.validating("last", ns)
	h.on("next", allow)
	h.on("last", allow)
	h.mutate(t, "m", h.mutating("allow", ns), slow, next)
	h.validate(t, "v", last)
	begun := time.Now()
	st := refused(t, h, ns, "x")
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("took %s", took)
	}
	if st.Code != 500 || !strings.HasPrefix(st.Message,
		`Internal error occurred: failed calling webhook "next.example.com": failed to call webhook: the deadline of admission is used up (2s), most of it by m/slow.example.com: m/allow.example.com took `) ||
		!strings.HasSuffix(st.Message, "m/next.example.com took 0s") {
		t.Errorf("refused with %d %q", st.Code, st.Message)
	}
	if diff := cmp.Diff([]string{"allow", "slow"}, paths(h.take())); diff != "" {
		t.Error(diff)
	}
	// The failure policy decides of those that are not asked.
	c := h.client.AdmissionregistrationV1()
	for i, kind := range []func(body string) error{
		func(b string) error {
			_, err := c.MutatingWebhookConfigurations().Patch(t.Context(), "m", types.JSONPatchType, []byte(b), metav1.PatchOptions{})
			return err
		},
		func(b string) error {
			_, err := c.ValidatingWebhookConfigurations().Patch(t.Context(), "v", types.JSONPatchType, []byte(b), metav1.PatchOptions{})
			return err
		},
	} {
		if err := kind(`[{"op":"replace","path":"/webhooks/` + []string{"2", "0"}[i] + `/failurePolicy","value":"Ignore"}]`); err != nil {
			t.Fatal(err)
		}
	}
	create(t, h, ns, configMap("x"))
	if diff := cmp.Diff([]string{"allow", "slow"}, paths(h.take())); diff != "" {
		t.Error(diff)
	}
}

// TestValidatingDeadline: what several webhooks take at once counts once.
func TestValidatingDeadline(t *testing.T) {
	_, h, _ := careful(t, options.Webhooks{Deadline: 10 * time.Second})
	ns := h.namespace(t, "together")
	var all []admissionregistrationv1.ValidatingWebhook
	met := make(chan struct{}, 8)
	for _, name := range []string{"a", "b", "c", "d"} {
		h.on(name, func(r *admissionv1.AdmissionReview) any { met <- struct{}{}; return allow(r) })
		all = append(all, h.validating(name, ns))
	}
	h.validate(t, "v", all...)
	create(t, h, ns, configMap("x"))
	if len(met) != 4 {
		t.Errorf("%d were asked", len(met))
	}
}

// rows are what the server says of its extensions, by name.
func rows(t *testing.T, s *embed.Server) map[string]extension.Row {
	t.Helper()
	client, err := rest.HTTPClientFor(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(s.URL() + "/debug/extensions")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v extension.View
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	out := map[string]extension.Row{}
	for _, r := range v.Extensions {
		out[r.Name] = r
	}
	return out
}

// TestWebhookBreaker: after so many failures a webhook is not called any more, and its failure policy decides. It is called again
// when its configuration or its service's endpoints change, without waiting for the pause to end.
func TestWebhookBreaker(t *testing.T) {
	cluster, h, _ := careful(t, options.Webhooks{BreakerPause: time.Hour})
	ns := h.namespace(t, "breaker")
	h.on("broken", func(*admissionv1.AdmissionReview) any { return 7 }) // which is no answer
	h.validate(t, "v", h.validating("broken", ns))
	c := h.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	patch := func(kind types.PatchType, body string) {
		t.Helper()
		if _, err := c.Patch(t.Context(), "v", kind, []byte(body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 7 {
		refused(t, h, ns, "x") // kube-apiserver's way: it is called each time
	}
	if n := len(h.take()); n != 7 {
		t.Errorf("without a breaker: called %d times", n)
	}
	patch(types.MergePatchType, `{"metadata":{"annotations":{"extension.mortise.dev/breaker":"on"}}}`)
	var st metav1.Status
	for range 7 {
		st = refused(t, h, ns, "x")
	}
	if n := len(h.take()); n != 1 { // the failures before count
		t.Errorf("with a breaker: called %d times", n)
	}
	if want := `Internal error occurred: failed calling webhook "broken.example.com": failed to call webhook: call validating-webhook "v/broken.example.com": extension is not called while it keeps failing: `; st.Code != 500 || !strings.HasPrefix(st.Message, want) {
		t.Errorf("refused with %d %q", st.Code, st.Message)
	}
	if r := rows(t, cluster)["v/broken.example.com"]; r.State != extension.Open || r.Refused != 6 || r.Failures != 8 {
		t.Errorf("shown as %+v", r)
	}
	patch(types.JSONPatchType, `[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]`)
	create(t, h, ns, configMap("ignored"))
	if n := len(h.take()); n != 0 {
		t.Errorf("called %d times", n)
	}
	patch(types.JSONPatchType, `[{"op":"replace","path":"/webhooks/0/clientConfig/url","value":"`+h.URL+`/allow"}]`)
	create(t, h, ns, configMap("mended"))
	if diff := cmp.Diff([]string{"allow"}, paths(h.take())); diff != "" {
		t.Error(diff)
	}
	if r := rows(t, cluster)["v/broken.example.com"]; r.State != extension.OK {
		t.Errorf("shown as %+v", r)
	}

	behind := h.validating("broken", ns)
	behind.Name, behind.ClientConfig.URL, behind.ClientConfig.Service = "behind.example.com", nil,
		&admissionregistrationv1.ServiceReference{Namespace: ns, Name: "gone"}
	h.validate(t, "service", behind)
	if _, err := h.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(t.Context(), "service", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"extension.mortise.dev/breaker":"on"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 6 {
		refused(t, h, ns, "y")
	}
	if r := rows(t, cluster)["service/behind.example.com"]; r.State != extension.Open || r.Failures != 5 {
		t.Errorf("shown as %+v", r)
	}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "gone-1",
		Labels: map[string]string{discoveryv1.LabelServiceName: "gone"}}, AddressType: discoveryv1.AddressTypeIPv4}
	if _, err := h.client.DiscoveryV1().EndpointSlices(ns).Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	refused(t, h, ns, "y")
	if r := rows(t, cluster)["service/behind.example.com"]; r.State == extension.Open || r.Failures != 6 {
		t.Errorf("after its endpoints changed it is shown as %+v", r)
	}
}

// TestBreakerCountsWrongAnswers: a webhook whose answers are none, to whatever they are given, is one that fails: kube-apiserver lets
// its failure policy decide, and so does a breaker. A patch that does not fit the object at hand may fit the next one: it is refused each
// time, whatever the policy, and keeps the webhook from nothing.
func TestBreakerCountsWrongAnswers(t *testing.T) {
	cluster, h, _ := careful(t, options.Webhooks{BreakerFailures: 3, BreakerPause: time.Hour})
	other := func(*admissionv1.AdmissionReview) any {
		return &admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
			Response: &admissionv1.AdmissionResponse{UID: "another", Allowed: true}}
	}
	typed := func(patchType admissionv1.PatchType) func(*admissionv1.AdmissionReview) any {
		return func(*admissionv1.AdmissionReview) any {
			return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(`[{"op":"add","path":"/data/x","value":"y"}]`), PatchType: &patchType}
		}
	}
	for name, c := range map[string]struct {
		answer func(*admissionv1.AdmissionReview) any
		want   string // what the error says
		opens  bool
	}{
		"another-uid":    {other, `expected response.uid="`, true},
		"no-patch":       {patching(`{`), "received undecodable patch in webhook response", true},
		"strange-patch":  {typed("MergePatch"), `unsupported patch type "MergePatch"`, true},
		"patch-does-not": {patching(`[{"op":"remove","path":"/data/none"}]`), "Unable to remove nonexistent key", false},
		"denied":         {deny("no"), "denied the request: no", false},
	} {
		t.Run(name, func(t *testing.T) {
			ns := h.namespace(t, name)
			h.on(name, c.answer)
			h.mutate(t, name, h.mutating(name, ns))
			for range 3 {
				if st := refused(t, h, ns, "x"); !strings.Contains(st.Message, c.want) {
					t.Errorf("refused with %q, want %q", st.Message, c.want)
				}
			}
			st := refused(t, h, ns, "x")
			if open := strings.Contains(st.Message, "extension is not called while it keeps failing"); open != c.opens || open &&
				!strings.Contains(st.Message, strings.TrimPrefix(c.want, "received undecodable patch in webhook response")) {
				t.Errorf("refused with %q; is the breaker to be open: %v", st.Message, c.opens)
			}
			if n := len(h.take()); (n == 3) != c.opens {
				t.Errorf("called %d times", n)
			}
			state := extension.OK
			if c.opens {
				state = extension.Open
			}
			if r := rows(t, cluster)[name+"/"+name+".example.com"]; r.State != state || (r.Failures == 0) == c.opens {
				t.Errorf("shown as %+v", r)
			}
		})
	}
	// One that answers as it should in between is not one that keeps failing.
	ns := h.namespace(t, "now-and-then")
	var count atomic.Int32
	h.on("sometimes", func(r *admissionv1.AdmissionReview) any {
		if count.Add(1)%3 == 0 {
			return allow(r)
		}
		return other(r)
	})
	h.validate(t, "sometimes", h.validating("sometimes", ns))
	for range 6 {
		_, err := h.client.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}},
			metav1.CreateOptions{})
		if err != nil && !strings.Contains(err.Error(), "expected response.uid") {
			t.Error(err)
		}
	}
	if n := len(h.take()); n != 6 {
		t.Errorf("called %d times", n)
	}
}

// TestBreakerForAll: the flag is for all webhooks but those that say "off".
func TestBreakerForAll(t *testing.T) {
	_, h, _ := careful(t, options.Webhooks{BreakerFailures: 2, BreakerPause: time.Hour})
	ns := h.namespace(t, "all")
	h.validate(t, "v", h.validating("missing", ns))
	for range 4 {
		refused(t, h, ns, "x")
	}
	if n := len(h.take()); n != 2 {
		t.Errorf("called %d times", n)
	}
	if _, err := h.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(t.Context(), "v", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"extension.mortise.dev/breaker":"off"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		refused(t, h, ns, "x")
	}
	if n := len(h.take()); n != 4 {
		t.Errorf("called %d times without a breaker", n)
	}
}

// TestConfigurationsAreNamed where that was asked for; elsewhere the words are kube-apiserver's.
func TestConfigurationsAreNamed(t *testing.T) {
	for name, named := range map[string]bool{"as kube-apiserver": false, "named": true} {
		t.Run(name, func(t *testing.T) {
			_, h, heard := careful(t, options.Webhooks{NameConfigurations: named})
			ns := h.namespace(t, "named")
			of := func(kind, configuration string) string {
				if named {
					return " of " + kind + " \"" + configuration + `"`
				}
				return ""
			}
			h.on("no", deny("never"))
			h.on("warn", func(*admissionv1.AdmissionReview) any {
				return &admissionv1.AdmissionResponse{Allowed: true, Warnings: []string{"mind the gap"}}
			})
			w := h.mutating("no", ns)
			w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "yes"}}
			h.mutate(t, "m", w)
			h.validate(t, "v", h.validating("warn", ns))
			create(t, h, ns, configMap("x"))
			want := "mind the gap"
			if named {
				want = `webhook "warn.example.com"` + of("ValidatingWebhookConfiguration", "v") + ": " + want
			}
			if diff := cmp.Diff([]string{want}, heard.said); diff != "" {
				t.Error(diff)
			}
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "y", Labels: map[string]string{"no": "yes"}}}
			_, err := h.client.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{})
			if want := `admission webhook "no.example.com"` + of("MutatingWebhookConfiguration", "m") + " denied the request: never"; err == nil ||
				err.Error() != want {
				t.Errorf("refused with %v, want %s", err, want)
			}
			h.validate(t, "gone", h.validating("gone", ns))
			if st, want := refused(t, h, ns, "z"), `failed calling webhook "gone.example.com"`+of("ValidatingWebhookConfiguration", "gone")+
				": failed to call webhook: "; !strings.Contains(st.Message, want) {
				t.Errorf("refused with %q, want %s", st.Message, want)
			}
		})
	}
}

// TestBadCareIsRefused before anything is started.
func TestBadCareIsRefused(t *testing.T) {
	for want, w := range map[string]options.Webhooks{
		"--admission-deadline is negative": {Deadline: -1}, "--admission-breaker-failures is negative": {BreakerFailures: -1},
		"--admission-breaker-pause is negative": {BreakerPause: -1},
	} {
		s := &embed.Server{APIServer: options.APIServer{Webhooks: w}}
		if err := s.Start(t.Context()); err == nil || err.Error() != want {
			t.Errorf("%+v: %v", w, err)
			_ = s.Stop()
		}
	}
}
