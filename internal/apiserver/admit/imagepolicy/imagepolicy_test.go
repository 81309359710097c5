// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package imagepolicy_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/imagepolicy"
	"github.com/mortise-dev/mortise/resource"
)

// backend answers reviews, and records them.
type backend struct {
	answer func(call int) (int, string)
	asked  []map[string]any
	path   string // of the kubeconfig
}

func newBackend(t *testing.T, answer func(call int) (int, string)) *backend {
	t.Helper()
	b := &backend{answer: answer, path: filepath.Join(t.TempDir(), "kubeconfig")}
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		b.asked = append(b.asked, body)
		code, text := b.answer(len(b.asked))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprint(w, text)
	}))
	t.Cleanup(s.Close)
	c := clientapi.NewConfig()
	c.Clusters["b"] = &clientapi.Cluster{Server: s.URL + "/review", InsecureSkipTLSVerify: true}
	c.Contexts["b"], c.CurrentContext = &clientapi.Context{Cluster: "b"}, "b"
	if err := clientcmd.WriteToFile(*c, b.path); err != nil {
		t.Fatal(err)
	}
	return b
}

func newPlugin(t *testing.T, b *backend, more string) (admit.Validator, *extension.Ledger) {
	t.Helper()
	p, err := imagepolicy.New(strings.NewReader(fmt.Sprintf("imagePolicy: {kubeConfigFile: %q, retryBackoff: 1%s}", b.path, more)))
	if err != nil {
		t.Fatal(err)
	}
	l := extension.NewLedger(clock.RealClock{})
	if err := p.(admit.Hosted).Join(&admit.Host{Ledger: l, Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	return p.(admit.Validator), l
}

// ask validates a pod with the image, and returns the rejection with the audit annotations.
func ask(t *testing.T, p admit.Validator, image, subresource string) (string, map[string]string) {
	t.Helper()
	notes := map[string]string{}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns",
			Annotations: map[string]string{"break.image-policy.k8s.io/glass": "now", "other": "x"}},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Image: "init"}}, Containers: []corev1.Container{{Image: image}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Image: "late"}}},
		},
	}
	err := p.Validate(t.Context(), nil, &admit.Attributes{
		Operation: admit.Create, Descriptor: &resource.Descriptor{Resource: "pods", Kind: "Pod"}, Version: "v1", Namespace: "ns", Name: "p",
		Subresource: subresource, Object: pod, Annotate: func(k, v string) { notes[k] = v },
	})
	if err != nil {
		return err.Error(), notes
	}
	return "", notes
}

func status(s string) string {
	return `{"apiVersion":"imagepolicy.k8s.io/v1alpha1","kind":"ImageReview","status":` + s + `}`
}

// TestReview covers the review that the backend receives, and the effects of its response.
func TestReview(t *testing.T) {
	for name, c := range map[string]struct {
		subresource, status, want string
		images                    []any
		notes                     map[string]string
	}{
		"allowed": {"", `{"allowed":true,"auditAnnotations":{"a":"b"}}`, "", []any{"app", "init"},
			map[string]string{"imagepolicywebhook.image-policy.k8s.io/a": "b"}},
		"denied": {"", `{"allowed":false,"reason":"too old"}`,
			`pods "p" is forbidden: image policy webhook backend denied one or more images: too old`, []any{"app", "init"}, nil},
		"no reason": {"", `{}`, `pods "p" is forbidden: one or more images rejected by webhook backend`, []any{"app", "init"}, nil},
		"ephemeral": {"ephemeralcontainers", `{"allowed":true}`, "", []any{"late"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, func(int) (int, string) { return 200, status(c.status) })
			p, _ := newPlugin(t, b, "")
			got, notes := ask(t, p, "app", c.subresource)
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if c.notes == nil {
				c.notes = map[string]string{}
			}
			if d := cmp.Diff(c.notes, notes); d != "" {
				t.Errorf("annotations (-want +got):\n%s", d)
			}
			var containers []any
			for _, i := range c.images {
				containers = append(containers, map[string]any{"image": i})
			}
			want := map[string]any{
				"apiVersion": "imagepolicy.k8s.io/v1alpha1", "kind": "ImageReview", "metadata": map[string]any{},
				"status": map[string]any{"allowed": false},
				"spec": map[string]any{"containers": containers, "namespace": "ns",
					"annotations": map[string]any{"break.image-policy.k8s.io/glass": "now"}},
			}
			if d := cmp.Diff([]map[string]any{want}, b.asked); d != "" {
				t.Errorf("asked (-want +got):\n%s", d)
			}
		})
	}
	b := newBackend(t, func(int) (int, string) { return 200, status(`{}`) })
	p, _ := newPlugin(t, b, "")
	if got, _ := ask(t, p, "app", "status"); got != "" || len(b.asked) > 0 {
		t.Errorf("a pod's status was asked about: %q", got)
	}
}

