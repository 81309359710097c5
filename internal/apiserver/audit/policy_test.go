// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"os"
	"strings"
	"testing"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func TestPolicies(t *testing.T) {
	const head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
	for text, want := range map[string]string{
		"":                                   "unknown group version field",
		"rules: []":                          "unknown group version field",
		head + "rules: []":                   "loaded illegal policy with 0 rules",
		head + "rules:\n- level: Loud":       "rules[0].level: Unsupported value",
		head + "rules:\n- level: None\nx: 1": "", // as upstream: what is not known is let pass
		"apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules:\n- level: None":         "no kind \"Policy\" is registered",
		head + "rules:\n- {level: None, nonResourceURLs: [a], resources: [{group: x}]}": "rules cannot apply to both regular resources and non-resource URLs",
		head + "rules:\n- {level: None, omitStages: [Late]}":                            "Invalid value: \"Late\": allowed stages are",
		head + "rules:\n- {level: None, resources: [{group: '', resourceNames: [a]}]}":  "using resourceNames requires at least one resource",
	} {
		_, err := ReadPolicy([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestDocumentedPolicy checks that the documented policy keeps secrets out of the log.
func TestDocumentedPolicy(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(doc), "```yaml\n")
	text, _, found := strings.Cut(after, "```")
	p, err := ReadPolicy([]byte(text))
	if err != nil || !found {
		t.Fatalf("the policy in docs/audit.md: %v", err)
	}
	rules := policy.NewPolicyRuleEvaluator(p)
	for _, c := range []struct {
		verb, group, resource, subresource, path string
		want                                     auditinternal.Level
	}{
		{"create", "", "secrets", "", "", auditinternal.LevelMetadata},
		{"patch", "", "secrets", "", "", auditinternal.LevelMetadata},
		{"list", "", "secrets", "", "", auditinternal.LevelMetadata},
		{"create", "", "serviceaccounts", "token", "", auditinternal.LevelMetadata},
		{"create", "authentication.k8s.io", "tokenreviews", "", "", auditinternal.LevelMetadata},
		{"create", "", "serviceaccounts", "", "", auditinternal.LevelRequest},
		{"create", "", "pods", "", "", auditinternal.LevelRequest},
		{"get", "", "pods", "log", "", auditinternal.LevelMetadata},
		{"create", "", "events", "", "", auditinternal.LevelNone},
		{"get", "", "", "", "/readyz/ping", auditinternal.LevelNone},
		{"get", "", "", "", "/metrics", auditinternal.LevelMetadata},
	} {
		at := authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "jane"}, Verb: c.verb, APIGroup: c.group, Resource: c.resource, Subresource: c.subresource, Path: c.path,
			ResourceRequest: c.resource != "",
		}
		got := rules.EvaluatePolicyRule(at)
		if got.Level != c.want {
			t.Errorf("%+v: level %s", c, got.Level)
		}
		if got.Level != auditinternal.LevelNone && (!got.OmitManagedFields || len(got.OmitStages) != 1) {
			t.Errorf("%+v: what is global is lost: %+v", c, got)
		}
	}
}

func FuzzReadPolicy(f *testing.F) {
	f.Add([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- {level: None, resources: [{group: '', resources: [pods/*, '*/log']}]}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := ReadPolicy(text); err == nil && len(p.Rules) == 0 {
			t.Error("a policy without rules")
		}
	})
}
