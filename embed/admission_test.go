// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension/admission"
)

// TestBadAdmission: what plug-ins cannot be configured by is refused before anything is written, and says which one.
func TestBadAdmission(t *testing.T) {
	const none = "/nowhere/at/all"
	for name, c := range map[string]struct {
		plugins string
		raw     string // the file, in the place of one with the plugins
		enable  []string
		more    []admission.Plugin
		want    []string
	}{
		"pod security": {plugins: "{name: PodSecurity, configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforce: odd}}}", want: []string{"PodSecurity", "defaults.enforce"}},
		"node selectors": {plugins: "{name: PodNodeSelector, configuration: {podNodeSelectorPluginConfig: {a: 'b in (c)'}}}",
			enable: []string{"PodNodeSelector"}, want: []string{"PodNodeSelector", "podNodeSelectorPluginConfig[a]"}},
		"tolerations": {
			plugins: "{name: PodTolerationRestriction, configuration: {apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1, kind: Configuration, default: [{operator: Equal}]}}",
			enable:  []string{"PodTolerationRestriction"},
			want:    []string{"PodTolerationRestriction", "podtolerationrestriction.default[0]"},
		},
		"events": {enable: []string{"EventRateLimit"}, want: []string{"EventRateLimit", "limits"}},
		"images": {enable: []string{"ImagePolicyWebhook"}, want: []string{"ImagePolicyWebhook", "no config specified"}},
		"a file": {plugins: "{name: EventRateLimit, path: " + none + "}", enable: []string{"EventRateLimit"},
			want: []string{"EventRateLimit", none}},
		"a file beside": {plugins: "{name: EventRateLimit, path: beside.yaml}", enable: []string{"EventRateLimit"},
			want: []string{"EventRateLimit", "limits[0].type"}},
		"of no kind": {raw: "podNodeSelectorPluginConfig: {a: 'b in (c)'}", enable: []string{"PodNodeSelector"},
			want: []string{"podNodeSelectorPluginConfig[a]"}},
		"another kind": {raw: "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration",
			want: []string{"admission.yaml", "EncryptionConfiguration"}},
		"an unknown field": {raw: "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugin: []",
			want: []string{"admission.yaml", "plugin"}},
		"an unknown one": {enable: []string{"Nothing"}, want: []string{`plugin "Nothing" is unknown`}},
		"third party": {plugins: "{name: Team, configuration: {defalt: x}}", more: []admission.Plugin{&Team{}},
			want: []string{"Team", "defalt"}},
		"third party's name": {more: []admission.Plugin{&Team{}, &Team{}}, want: []string{`two admission plug-ins "Team"`}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			config := filepath.Join(dir, "admission.yaml")
			text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: [" + c.plugins + "]"
			if c.raw != "" {
				text = c.raw
			}
			beside := "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits: [{type: Odd, qps: 1, burst: 1}]"
			for path, text := range map[string]string{config: text, filepath.Join(dir, "beside.yaml"): beside} {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s := &embed.Server{
				DataDir: filepath.Join(dir, "data"), Node: embed.NodeNone, Controllers: []string{"none"},
				APIServer:  options.APIServer{Admission: options.Admission{ConfigFile: config, Enable: c.enable}},
				Extensions: embed.Extensions{Admission: c.more},
			}
			err := s.Start(t.Context())
			if err == nil {
				s.Stop()
				t.Fatal("it was started")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %s in it", err, want)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, "data")); !os.IsNotExist(err) {
				t.Errorf("something was written: %v", err)
			}
		})
	}
}

// TestConditionsAreCounted: a webhook whose conditions leave a request out is counted, and so are its conditions.
func TestConditionsAreCounted(t *testing.T) {
	s := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}})
	nowhere, none := "https://127.0.0.1:1/", admissionv1.SideEffectClassNone
	_, err := s.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
		&admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "c"},
			Webhooks: []admissionv1.ValidatingWebhook{{
				Name: "counted.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: &nowhere}, SideEffects: &none,
				AdmissionReviewVersions: []string{"v1"},
				Rules: []admissionv1.RuleWithOperations{{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
				}},
				MatchConditions: []admissionv1.MatchCondition{{Name: "never", Expression: "false"}},
				// those of the server itself may come meanwhile
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "default"}},
			}},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	counts := func() (out []string) {
		t.Helper()
		text, err := s.Client().CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{
			`apiserver_admission_match_condition_exclusions_total{kind="webhook",name="counted.example.com",operation="CREATE",type="validate"} `,
			`apiserver_admission_match_condition_evaluation_seconds_count{kind="webhook",name="counted.example.com",operation="CREATE",type="validating"} `,
		} {
			_, after, _ := strings.Cut(string(text), name)
			count, _, _ := strings.Cut(after, "\n")
			out = append(out, count)
		}
		return out
	}
	create := func(name string) {
		t.Helper()
		if _, err := s.Client().CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create("first")
	before := counts() // these count for all servers of a process
	create("second")
	for i, after := range counts() {
		was, err := strconv.Atoi(before[i])
		if err != nil || after != strconv.Itoa(was+1) {
			t.Errorf("count %d was %q before a request that the condition excludes, and %q after", i, before[i], after)
		}
	}
}
