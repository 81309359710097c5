// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/extension/trace"
)

// explainer is `mortise explain` against a program.
type explainer struct {
	*program
	dir  string
	said []string // all that was printed
}

func (e *explainer) try(args ...string) (string, error) {
	e.t.Helper()
	path, err := binary()
	if err != nil {
		e.t.Fatal(err)
	}
	c := exec.CommandContext(e.t.Context(), path, append([]string{"explain", "--kubeconfig", e.kubeconfig}, args...)...)
	c.Env = append(os.Environ(), "HOME="+e.dir)
	out, err := c.CombinedOutput()
	e.said = append(e.said, string(out))
	return string(out), err
}

// explain runs the command, wants exit code 0, and parts of its output in their order.
func (e *explainer) explain(args []string, parts ...string) string {
	e.t.Helper()
	out, err := e.try(args...)
	if err != nil {
		e.t.Fatalf("explain %q: %v\n%s", args, err, out)
	}
	e.contains(fmt.Sprint("explain ", args), out, parts...)
	return out
}

func (e *explainer) contains(what, out string, parts ...string) {
	e.t.Helper()
	rest := out
	for _, part := range parts {
		_, after, ok := strings.Cut(rest, part)
		if !ok {
			e.t.Errorf("%s does not say %q after what came before:\n%s", what, part, out)
			return
		}
		rest = after
	}
}

// create has kubectl create objects.
func (e *explainer) create(name string, objects ...any) {
	e.t.Helper()
	file := filepath.Join(e.dir, name)
	var text []byte
	for _, o := range objects {
		b, err := json.Marshal(o)
		if err != nil {
			e.t.Fatal(err)
		}
		text = append(append(text, b...), "\n---\n"...)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		e.t.Fatal(err)
	}
	e.kubectl("create", "-f", file)
}

// trace is the newest write to an object.
func (e *explainer) trace(object string) trace.Trace {
	e.t.Helper()
	out, err := e.try(object, "-n", "shop", "-o", "json")
	var v trace.View
	if err = errors.Join(err, json.Unmarshal([]byte(out), &v)); err != nil || len(v.Traces) == 0 {
		e.t.Fatalf("%s: %v\n%s", object, err, out)
	}
	return v.Traces[0]
}

const (
	explainedPod = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
		"spec": {"containers": [{"name": "web", "image": "nginx:1"}]}}`
	explainedPolicy = `{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": "label-team"},
		"spec": {"failurePolicy": "Fail", "reinvocationPolicy": "Never", "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]},
			"mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{metadata: Object.metadata{labels: {\"example.com/team\": \"none\"}}}"}}]}}`
	explainedBinding = `{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": "label-team-everywhere"}, "spec": {"policyName": "label-team"}}`
	explainedDenial  = `{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "no-latest"},
		"spec": {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE", "UPDATE"]}]},
			"validations": [{"expression": "object.spec.containers.all(c, !c.image.endsWith(':latest'))", "message": "no latest images"}]}}`
	explainedDenialBinding = `{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "no-latest-anywhere"}, "spec": {"policyName": "no-latest", "validationActions": ["Deny"]}}`
)

