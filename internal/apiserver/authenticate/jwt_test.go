// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/extension"
)

// configuration returns an AuthenticationConfiguration with one issuer, to which it applies changes.
func configuration(t testing.TB, version string, issuers ...map[string]any) []byte {
	t.Helper()
	b, err := json.Marshal(map[string]any{"apiVersion": "apiserver.config.k8s.io/" + version, "kind": "AuthenticationConfiguration",
		"jwt": issuers})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func trusting(i *issuer) map[string]any {
	return map[string]any{
		"issuer": map[string]any{"url": i.URL, "audiences": []string{"mortise"}, "certificateAuthority": i.authority()},
		"claimMappings": map[string]any{"username": map[string]any{"claim": "sub", "prefix": "idp:"},
			"groups": map[string]any{"claim": "groups", "prefix": ""}},
	}
}

// write replaces a file, as an administrator would.
func write(t testing.TB, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for the effect of an issuer's discovery, which sends no notification.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for late := time.After(30 * time.Second); !is(); {
		select {
		case <-look.C:
		case <-late:
			t.Fatal("never: " + what)
		}
	}
}

func (w *world) knows(t testing.TB, token string) bool {
	t.Helper()
	_, err := w.with(t.Context(), token)
	return err == nil
}

func withIssuers(t testing.TB, data []byte) (w *world, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "authentication.yaml")
	write(t, file, data)
	s, err := LoadJWT(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	return newWorld(t, Settings{JWT: s}, nil), file
}

func TestIssuer(t *testing.T) {
	i := newIssuer(t)
	for _, version := range []string{"v1", "v1beta1", "v1alpha1"} {
		w, _ := withIssuers(t, configuration(t, version, trusting(i)))
		eventually(t, "the issuer is found", func() bool { return w.knows(t, i.token(t, nil)) })
		who, err := w.with(t.Context(), i.token(t, nil))
		if err != nil || who.GetName() != "idp:alice" || !slices.Equal(who.GetGroups(), []string{"dev", "ops", Authenticated}) {
			t.Fatalf("%s: who %v, error %v", version, who, err)
		}
		if version != "v1" {
			continue
		}
		good := strings.Split(i.token(t, nil), ".")
		for name, bad := range map[string]string{
			"expired":          i.token(t, map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}),
			"without an end":   i.token(t, map[string]any{"exp": nil}),
			"wrong audience":   i.token(t, map[string]any{"aud": "other"}),
			"wrong issuer":     i.token(t, map[string]any{"iss": "https://other.example"}),
			"unsigned":         unsigned(good[1]),
			"tampered":         good[0] + "." + strings.Split(i.token(t, map[string]any{"sub": "root"}), ".")[1] + "." + good[2],
			"without a user":   i.token(t, map[string]any{"sub": nil}),
			"of another key":   newIssuer(t).token(t, map[string]any{"iss": i.URL}),
			"another's claims": newIssuer(t).token(t, nil),
		} {
			if who, err := w.with(t.Context(), bad); err == nil {
				t.Errorf("%s: taken as %v", name, who)
			}
		}
		// a new key is fetched when a token names one, whatever the issuer says about caching
		i.rotate(t)
		eventually(t, "the new key is known", func() bool { return w.knows(t, i.token(t, nil)) })
		if n := i.sets.Load(); n > 20 {
			t.Errorf("the keys were asked for %d times", n)
		}
		entries := w.ledger.Snapshot()
		if len(entries) != 1 || entries[0].Point != extension.OIDCIssuer || entries[0].Name != i.URL || entries[0].Calls == 0 ||
			entries[0].Failures != 0 {
			t.Errorf("ledger: %+v", entries)
		}
	}
}

// TestIssuerIsDown checks that nothing waits for an issuer, and that it is used once it is up.
func TestIssuerIsDown(t *testing.T) {
	t.Parallel() // the next attempt comes after ten seconds
	i := newIssuer(t)
	i.down.Store(true)
	w, _ := withIssuers(t, configuration(t, "v1", trusting(i)))
	eventually(t, "the issuer is asked", func() bool { return w.ledger.Snapshot()[0].Failures > 0 })
	if w.knows(t, i.token(t, nil)) {
		t.Error("a token of an issuer that nobody could ask")
	}
	if !w.knows(t, w.issue(t, claimsOf())) {
		t.Error("a service account was refused with it")
	}
	i.down.Store(false)
	eventually(t, "the issuer is found", func() bool { return w.knows(t, i.token(t, nil)) })
}

