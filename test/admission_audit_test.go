// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
)

// TestHooksAreAudited: what webhooks say for the audit log, what they changed, and which of them were passed over.
func TestHooksAreAudited(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "audit.log")
	policy := write(t, filepath.Join(dir, "policy.yaml"), `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Request, resources: [{resources: [configmaps]}], verbs: [create], namespaces: [default]}
- {level: None}
`)
	cluster := &embed.Server{Controllers: []string{"none"},
		APIServer: options.APIServer{Audit: options.Audit{PolicyFile: policy, Log: options.AuditLog{Path: log}}}}
	if err := cluster.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Run("cluster", func(t *testing.T) {
		h := startHooks(t, cluster.Client())
		h.on("say", func(*admissionv1.AdmissionReview) any {
			return &admissionv1.AdmissionResponse{Allowed: true, AuditAnnotations: map[string]string{"who": "me", "no key": "x"}}
		})
		h.on("change", patching(`[{"op":"add","path":"/data/x","value":"y"}]`))
		missing, gone := h.mutating("missing", "default"), h.validating("gone", "default")
		missing.FailurePolicy, gone.FailurePolicy = ptr.To(admissionregistrationv1.Ignore), ptr.To(admissionregistrationv1.Ignore)
		h.mutate(t, "c", missing, h.mutating("change", "default"))
		h.validate(t, "c", h.validating("say", "default"), gone)
		create(t, h, "default", configMap("x"))
	})
	if err := cluster.Stop(); err != nil { // what is under way is written down by then
		t.Fatal(err)
	}
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var event struct{ Annotations map[string]string }
	first, _, _ := strings.Cut(string(data), "\n")
	if err := json.Unmarshal([]byte(first), &event); err != nil {
		t.Fatalf("read %q: %v", first, err)
	}
	for key := range event.Annotations {
		if strings.HasPrefix(key, "authorization.k8s.io/") || strings.HasPrefix(key, "apiserver.latency.k8s.io/") {
			delete(event.Annotations, key)
		}
	}
	want := map[string]string{
		"say.example.com/who":                                             "me",
		"patch.webhook.admission.k8s.io/round_0_index_1":                  `{"configuration":"c","webhook":"change.example.com","patch":[{"op":"add","path":"/data/x","value":"y"}],"patchType":"JSONPatch"}`,
		"mutation.webhook.admission.k8s.io/round_0_index_0":               `{"configuration":"c","webhook":"missing.example.com","mutated":false}`,
		"mutation.webhook.admission.k8s.io/round_0_index_1":               `{"configuration":"c","webhook":"change.example.com","mutated":true}`,
		"failed-open.mutation.webhook.admission.k8s.io/round_0_index_0":   "missing.example.com",
		"failed-open.validating.webhook.admission.k8s.io/round_0_index_1": "gone.example.com",
	}
	if diff := cmp.Diff(want, event.Annotations); diff != "" {
		t.Error(diff)
	}
}