// TestExplain has a plug-in, a policy and a webhook change a pod, others refuse one, and asks who did what: through the commands
// that a person would type.
func TestExplain(t *testing.T) {
	dir := t.TempDir()
	p := up(t, dir, "--node", "none", "--controllers", "none")
	e := &explainer{program: p, dir: t.TempDir()}
	h := startHooks(t, p.client())
	const hidden, added = "hunter2-hunter2", "correct-horse-battery"
	h.on("inject", patching(`[{"op": "add", "path": "/spec/containers/-", "value": {"name": "proxy", "image": "proxy:2"}}]`))
	h.on("check", func(r *admissionv1.AdmissionReview) any {
		if strings.Contains(string(r.Request.Object.Raw), `"forbidden"`) {
			return deny("pods must not be called so")(r)
		}
		return allow(r)
	})
	h.on("seal", func(r *admissionv1.AdmissionReview) any {
		if strings.Contains(string(r.Request.Object.Raw), `"refused"`) {
			return deny("I have seen " + hidden)(r)
		}
		return patching(`[{"op": "add", "path": "/data/added", "value": "` + base64.StdEncoding.EncodeToString([]byte(added)) + `"}]`)(r)
	})
	p.kubectl("create", "namespace", "shop")
	p.kubectl("create", "serviceaccount", "default", "-n", "shop")
	inject, check, seal := h.mutating("inject", "shop"), h.validating("check", "shop"), h.mutating("seal", "shop")
	create := admissionregistrationv1.Create
	inject.Rules, check.Rules, seal.Rules = rules("", "v1", "pods", create), rules("", "v1", "pods", create),
		rules("", "v1", "secrets", create)
	meta := func(kind, name string) (metav1.TypeMeta, metav1.ObjectMeta) {
		return metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: kind}, metav1.ObjectMeta{Name: name}
	}
	mutating, validating := admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: []admissionregistrationv1.MutatingWebhook{inject,
		seal}}, admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: []admissionregistrationv1.ValidatingWebhook{check}}
	mutating.TypeMeta, mutating.ObjectMeta = meta("MutatingWebhookConfiguration", "changes")
	validating.TypeMeta, validating.ObjectMeta = meta("ValidatingWebhookConfiguration", "checks")
	e.create("hooks.json", &mutating, &validating)
	e.create("policies.json", json.RawMessage(explainedPolicy), json.RawMessage(explainedBinding), json.RawMessage(explainedDenial),
		json.RawMessage(explainedDenialBinding))
	e.create("pod.json", json.RawMessage(explainedPod))

	// the write, by its identity
	id := e.trace("pod/web").AuditID
	e.explain([]string{id},
		"Audit ID:      "+id, "User:          kubernetes-admin", "Request:       create pods/web in namespace shop",
		"Field manager: kubectl-create (Update)",
		"Answer:        201 in ", "Authorization: allowed by system:masters", "Stages:", "  authenticate ", "  flow control ", "  authorize ",
		"  decode ", "  mutate ", "  validate ", "  store ",
	)
	out := e.explain([]string{id}, "Mutation:", "Validation:", "webhook check.example.com of checks: allowed (", "Objects:",
		"created pods/web in namespace shop, revision ")
	e.contains("the create", out, "defaulting: changed", "+ spec.dnsPolicy: \"ClusterFirst\"")
	e.contains("the create", out, "plug-in ServiceAccount: changed (", "+ spec.serviceAccount: \"default\"")
	e.contains("the create", out, "plug-in DefaultTolerationSeconds: changed (", "+ spec.tolerations: [")
	e.contains("the create", out, "policy label-team, bound by label-team-everywhere: changed (",
		"+ metadata.labels[\"example.com/team\"]: \"none\"")
	e.contains("the create", out, "webhook inject.example.com of changes: changed (",
		"+ spec.containers[1]: {\"image\":\"proxy:2\",\"name\":\"proxy\"}", "defaulting: changed",
		"+ spec.containers[1].imagePullPolicy: \"IfNotPresent\"")
	e.contains("the create", out, "policy no-latest, bound by no-latest-anywhere: allowed (")
	e.contains("the create", out, "server: changed", "+ metadata.uid: ")

	// a field, by who set it
	p.kubectl("set", "image", "pod/web", "web=nginx:2", "-n", "shop")
	for field, parts := range map[string][]string{
		"spec.containers[0].image": {`Value:    "nginx:2"`, "Set by:   request", "in the patch of pods by kubernetes-admin",
			`"nginx:1" → "nginx:2"`, "Earlier:  request", "in the create", `(absent) → "nginx:1"`, "Managers: kubectl-"},
		"spec.containers[1].image":             {"Set by:   webhook inject.example.com of changes", `(absent) → "proxy:2"`, id},
		"spec.containers[1].imagePullPolicy":   {"Set by:   defaulting"},
		`.metadata.labels["example.com/team"]`: {"Set by:   policy label-team, bound by label-team-everywhere", id},
		`metadata.labels.app`:                  {"Set by:   request", id},
		"spec.tolerations[0].key":              {"Set by:   plug-in DefaultTolerationSeconds"},
		"spec.serviceAccountName":              {"Set by:   plug-in ServiceAccount"},
		"spec.dnsPolicy":                       {"Set by:   defaulting"},
		"metadata.uid":                         {"Set by:   server"},
	} {
		e.explain([]string{"pod/web", field, "-n", "shop"}, append([]string{"Object:   pods/web in namespace shop"}, parts...)...)
	}

	// what was refused, by whom
	forbidden := strings.Replace(explainedPod, `"name": "web"`, `"name": "forbidden"`, 1)
	latest := strings.Replace(explainedPod, `nginx:1`, `nginx:latest`, 1)
	for name, text := range map[string]string{"forbidden.json": forbidden, "latest.json": latest,
		"wrong.json": strings.Replace(explainedPod, `"name": "web"`, `"name": "Wrong_Name"`, 1)} {
		if err := os.WriteFile(filepath.Join(e.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := p.tryKubectl("create", "-f", filepath.Join(e.dir, name)); err == nil {
			t.Errorf("%s was created: %s", name, out)
		}
	}
	if out, err := p.tryKubectl("delete", "pod", "web", "-n", "shop", "--as", "jane"); err == nil {
		t.Errorf("jane deleted a pod: %s", out)
	}
	rejected := e.explain([]string{"--rejected", "--last", "10m", "-n", "shop"}, "TIME", "STAGE", "BY", "REASON")
	for _, parts := range [][]string{
		{"create", "pods/forbidden", "403", "validate", "webhook check.example.com of checks", "pods must not be called so"},
		{"create", "pods/web", "422", "validate", "policy no-latest, bound by no-latest-anywhere", "no latest images"},
		{"create", "pods/Wrong_Name", "422", "prepare", "Invalid value"},
		{"jane", "delete", "pods/web", "403", "authorize", `User "jane" cannot delete resource "pods"`},
	} {
		found := false
		for line := range strings.Lines(rejected) {
			rest, all := line, true
			for _, part := range parts {
				_, after, ok := strings.Cut(rest, part)
				rest, all = after, all && ok
			}
			found = found || all
		}
		if !found {
			t.Errorf("no line has %q:\n%s", parts, rejected)
		}
	}
	e.explain([]string{"--rejected", "-n", "elsewhere"}, "No refused writes match.")

	// a secret, which is nowhere
	p.kubectl("create", "secret", "generic", "s", "-n", "shop", "--from-literal=password="+hidden)
	e.explain([]string{e.trace("secret/s").AuditID}, "Contents:      redacted", "webhook seal.example.com of changes: changed",
		"+ data.added: \"[redacted ", "created secrets/s")
	p.kubectl("patch", "secret", "s", "-n", "shop", "-p", `{"stringData": {"password": "`+hidden+`-2"}}`)
	e.explain([]string{"secret/s", "data.password", "-n", "shop"}, `Value:    "[redacted `, "Set by:   request", `"[redacted `)
	if out, err := p.tryKubectl("create", "secret", "generic", "refused", "-n", "shop", "--from-literal=password="+hidden); err == nil ||
		!strings.Contains(out, hidden) {
		t.Errorf("the refusal should tell its client all: %v, %s", err, out)
	}
	p.kubectl("create", "token", "default", "-n", "shop")
	e.explain([]string{"--rejected", "-n", "shop"}, "secrets", "[redacted]")
	everything := p.kubectl("get", "--raw", trace.Route+"?limit=1000")
	for _, secret := range []string{hidden, added} {
		for _, form := range []string{secret, strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(secret)), "=")} {
			for _, said := range append(e.said, everything) {
				if strings.Contains(said, form) {
					t.Errorf("%s is told in:\n%s", form, said)
				}
			}
		}
	}
	if strings.Contains(everything, "eyJhbGciOi") {
		t.Error("a token is told")
	}
	if out, err := p.tryKubectl("get", "--raw", trace.Route, "--as", "jane"); err == nil {
		t.Errorf("jane reads traces: %s", out)
	}

	// after a restart the traces are gone, and the managed fields are not
	p.stop()
	again := &explainer{program: up(t, dir, "--node", "none", "--controllers", "none"), dir: e.dir}
	if out, err := again.try(id); err == nil || !strings.Contains(out, "traces begin with the server's start at ") {
		t.Errorf("after a restart: %v, %s", err, out)
	}
	again.explain([]string{"pod/web", "spec.containers[0].image", "-n", "shop"}, `Value:    "nginx:2"`, "Managers: kubectl-set (Update) at ",
		"Note:     no recorded write set the field")
}
