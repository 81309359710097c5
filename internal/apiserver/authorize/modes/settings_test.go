// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/node"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/rbac"
)

// TestFlags covers valid and invalid combinations of flags, and the resulting configurations.
func TestFlags(t *testing.T) {
	hook := options.AuthorizationWebhook{ConfigFile: "hook.kubeconfig"}
	for name, c := range map[string]struct {
		o     options.Authorization
		modes string
		error string
	}{
		"none":                      {options.Authorization{}, "Node node,RBAC rbac", ""},
		"in their order":            {options.Authorization{Modes: []string{"RBAC", "AlwaysAllow"}}, "RBAC rbac,AlwaysAllow alwaysallow", ""},
		"an unknown one":            {options.Authorization{Modes: []string{"Magic"}}, "", `authorization-mode "Magic" is not a valid mode`},
		"one twice":                 {options.Authorization{Modes: []string{"RBAC", "Node", "RBAC"}}, "", "has mode specified more than once"},
		"ABAC":                      {options.Authorization{Modes: []string{"ABAC"}, PolicyFile: "p"}, "ABAC abac", ""},
		"ABAC without a policy":     {options.Authorization{Modes: []string{"ABAC"}}, "", "authorization policy file not passed"},
		"a policy without ABAC":     {options.Authorization{PolicyFile: "p"}, "", "cannot specify --authorization-policy-file without mode ABAC"},
		"a webhook":                 {options.Authorization{Modes: []string{"Webhook"}, Webhook: hook}, "Webhook default", ""},
		"a webhook without its way": {options.Authorization{Modes: []string{"Webhook"}}, "", "authorization config file not passed"},
		"a way without a webhook": {options.Authorization{Webhook: hook}, "",
			"cannot specify --authorization-webhook-config-file without mode Webhook"},
		"v1":      {options.Authorization{Webhook: options.AuthorizationWebhook{Version: "v1"}}, "Node node,RBAC rbac", ""},
		"v1beta1": {options.Authorization{Webhook: options.AuthorizationWebhook{Version: "v1beta1"}}, "Node node,RBAC rbac", ""},
		"v2": {options.Authorization{Webhook: options.AuthorizationWebhook{Version: "v2"}}, "",
			`unsupported webhook authorizer version "v2"`},
	} {
		got, err := fromFlags(c.o)
		if (err == nil) != (c.error == "") || err != nil && !strings.Contains(err.Error(), c.error) {
			t.Errorf("%s: %v, want %q", name, err, c.error)
			continue
		}
		var modes []string
		if err == nil {
			for _, a := range got.Authorizers {
				modes = append(modes, string(a.Type)+" "+a.Name)
				if (a.Webhook != nil) != (a.Type == Webhook) {
					t.Errorf("%s: %+v", name, a)
				}
			}
		}
		if s := strings.Join(modes, ","); s != c.modes {
			t.Errorf("%s: %s, want %s", name, s, c.modes)
		}
	}
	none, second := time.Duration(0), time.Second
	for _, c := range []struct {
		set             *time.Duration
		yes, no         time.Duration
		keepYes, keepNo bool
	}{{nil, 5 * time.Minute, 30 * time.Second, true, true}, {&none, 0, 0, false, false}, {&second, time.Second, time.Second, true, true}} {
		w := fromWebhookFlags(options.AuthorizationWebhook{ConfigFile: "f", AuthorizedTTL: c.set, UnauthorizedTTL: c.set})
		if w.AuthorizedTTL.Duration != c.yes || w.UnauthorizedTTL.Duration != c.no || w.CacheAuthorizedRequests != c.keepYes ||
			w.CacheUnauthorizedRequests != c.keepNo || *w.ConnectionInfo.KubeConfigFile != "f" || w.SubjectAccessReviewVersion != "v1beta1" {
			t.Errorf("%+v", w)
		}
	}
}

// TestLoad rejects unreadable files, and a file together with flags.
func TestLoad(t *testing.T) {
	h := newWebhook(t)
	none := filepath.Join(t.TempDir(), "none")
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n"
	for name, c := range map[string]struct {
		o     options.Authorization
		error string
	}{
		"a file beside modes": {options.Authorization{ConfigFile: none, Modes: []string{"RBAC"}},
			"--authorization-config can not be specified"},
		"a file beside a webhook": {options.Authorization{ConfigFile: none, Webhook: options.AuthorizationWebhook{ConfigFile: h.kubeconfig}},
			"--authorization-config can not be specified"},
		"no file":         {options.Authorization{ConfigFile: none}, "authorization: open"},
		"an unknown mode": {options.Authorization{Modes: []string{"Magic"}}, "authorization: authorization-mode"},
		"no policies":     {options.Authorization{Modes: []string{"ABAC"}, PolicyFile: none}, "authorization: "},
		"no way to the webhook": {options.Authorization{Modes: []string{"Webhook"}, Webhook: options.AuthorizationWebhook{ConfigFile: none}},
			"authorization webhook default"},
		"a name that is not usual": {options.Authorization{ConfigFile: file(t, head+"- {type: RBAC, name: roles}\n")},
			"expected name rbac for authorizer RBAC instead of roles"},
		"good": {options.Authorization{ConfigFile: file(t, head+"- {type: RBAC, name: rbac}\n")}, ""},
	} {
		s, err := Load(c.o, nil)
		if (err == nil) != (c.error == "") || err != nil && !strings.Contains(err.Error(), c.error) || (s != nil) != (err == nil) {
			t.Errorf("%s: %v, want %q", name, err, c.error)
		}
	}
}

