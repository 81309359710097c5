// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/embed/options"
)

// TestWrongAuditSettings are refused in upstream's words, before anything is written.
func TestWrongAuditSettings(t *testing.T) {
	dir := t.TempDir()
	policy, bad, hook := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "bad.yaml"), filepath.Join(dir, "hook")
	for file, text := range map[string]string{
		policy: "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n",
		bad:    "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Loud\n",
		hook:   "not a kubeconfig",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := filepath.Join(dir, "logs", "audit.log")
	for _, c := range []struct{ flags, want string }{
		{"--audit-policy-file " + dir + "/nosuch", "read audit policy: open " + dir + "/nosuch: no such file"},
		{"--audit-policy-file " + bad + " --audit-log-path " + log, "rules[0].level: Unsupported value"},
		{"--audit-log-path " + log + " --audit-log-mode later",
			`invalid audit log mode later, allowed modes are "batch,blocking,blocking-strict"`},
		{"--audit-log-path " + log + " --audit-log-format xml", `invalid audit log format xml, allowed formats are "legacy,json"`},
		{"--audit-log-path " + log + " --audit-log-maxage -1", "--audit-log-maxage -1 can't be a negative number"},
		{"--audit-log-path " + log + " --audit-log-version audit.k8s.io/v1beta1", "invalid group version, allowed versions are"},
		{"--audit-log-path " + log + " --audit-log-mode batch --audit-log-batch-buffer-size 0",
			"invalid audit batch log buffer size 0, must be a positive number"},
		{"--audit-webhook-config-file " + hook + " --audit-webhook-batch-max-size 0",
			"invalid audit batch webhook max batch size 0, must be a positive number"},
		{"--audit-webhook-config-file " + hook + " --audit-webhook-batch-throttle-qps 0",
			"invalid audit batch webhook throttle QPS 0, must be a positive number"},
		{"--audit-webhook-config-file " + hook + " --audit-webhook-truncate-max-event-size 0",
			"invalid audit truncate webhook max event size 0, must be a positive number"},
		{"--audit-log-path " + log + " --audit-log-truncate-max-batch-size 5",
			"invalid audit truncate log max batch size 5, must be greater than max event size (102400)"},
		{"--audit-policy-file " + policy + " --audit-webhook-config-file " + hook, hook + ": read audit webhook configuration: "},
	} {
		var o options.APIServer
		f := pflag.NewFlagSet("up", pflag.ContinueOnError)
		o.AddFlags(f)
		if err := f.Parse(strings.Fields(c.flags)); err != nil {
			t.Fatal(err)
		}
		s := &Server{Node: NodeNone, Controllers: []string{"none"}, APIServer: o}
		err := s.Start(t.Context())
		if err == nil {
			t.Errorf("%s: it started", c.flags)
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.flags, err, c.want)
		}
	}
	if _, err := os.Stat(log); err == nil {
		t.Error("a log was begun")
	}
}