// TestRemembered checks that equal reviews are sent once, unless caching is disabled.
func TestRemembered(t *testing.T) {
	b := newBackend(t, func(int) (int, string) { return 200, status(`{"allowed":true}`) })
	p, _ := newPlugin(t, b, "")
	for _, image := range []string{"a", "a", "b", "a"} {
		ask(t, p, image, "")
	}
	if len(b.asked) != 2 {
		t.Errorf("asked %d times, want 2", len(b.asked))
	}
	b = newBackend(t, func(int) (int, string) { return 200, status(`{}`) })
	p, _ = newPlugin(t, b, ", denyTTL: -1")
	ask(t, p, "a", "")
	ask(t, p, "a", "")
	if len(b.asked) != 2 {
		t.Errorf("asked %d times, want 2", len(b.asked))
	}
}

// TestAnswersAreRememberedWhole checks that a cached response has the same reason and audit annotations.
func TestAnswersAreRememberedWhole(t *testing.T) {
	for say, want := range map[string]string{
		`{"allowed":true,"auditAnnotations":{"a":"b"}}`:     "",
		`{"reason":"too old","auditAnnotations":{"a":"b"}}`: `pods "p" is forbidden: image policy webhook backend denied one or more images: too old`,
	} {
		b := newBackend(t, func(int) (int, string) { return 200, status(say) })
		p, _ := newPlugin(t, b, "")
		for i := range 2 {
			got, notes := ask(t, p, "a", "")
			if got != want || notes["imagepolicywebhook.image-policy.k8s.io/a"] != "b" || len(b.asked) != 1 {
				t.Errorf("%s, time %d: %q, %v after %d calls", say, i, got, notes, len(b.asked))
			}
		}
	}
}

// TestWhatIsAskedAbout checks that only creates and updates of pods are reviewed. An object that is not a pod is
// rejected.
func TestWhatIsAskedAbout(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	for _, c := range []struct {
		operation admit.Operation
		group     string
		plural    string
		obj       resource.Object
		want      string
		asked     int
	}{
		{admit.Create, "", "pods", pod, "", 1},
		{admit.Update, "", "pods", pod, "", 1},
		{admit.Delete, "", "pods", pod, "", 0},
		{admit.Connect, "", "pods", pod, "", 0},
		{admit.Create, "example.com", "pods", pod, "", 0},
		{admit.Create, "", "deployments", pod, "", 0},
		{admit.Create, "", "pods", &corev1.Secret{}, "Resource was marked with kind Pod but was unable to be converted", 0},
	} {
		b := newBackend(t, func(int) (int, string) { return 200, status(`{"allowed":true}`) })
		p, _ := newPlugin(t, b, "")
		err := p.Validate(t.Context(), nil, &admit.Attributes{
			Operation: c.operation, Descriptor: &resource.Descriptor{Group: c.group, Resource: c.plural}, Version: "v1", Name: "p", Object: c.obj,
		})
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != c.want || len(b.asked) != c.asked {
			t.Errorf("%s of %s.%s, a %T: %q after %d calls", c.operation, c.plural, c.group, c.obj, got, len(b.asked))
		}
	}
}

// TestAnswersThatAreNone checks that an invalid response counts as a failure of the backend, and is not retried.
func TestAnswersThatAreNone(t *testing.T) {
	for _, answer := range []string{"nonsense", `{"apiVersion":"v1","kind":"Pod"}`, status(`7`)} {
		b := newBackend(t, func(int) (int, string) { return 200, answer })
		p, ledger := newPlugin(t, b, "")
		got, _ := ask(t, p, "a", "")
		if !strings.HasPrefix(got, `pods "p" is forbidden: `) || strings.Contains(got, "rejected by webhook backend") || len(b.asked) != 1 {
			t.Errorf("%s: %q after %d calls", answer, got, len(b.asked))
		}
		if e := ledger.Snapshot()[0]; e.State != extension.Failing || e.Failures != 1 {
			t.Errorf("%s: the ledger has %+v", answer, e)
		}
		b = newBackend(t, func(int) (int, string) { return 200, answer })
		p, _ = newPlugin(t, b, ", defaultAllow: true")
		if got, notes := ask(t, p, "a", ""); got != "" || notes["imagepolicywebhook.image-policy.k8s.io/failed-open"] != "true" {
			t.Errorf("%s, allowed without the backend: %q, %v", answer, got, notes)
		}
	}
}