// TestBuild covers the authorizers of each type and their metrics.
func TestBuild(t *testing.T) {
	log := &logged{heard: make(chan struct{}, 1)}
	o := Options{Roles: &rbac.Index{}, Node: &node.Authorizer{}, Ledger: extension.NewLedger(clock.RealClock{}),
		Log: slog.New(slog.NewTextHandler(log, nil))}
	of := func(kinds ...string) *Settings {
		c := &apiserver.AuthorizationConfiguration{}
		for _, k := range kinds {
			c.Authorizers = append(c.Authorizers, apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(k), Name: strings.ToLower(k)})
		}
		return &Settings{config: c, compiler: onceCompiler()}
	}
	if _, err := of("RBAC", "Magic").Build(o); err == nil || err.Error() != "make authorizers: unknown authorization mode Magic specified" {
		t.Errorf("an unknown mode: %v", err)
	}
	s := of("Node", "RBAC", "ABAC", "AlwaysDeny")
	c, err := s.Build(o)
	must(t, err)
	for kind, want := range map[string]any{Node: o.Node, RBAC: o.Roles, AlwaysDeny: always{authorize.NoOpinion}} {
		if z, err := c.authorizer(&apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(kind)}); err != nil || any(z) != want {
			t.Errorf("%s: %v, %v", kind, z, err)
		}
	}
	if z, err := c.authorizer(&apiserver.AuthorizerConfiguration{Type: ABAC}); err != nil || z == nil {
		t.Errorf("policies: %v, %v", z, err)
	}
	if c.settings.file != "" || count(t, c.Metrics(), lastConfigName, nil) != 0 || log.text.Len() > 0 {
		t.Errorf("flags are told of as a file: %s", log.text.String())
	}
	s.oldLines, s.policy = 2, "policy.jsonl"
	if _, err := s.Build(o); err != nil || !strings.Contains(log.text.String(), "policy.jsonl") {
		t.Errorf("old lines: %s, %v", log.text.String(), err)
	}
	all, err := of("AlwaysAllow", "AlwaysDeny").Build(o)
	must(t, err)
	if rs, paths, incomplete, err := all.Review(t.Context(), jane, "ns"); len(rs) != 1 || len(paths) != 1 || incomplete || err != nil {
		t.Errorf("rules: %v %v %t %v", rs, paths, incomplete, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- all.Run(ctx) }()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("without a file: %v", err)
	}
}

const lastConfigName = "apiserver_authorization_config_controller_last_config_info"

// TestSameConfiguration checks that a file with an equal configuration is no reload, and that denials are counted.
func TestSameConfiguration(t *testing.T) {
	h := newWebhook(t)
	text := h.configuration("", "")
	path := file(t, text)
	c, _, _ := build(t, options.Authorization{ConfigFile: path})
	if count(t, c.Metrics(), lastConfigName, map[string]string{"hash": hash([]byte(text))}) != 1 {
		t.Error("the file is not told of")
	}
	before := c.current.Load()
	must(t, os.WriteFile(path, []byte(text+"\n# the same\n"), 0o600))
	c.reload(t.Context())
	const reloads = "apiserver_authorization_config_controller_automatic_reloads_total"
	if c.current.Load() != before || count(t, c.Metrics(), reloads, nil) != 0 {
		t.Error("the same configuration was put to work again")
	}
	must(t, os.Remove(path))
	c.reload(t.Context())
	if count(t, c.Metrics(), reloads, map[string]string{"status": "failure"}) != 1 || c.current.Load() != before {
		t.Error("a file that is gone is no failure")
	}
	h.does(says(authorizationv1.SubjectAccessReviewStatus{Denied: true}))
	for range 2 {
		if d, _, err := c.Authorize(t.Context(), pods("x")); d != authorize.Deny || err != nil {
			t.Fatalf("%v, %v", d, err)
		}
	}
	of := map[string]string{"type": "Webhook", "name": "hook", "decision": "denied"}
	if n := count(t, c.Metrics(), "apiserver_authorization_decisions_total", of); n != 2 {
		t.Errorf("counted %v denials", n)
	}
}
