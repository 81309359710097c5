// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podsecurity_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/podsecurity"
)

func TestScenarios(t *testing.T) {
	plugin, err := podsecurity.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	admittest.Run(t, plugin)
}

// TestConfigured runs the scenarios of a plug-in with defaults and exemptions, and checks its metrics.
func TestConfigured(t *testing.T) {
	t.Chdir("testdata/configured")
	config, err := os.Open("config")
	if err != nil {
		t.Fatal(err)
	}
	defer config.Close()
	plugin, err := podsecurity.New(config)
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	if err := plugin.(admit.Hosted).Join(&admit.Host{Metrics: registry}); err != nil {
		t.Fatal(err)
	}
	admittest.Run(t, plugin)
	want := `pod_security_errors_total{fatal=false,request_operation=create,resource=pod,subresource=} 1
pod_security_errors_total{fatal=true,request_operation=create,resource=pod,subresource=} 1
pod_security_evaluations_total{decision=allow,mode=enforce,policy_level=baseline,policy_version=latest,request_operation=create,resource=pod,subresource=} 1
pod_security_evaluations_total{decision=allow,mode=enforce,policy_level=privileged,policy_version=latest,request_operation=create,resource=pod,subresource=} 1
pod_security_evaluations_total{decision=deny,mode=audit,policy_level=restricted,policy_version=v1.25,request_operation=create,resource=controller,subresource=} 1
pod_security_evaluations_total{decision=deny,mode=audit,policy_level=restricted,policy_version=v1.25,request_operation=create,resource=pod,subresource=} 3
pod_security_evaluations_total{decision=deny,mode=enforce,policy_level=baseline,policy_version=latest,request_operation=create,resource=pod,subresource=} 1
pod_security_evaluations_total{decision=deny,mode=enforce,policy_level=restricted,policy_version=latest,request_operation=create,resource=pod,subresource=} 1
pod_security_evaluations_total{decision=deny,mode=warn,policy_level=baseline,policy_version=future,request_operation=create,resource=controller,subresource=} 1
pod_security_exemptions_total{request_operation=create,resource=controller,subresource=} 1
pod_security_exemptions_total{request_operation=create,resource=pod,subresource=} 3`
	if d := cmp.Diff(want, admittest.Counts(t, registry)); d != "" {
		t.Errorf("counts (-want +got):\n%s", d)
	}
}

// TestRefused checks the errors of invalid configurations.
func TestRefused(t *testing.T) {
	const head = "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n"
	for config, want := range map[string]string{
		head + "defaults: {enforce: strict}":              "defaults.enforce",
		head + "defaults: {warn-version: \"1.2\"}":        "defaults.warn-version",
		head + "exemptions: {namespaces: [a, a]}":         "exemptions.namespaces[1]",
		head + "exemptions: {usernames: [\"\"]}":          "exemptions.usernames[0]",
		head + "exemptions: {runtimeClasses: [Bad_Name]}": "exemptions.runtimeClasses[0]",
		head + "surprise: 1":                              "surprise",
		"kind: Other":                                     "Other",
		"{":                                               "parse error",
	} {
		if _, err := podsecurity.New(strings.NewReader(config)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want something of %s", config, err, want)
		}
	}
}
