// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package opa

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// policy decides by the user's name. What it says of nobody is no opinion.
const policy = `package k8s.authz

decision := answer if {
	answer := wrong[input.spec.user]
} else := {"apiVersion": input.apiVersion, "kind": input.kind, "status": status}

default status := {"allowed": false, "reason": "never heard of them"}

status := {"allowed": true, "reason": "a friend"} if input.spec.user == "friend"

status := {"allowed": true} if {
	input.spec.user == "lister"
	some r in input.spec.resourceAttributes.fieldSelector.requirements
	r == {"key": "metadata.name", "operator": "In", "values": ["one"]}
}

status := {"allowed": false, "denied": true, "reason": "an enemy"} if input.spec.user == "enemy"

status := {"allowed": true, "denied": true} if input.spec.user == "both"

status := {"allowed": true} if {
	input.spec.user == "slow"
	count([1 | some i in numbers.range(1, 20000); some j in numbers.range(1, 20000); i == j]) > 0
}

wrong := {"mute": "hello", "other": {"apiVersion": "v1", "kind": "Pod"}}
`

const calls = `apiserver_authorization_webhook_evaluations_total{name="opa",result="%s"}`

// configuration asks the agent, then roles.
func configuration(kubeconfig, failurePolicy string) string {
	return fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: opa
  webhook:
    timeout: 1s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: %s
    authorizedTTL: 10m
    unauthorizedTTL: 10m
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: "%s"}
    matchConditions:
    - expression: "request.user != 'spared'"
- {type: Node, name: node}
- {type: RBAC, name: rbac}
`, failurePolicy, kubeconfig)
}

const (
	secrets = "/api/v1/namespaces/default/secrets"
	pods    = "/api/v1/pods"
)

// grant lets a user read pods and services, and no secrets, by a role that is there without controllers.
func grant(s *server, user string) {
	s.T.Helper()
	body := `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"reads-%[1]s"},` +
		`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"system:kube-scheduler"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"%[1]s"}]}`
	if code, said := s.do("", "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		fmt.Sprintf(body, user)); code != http.StatusCreated {
		s.T.Fatalf("bind: %d %s", code, said)
	}
}

// TestAuthorization: OPA allows, denies, has no opinion, is slow, answers nonsense, and is down.
func TestAuthorization(t *testing.T) {
	opa := serve(t, policy)
	path := filepath.Join(t.TempDir(), "authorization.yaml")
	put := func(text string) {
		t.Helper()
		must(t, os.WriteFile(path+".new", []byte(text), 0o600))
		must(t, os.Rename(path+".new", path))
	}
	kubeconfig := opa.Kubeconfig("k8s.authz.decision")
	put(configuration(kubeconfig, "NoOpinion"))
	s := up(t, "--authorization-config", path)
	for _, user := range []string{"enemy", "mute", "other", "slow", "viewer", "spared", "both"} {
		grant(s, user)
	}
	ask := func(name, user, path string, code int, part string) {
		t.Helper()
		got, said := s.do(user, "GET", path, "")
		if got != code || !strings.Contains(said, part) {
			t.Errorf("%s: got %d %s, want %d %s", name, got, said, code, part)
		}
	}
	ask("an administrator is not asked about", "", secrets, http.StatusOK, "SecretList")
	ask("allowed", "friend", secrets, http.StatusOK, "SecretList")
	ask("denied, whatever the roles say", "enemy", pods, http.StatusForbidden,
		`cannot list resource \"pods\" in API group \"\" at the cluster scope: an enemy`)
	ask("no opinion, and roles allow", "viewer", pods, http.StatusOK, "PodList")
	ask("no opinion, and nobody allows", "nobody", pods, http.StatusForbidden, `: opa: never heard of them`)
	ask("allowed and denied is denied, and an error", "both", pods, http.StatusInternalServerError, "both allow and deny")
	ask("by its field selector", "lister", secrets+"?fieldSelector=metadata.name%3Done", http.StatusOK, "SecretList")
	ask("without it", "lister", secrets, http.StatusForbidden, "never heard of them")
	ask("slow, and roles allow", "slow", pods, http.StatusOK, "PodList")
	ask("slow, and nobody allows", "slow", secrets, http.StatusInternalServerError, "Internal Server Error")
	ask("an answer that is no object, and roles allow", "mute", pods, http.StatusOK, "PodList")
	ask("an answer that is no object", "mute", secrets, http.StatusInternalServerError, "Internal Server Error")
	ask("another kind of answer", "other", secrets, http.StatusInternalServerError, "unknown conversion")
	if n := s.metric(fmt.Sprintf(calls, "timeout")); n < 2 {
		t.Errorf("%v timeouts are counted", n)
	}
	if n := s.metric(`apiserver_authorization_match_condition_exclusions_total{name="opa",type="Webhook"}`); n != 0 {
		t.Errorf("%v exclusions are counted", n)
	}
	ask("who is spared the question", "spared", pods, http.StatusOK, "PodList")
	if n := s.metric(`apiserver_authorization_match_condition_exclusions_total{name="opa",type="Webhook"}`); n != 1 {
		t.Errorf("%v exclusions are counted, want 1", n)
	}

	t.Run("caches", func(t *testing.T) {
		before := s.metric(fmt.Sprintf(calls, "success"))
		for range 5 {
			ask("a yes that is known", "friend", secrets, http.StatusOK, "SecretList")
			ask("a no that is known", "nobody", pods, http.StatusForbidden, "never heard of them")
		}
		if n := s.metric(fmt.Sprintf(calls, "success")) - before; n != 0 {
			t.Errorf("what was known was asked for %v times", n)
		}
	})
	t.Run("reviews", func(t *testing.T) {
		review := `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"%s","resourceAttributes":{"verb":"get","resource":"secrets"}}}`
		for user, want := range map[string]string{"friend": `"allowed":true,"reason":"a friend"`,
			"enemy": `"allowed":false,"denied":true,"reason":"an enemy"`, "other": `"evaluationError":`} {
			if _, said := s.do("", "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", fmt.Sprintf(review, user)); !strings.Contains(said,
				want) {
				t.Errorf("a review of %s: %s", user, said)
			}
		}
		_, said := s.do("friend", "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
			`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{"namespace":"default"}}`)
		if !strings.Contains(said, `"incomplete":true`) || !strings.Contains(said, "webhook authorizer does not support user rule resolution") {
			t.Errorf("a rules review: %s", said)
		}
	})

	t.Run("reload", func(t *testing.T) {
		put("authorizers: nonsense")
		s.Await(regexp.MustCompile(`Could not reload the authorization configuration, keeping the previous one.*AuthorizationConfiguration`))
		ask("the one before stays in force", "friend", secrets, http.StatusOK, "SecretList")
		ask("the one before stays in force", "enemy", pods, http.StatusForbidden, "an enemy")
		put(strings.Replace(configuration(kubeconfig, "NoOpinion"), "- {type: Node, name: node}\n", "", 1))
		s.Await(regexp.MustCompile(`keeping the previous one.*missing required types: \[Node\]`))
		if _, all := s.do("", "GET", "/metrics", ""); !strings.Contains(all,
			`apiserver_authorization_config_controller_automatic_reloads_total{apiserver_id_hash="sha256:`) ||
			!strings.Contains(all, `status="failure"} 2`) {
			t.Error("failed reloads are not counted")
		}
	})

	opa.Stop()
	ask("down, but known", "friend", secrets, http.StatusOK, "SecretList")
	ask("down, and roles allow", "viewer", "/api/v1/services", http.StatusOK, "ServiceList")
	ask("down, and nobody allows", "friend", "/api/v1/secrets", http.StatusInternalServerError, "connection refused")
	if n := s.metric(`apiserver_authorization_webhook_evaluations_fail_open_total{name="opa",result="error"}`); n < 2 {
		t.Errorf("%v that failed open are counted", n)
	}
}

