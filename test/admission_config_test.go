// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/embed/options"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

const staticPolicy = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: frozen.static.k8s.io}
spec:
  matchConstraints: {resourceRules: [{apiGroups: ["", admissionregistration.k8s.io], apiVersions: [v1], operations: [CREATE], resources: ["*"]}]}
  validations: [{expression: "!object.metadata.name.startsWith('%s')"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: frozen.static.k8s.io}
spec: {policyName: frozen.static.k8s.io, validationActions: [Deny]}
`

// manifestLog tells what was logged of manifests.
type manifestLog struct{ read, bad chan struct{} }

func (l *manifestLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *manifestLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *manifestLog) WithGroup(string) slog.Handler            { return l }

func (l *manifestLog) Handle(_ context.Context, r slog.Record) error {
	tell := l.read
	switch r.Message {
	case "Reloaded admission manifests":
	case "Could not reload admission manifests, keeping the previous ones":
		tell = l.bad
	default:
		return nil
	}
	select {
	case tell <- struct{}{}:
	default: // it was told before, and nobody has listened yet
	}
	return nil
}

// TestAdmissionFromFiles: webhooks and policies in files count from the first request, see what those of the API do not, come
// before them, use the credentials of a kubeconfig, and follow their files.
func TestAdmissionFromFiles(t *testing.T) {
	dir := t.TempDir()
	hookDir, policyDir := filepath.Join(dir, "hooks"), filepath.Join(dir, "policies")
	for _, d := range []string{hookDir, policyDir} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h := startHooks(t, nil)
	var token string
	guarded := h.Config.Handler
	h.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		token = q.Header.Get("Authorization")
		guarded.ServeHTTP(w, q)
	})
	h.on("static", func(r *admissionv1.AdmissionReview) any {
		if strings.HasPrefix(r.Request.Name, "never") {
			return deny("never")(r)
		}
		return allow(r)
	})
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}))
	write(t, filepath.Join(hookDir, "hook.yaml"), fmt.Sprintf(`apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: files.static.k8s.io}
webhooks:
- name: files.example.com
  clientConfig: {url: "%s/static", caBundle: %s}
  rules: [{apiGroups: ["", admissionregistration.k8s.io], apiVersions: ["*"], operations: [CREATE], resources: [configmaps, mutatingwebhookconfigurations]}]
  sideEffects: None
  admissionReviewVersions: [v1]
`, h.URL, ca))
	policyFile := write(t, filepath.Join(policyDir, "policy.yaml"), fmt.Sprintf(staticPolicy, "frozen"))
	host := strings.TrimPrefix(h.URL, "https://")
	kubeconfig := write(t, filepath.Join(dir, "kubeconfig"),
		fmt.Sprintf("apiVersion: v1\nkind: Config\nusers: [{name: %q, user: {token: hook-token}}]\n", host))
	config := write(t, filepath.Join(dir, "admission.yaml"), fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ValidatingAdmissionWebhook
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: %s, staticManifestsDir: %s}
- name: ValidatingAdmissionPolicy
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: ValidatingAdmissionPolicyConfiguration, staticManifestsDir: %s}
`, kubeconfig, hookDir, policyDir))
	log := &manifestLog{read: make(chan struct{}, 16), bad: make(chan struct{}, 16)}
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}, Logger: slog.New(log),
		APIServer: options.APIServer{Admission: options.Admission{ConfigFile: config}}})
	h.client = cluster.Client()
	ns := "default"
	create(t, h, ns, configMap("x"))
	if token != "Bearer hook-token" {
		t.Errorf("called with %q", token)
	}
	if st := refused(t, h, ns, "never"); st.Message != `admission webhook "files.example.com" denied the request: never` {
		t.Errorf("refused with %q", st.Message)
	}
	if st := refused(t, h, ns, "frozen"); !strings.Contains(st.Message,
		"ValidatingAdmissionPolicy 'frozen.static.k8s.io' with binding 'frozen.static.k8s.io' denied request") {
		t.Errorf("refused with %q", st.Message)
	}
	for _, name := range []string{"never", "frozen"} {
		_, err := h.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(),
			&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err == nil && name == "never" {
			t.Errorf("a configuration %q is not seen", name)
		}
	}
	// A bad new state is logged, and the old one stays; a good one counts as soon as it is read, of which the log tells.
	write(t, policyFile, strings.ReplaceAll(fmt.Sprintf(staticPolicy, "other"), "validations:", "nonsense:"))
	<-log.bad
	refused(t, h, ns, "frozen")
	write(t, policyFile, fmt.Sprintf(staticPolicy, "other"))
	<-log.read
	create(t, h, ns, configMap("frozen"))
	if st := refused(t, h, ns, "other-one"); !strings.Contains(st.Message, "frozen.static.k8s.io") {
		t.Errorf("refused with %q", st.Message)
	}
}

// TestAdmissionPluginsAreChosen: names are upstream's, and what cannot be had is refused before anything starts.
func TestAdmissionPluginsAreChosen(t *testing.T) {
	for _, c := range []struct {
		options.Admission
		want string
	}{
		{options.Admission{Enable: []string{"Nonsense"}}, `enable-admission-plugins plugin "Nonsense" is unknown`},
		{options.Admission{Disable: []string{"Nonsense"}}, `disable-admission-plugins plugin "Nonsense" is unknown`},
		{options.Admission{Enable: []string{"Priority"}, Disable: []string{"Priority"}},
			"[Priority] in enable-admission-plugins and disable-admission-plugins overlapped"},
		{options.Admission{Enable: []string{"ImagePolicyWebhook"}}, "make admission plug-in ImagePolicyWebhook: no config specified"},
		{options.Admission{ConfigFile: "/does/not/exist"},
			"read admission configuration /does/not/exist: open /does/not/exist: no such file or directory"},
		{options.Admission{ConfigFile: write(t, filepath.Join(t.TempDir(), "c"),
			"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nnonsense: 1\n")}, `unknown field "nonsense"`},
		{options.Admission{ConfigFile: write(t, filepath.Join(t.TempDir(), "c"),
			"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: [{name: MutatingAdmissionWebhook, configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: relative}}]\n")}, "must be an absolute file path"},
	} {
		s := &embed.Server{Controllers: []string{"none"}, APIServer: options.APIServer{Admission: c.Admission}}
		if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: want %q, got %v", c.Admission, c.want, err)
			if err == nil {
				_ = s.Stop()
			}
		}
	}
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"},
		APIServer: options.APIServer{Admission: options.Admission{Disable: []string{"ValidatingAdmissionWebhook"}}}})
	h := startHooks(t, cluster.Client())
	h.on("no", deny("no"))
	h.validate(t, "no", h.validating("no", "default"))
	create(t, h, "default", configMap("x"))
}
