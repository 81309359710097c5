// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package opa

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// teams requires a label of pods, as the agent's own tutorial of admission control does.
const teams = `package k8s.admission

main := {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

default uid := ""

uid := input.request.uid

response := {"uid": uid, "allowed": false, "status": {"code": 403, "message": concat(", ", deny)}} if count(deny) > 0

else := {"uid": uid, "allowed": true, "warnings": warnings}

deny contains "every pod belongs to a team" if {
	input.request.kind.kind == "Pod"
	not input.request.object.metadata.labels.team
}

deny contains message if {
	some container in input.request.object.spec.containers
	startswith(container.image, "evil.example.com/")
	message := sprintf("image %s is not trusted", [container.image])
}

warnings contains "the team is new" if input.request.object.metadata.labels.team == "new"
`

// TestAdmission: OPA as a validating webhook requires the label team of pods.
func TestAdmission(t *testing.T) {
	agent := serve(t, teams)
	s := up(t)
	create := func(name, labels, image string, code int, part string) {
		t.Helper()
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%s","labels":{%s}},"spec":{"automountServiceAccountToken":false,"containers":[{"name":"c","image":"%s"}]}}`, name, labels, image)
		got, said := s.do("", "POST", "/api/v1/namespaces/default/pods", body)
		if got != code || !strings.Contains(said, part) {
			t.Errorf("pod %s: got %d %s, want %d %s", name, got, said, code, part)
		}
	}
	if code, said := s.do("", "POST", "/api/v1/namespaces/default/serviceaccounts",
		`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`); code != http.StatusCreated {
		t.Fatalf("make a service account: %d %s", code, said)
	}
	create("before", "", "i", http.StatusCreated, "")
	const configurations = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	hook := fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"opa"},"webhooks":[{
		"name":"teams.example.com","clientConfig":{"url":"%s","caBundle":"%s"},"admissionReviewVersions":["v1"],"sideEffects":"None",
		"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE","UPDATE"],"resources":["pods"]}]}]}`,
		agent.Decision("k8s.admission.main"), base64.StdEncoding.EncodeToString(agent.CA))
	if code, said := s.do("", "POST", configurations, hook); code != http.StatusCreated {
		t.Fatalf("register: %d %s", code, said)
	}
	create("nobodys", "", "i", http.StatusForbidden, `admission webhook \"teams.example.com\" denied the request: every pod belongs to a team`)
	create("ours", `"team":"a"`, "i", http.StatusCreated, `"team":"a"`)
	create("evil", `"team":"a"`, "evil.example.com/i", http.StatusForbidden, "image evil.example.com/i is not trusted")
	agent.Stop()
	create("late", `"team":"a"`, "i", http.StatusInternalServerError,
		`failed calling webhook \"teams.example.com\": failed to call webhook: Post`)
	if code, said := s.do("", "DELETE", configurations+"/opa", ""); code != http.StatusOK {
		t.Fatalf("take it away: %d %s", code, said)
	}
	create("after", "", "i", http.StatusCreated, "")
}