// TestFailing checks that a failing backend is called five times, and that the configuration then decides.
func TestFailing(t *testing.T) {
	broken := func(int) (int, string) {
		return 500, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500,"message":"too busy"}`
	}
	b := newBackend(t, broken)
	p, ledger := newPlugin(t, b, "")
	const refused = `pods "p" is forbidden: too busy`
	if got, _ := ask(t, p, "a", ""); got != refused || len(b.asked) != 5 {
		t.Errorf("%q after %d calls", got, len(b.asked))
	}
	entries := ledger.Snapshot()
	if len(entries) != 1 || entries[0].Calls != 5 || entries[0].State != extension.Failing ||
		entries[0].Where != "ImagePolicyWebhook/"+b.path {
		t.Errorf("the ledger has %+v", entries)
	}
	b = newBackend(t, broken)
	p, _ = newPlugin(t, b, ", defaultAllow: true")
	got, notes := ask(t, p, "a", "")
	if got != "" || notes["imagepolicywebhook.image-policy.k8s.io/failed-open"] != "true" {
		t.Errorf("%q, %v", got, notes)
	}
	b = newBackend(t, func(call int) (int, string) {
		if call < 3 {
			return broken(call)
		}
		return 200, status(`{"allowed":true}`)
	})
	p, _ = newPlugin(t, b, "")
	if got, _ := ask(t, p, "a", ""); got != "" || len(b.asked) != 3 {
		t.Errorf("%q after %d calls", got, len(b.asked))
	}
	b = newBackend(t, func(int) (int, string) { return 400, "" })
	p, _ = newPlugin(t, b, "")
	if got, _ := ask(t, p, "a", ""); got == "" || len(b.asked) != 1 {
		t.Errorf("%q after %d calls", got, len(b.asked))
	}
}

// TestConfiguration checks that invalid configurations are rejected, and the limits of durations.
func TestConfiguration(t *testing.T) {
	b := newBackend(t, func(int) (int, string) { return 200, status(`{}`) })
	for _, times := range []string{"", ", allowTTL: 1, denyTTL: 1", ", allowTTL: 1800, denyTTL: 1800", ", allowTTL: -1, denyTTL: -1"} {
		if p, _ := newPlugin(t, b, times); p.Name() != "ImagePolicyWebhook" {
			t.Errorf("%s: made %s", times, p.Name())
		}
	}
	if _, err := imagepolicy.New(strings.NewReader(fmt.Sprintf("imagePolicy: {kubeConfigFile: %q, retryBackoff: 300000}",
		b.path))); err != nil {
		t.Error(err)
	}
	untrusted := filepath.Join(t.TempDir(), "untrusted")
	c := clientapi.NewConfig()
	c.Clusters["b"] = &clientapi.Cluster{Server: "https://localhost", CertificateAuthorityData: []byte("nonsense")}
	c.Contexts["b"], c.CurrentContext = &clientapi.Context{Cluster: "b"}, "b"
	if err := clientcmd.WriteToFile(*c, untrusted); err != nil {
		t.Fatal(err)
	}
	if _, err := imagepolicy.New(nil); err == nil || err.Error() != "no config specified" {
		t.Errorf("without configuration: %v", err)
	}
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"imagePolicy: {allowTTL: 1801}":                             "allowTTL: valid value is between 1s and 30m0s, got 1801",
		"imagePolicy: {denyTTL: -2}":                                "denyTTL: valid value",
		"imagePolicy: {retryBackoff: 300001}":                       "retryBackoff: valid value",
		"imagePolicy: {retryBackoff: 9223372036854775807}":          "retryBackoff: valid value",
		"imagePolicy: {kubeConfig: x}":                              "unknown field",
		"imagePolicy: {kubeConfigFile: /nowhere/at/all}":            "/nowhere/at/all",
		fmt.Sprintf("imagePolicy: {kubeConfigFile: %q}", bad):       bad,
		fmt.Sprintf("imagePolicy: {kubeConfigFile: %q}", untrusted): "unable to load root certificates",
	} {
		if _, err := imagepolicy.New(strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}