func TestExpressions(t *testing.T) {
	i := newIssuer(t)
	trust := trusting(i)
	trust["claimMappings"] = map[string]any{
		"username": map[string]any{"expression": `claims.email.split("@")[0]`}, "groups": map[string]any{"expression": "claims.roles"},
		"uid":   map[string]any{"expression": "claims.sub"},
		"extra": []any{map[string]any{"key": "example.com/team", "valueExpression": "claims.team"}},
	}
	trust["claimValidationRules"] = []any{map[string]any{"expression": "claims.email_verified == true",
		"message": "the address must be verified"}}
	trust["userValidationRules"] = []any{map[string]any{"expression": "!user.username.startsWith('system:')", "message": "reserved"}}
	w, _ := withIssuers(t, configuration(t, "v1", trust))
	good := map[string]any{"email": "bob@example.com", "email_verified": true, "roles": []string{"a", "b"}, "team": "x"}
	eventually(t, "the issuer is found", func() bool {
		_, err := w.with(t.Context(), i.token(t, good))
		return err == nil || !strings.Contains(err.Error(), "not initialized")
	})
	who, err := w.with(t.Context(), i.token(t, good))
	if err != nil || who.GetName() != "bob" || who.GetUID() != "alice" || who.GetExtra()["example.com/team"][0] != "x" ||
		who.GetGroups()[1] != "b" {
		t.Errorf("who %+v, error %v", who, err)
	}
	good["email_verified"] = false
	if _, err := w.with(t.Context(), i.token(t, good)); err == nil || !strings.Contains(err.Error(), "the address must be verified") {
		t.Errorf("claim rule: %v", err)
	}
	good["email_verified"], good["email"] = true, "system:x@example.com"
	if _, err := w.with(t.Context(), i.token(t, good)); err == nil || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("user rule: %v", err)
	}
}

// TestReload changes the file while the server runs.
func TestReload(t *testing.T) {
	one, two := newIssuer(t), newIssuer(t)
	w, file := withIssuers(t, configuration(t, "v1", trusting(one)))
	j := w.runs[0]
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); j(ctx) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "the first issuer is found", func() bool { return w.knows(t, one.token(t, nil)) })

	counted := func(status string) float64 { return w.metrics.reloadedTimes(status) }
	for n, bad := range []string{
		"", "not yaml: [", string(configuration(t, "v1", map[string]any{"issuer": map[string]any{"url": "http://plain.example"}})),
		`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","unknown":1}`,
		`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","anonymous":{"enabled":false}}`,
	} {
		write(t, file, []byte(bad))
		eventually(t, "a bad file is counted", func() bool { return counted("failure") >= float64(n+1) })
		if !w.knows(t, one.token(t, map[string]any{"n": n})) {
			t.Fatalf("%q took the old configuration away", bad)
		}
	}
	write(t, file, configuration(t, "v1", trusting(one), trusting(two)))
	eventually(t, "the second issuer is known", func() bool { return w.knows(t, two.token(t, nil)) })
	if !w.knows(t, one.token(t, nil)) || counted("success") != 1 {
		t.Errorf("with two issuers; %v reloads", counted("success"))
	}
	write(t, file, configuration(t, "v1", trusting(two)))
	eventually(t, "the first issuer is gone", func() bool { return !w.knows(t, one.token(t, map[string]any{"n": time.Now().UnixNano()})) })
	if names := w.ledger.Snapshot(); len(names) != 1 || names[0].Name != two.URL {
		t.Errorf("ledger: %+v", names)
	}
}

// TestNewIssuerIsDown checks that the old configuration stays in force if the new issuers cannot be discovered.
func TestNewIssuerIsDown(t *testing.T) {
	one, two := newIssuer(t), newIssuer(t)
	two.down.Store(true)
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	write(t, file, configuration(t, "v1", trusting(one)))
	s, err := LoadJWT(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Settings{}, nil)
	j, err := newJWT(t.Context(), *s, nil, nil, Deps{Ledger: w.ledger, Log: quiet(), Now: time.Now}, w.metrics)
	if err != nil {
		t.Fatal(err)
	}
	j.wait = 10 * time.Millisecond
	write(t, file, configuration(t, "v1", trusting(two)))
	j.reload(t.Context())
	if w.metrics.reloadedTimes("failure") != 1 {
		t.Error("it was not counted")
	}
	eventually(t, "the old issuer is found", func() bool {
		_, ok, _ := j.AuthenticateToken(t.Context(), one.token(t, nil))
		return ok
	})
	two.down.Store(false)
	j.wait = 20 * time.Second
	j.reload(t.Context()) // another attempt, though the file has not changed
	if _, ok, err := j.AuthenticateToken(t.Context(), two.token(t, nil)); !ok {
		t.Errorf("the new issuer: %v", err)
	}
}

// TestConfigurationIsChecked covers configurations that are rejected before the server starts.
func TestConfigurationIsChecked(t *testing.T) {
	i := newIssuer(t)
	own := trusting(i)
	own["issuer"].(map[string]any)["url"] = Issuer
	for name, c := range map[string]struct{ text, error string }{
		"empty": {"", "empty config data"},
		"another kind": {`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration"}`,
			"expected AuthenticationConfiguration"},
		"unknown field": {`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","x":1}`, `unknown field "x"`},
		"our issuer":    {string(configuration(t, "v1", own)), "disallowed"},
		"twice":         {string(configuration(t, "v1", trusting(i), trusting(i))), "Duplicate value"},
	} {
		file := filepath.Join(t.TempDir(), "c")
		write(t, file, []byte(c.text))
		if _, err := LoadJWT(file, nil); err == nil || !strings.Contains(err.Error(), c.error) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzConfiguration(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","jwt":[{"issuer":{"url":"https://x"}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConfiguration(data)
		if (c == nil) == (err == nil) {
			t.Fatalf("%v %v", c, err)
		}
	})
}