// TestFailurePolicyDeny: with the policy to deny, an agent that breaks down ends the question, and administrators can still mend it.
func TestFailurePolicyDeny(t *testing.T) {
	opa := serve(t, policy)
	path := filepath.Join(t.TempDir(), "authorization.yaml")
	must(t, os.WriteFile(path, []byte(configuration(opa.Kubeconfig("k8s.authz.decision"), "Deny")), 0o600))
	s := up(t, "--authorization-config", path)
	grant(s, "viewer")
	if code, said := s.do("viewer", "GET", pods, ""); code != http.StatusOK {
		t.Errorf("while it answers: %d %s", code, said)
	}
	opa.Stop()
	if code, said := s.do("viewer", "GET", "/api/v1/services", ""); code != http.StatusInternalServerError ||
		!strings.Contains(said, "connection refused") {
		t.Errorf("down: %d %s", code, said)
	}
	if code, said := s.do("", "GET", pods, ""); code != http.StatusOK {
		t.Errorf("an administrator, while it is down: %d %s", code, said)
	}
}

// TestFlags: the flags of old ask in v1beta1, and mean no opinion when the agent breaks down.
func TestFlags(t *testing.T) {
	opa := serve(t, strings.Replace(policy, `if input.spec.user == "friend"`,
		`if { input.apiVersion == "authorization.k8s.io/v1beta1"; "system:authenticated" in input.spec.group }`, 1))
	s := up(t, "--authorization-mode", "Webhook,RBAC", "--authorization-webhook-config-file", opa.Kubeconfig("k8s.authz.decision"))
	if code, said := s.do("anybody", "GET", secrets, ""); code != http.StatusOK {
		t.Errorf("asked in v1beta1: %d %s", code, said)
	}
	grant(s, "enemy")
	opa.Stop()
	if code, said := s.do("enemy", "GET", pods, ""); code != http.StatusOK {
		t.Errorf("down, and roles allow: %d %s", code, said)
	}
}
