// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dex

import (
	"encoding/base64"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/test/programs"
)

// TestLogin has users of dex work with kubectl, through the issuer's whole life: down at first, up, with other keys.
func TestLogin(t *testing.T) {
	dir := t.TempDir()
	mortise := programs.Path(programs.Mortise.Name)
	ca, cert, key := authority(t, dir)
	dex := &issuer{dir: dir, address: net.JoinHostPort("127.0.0.1", programs.FreePort(t)), ca: ca, cert: cert, key: key}
	pem, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{
		"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
		"jwt": []any{map[string]any{
			"issuer": map[string]any{"url": dex.url(), "audiences": []string{"mortise"}, "certificateAuthority": string(pem)},
			"claimMappings": map[string]any{"username": map[string]any{"claim": "email", "prefix": "dex:"},
				"groups": map[string]any{"claim": "groups", "prefix": "dex:"}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "authentication.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}

	// The issuer is down: the server is ready all the same.
	c := programs.Up(t, "--node", "none", "--controllers", "none", "--authentication-config", file)
	data, server := filepath.Join(c.Home, "data"), c.Await(regexp.MustCompile(`mortise: ready in .*(https://[0-9.:]+),`))[1]
	kubectl := func(args ...string) (string, error) {
		c := exec.CommandContext(t.Context(), mortise, append([]string{"kubectl"}, args...)...)
		c.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG=")
		out, err := c.CombinedOutput()
		return string(out), err
	}
	with := func(token string, args ...string) (string, error) {
		return kubectl(append([]string{"--server", server, "--certificate-authority", filepath.Join(data, "pki", "ca.crt"), "--token", token},
			args...)...)
	}
	claims := func(issuer string) string {
		b, err := json.Marshal(map[string]any{"iss": issuer, "aud": "mortise", "sub": "x", "email": "root@example.com", "email_verified": true,
			"exp": time.Now().Add(time.Hour).Unix()})
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + claims(dex.url()) + "."
	unauthorized := func(name, token string) {
		t.Helper()
		if out, err := with(token, "get", "pods"); err == nil || !strings.Contains(out, "Unauthorized") &&
			!strings.Contains(out, "provide credentials") {
			t.Errorf("%s: %v, %s", name, err, out)
		}
	}
	unauthorized("while the issuer is down", none)
	for _, args := range [][]string{
		{"create", "clusterrole", "viewer", "--verb=get,list", "--resource=configmaps"},
		{"create", "clusterrolebinding", "developers", "--clusterrole=viewer", "--group=dex:developers"},
		{"create", "configmap", "plan", "--from-literal=a=b"},
	} {
		if out, err := kubectl(append([]string{"--kubeconfig", c.Kubeconfig}, args...)...); err != nil {
			t.Fatalf("%v: %s", args, out)
		}
	}

	// It comes up, and is asked again in ten seconds.
	process := dex.start(t, time.Hour)
	alice, refresh := dex.login(t, "mortise", "alice")
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for late := time.After(limit); ; {
		if out, err := with(alice, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.groups}"); err == nil {
			if out != `dex:alice@example.com ["dex:developers","system:authenticated"]` {
				t.Errorf("alice is %s", out)
			}
			break
		}
		select {
		case <-look.C:
		case <-late:
			t.Fatal("the issuer was never found")
		}
	}
	if out, err := with(alice, "get", "configmaps", "-o", "name"); err != nil || !strings.Contains(out, "configmap/plan") {
		t.Errorf("alice may view: %v, %s", err, out)
	}
	if out, err := with(alice, "delete", "configmap", "plan"); err == nil ||
		!strings.Contains(out, `User "dex:alice@example.com" cannot delete resource "configmaps"`) {
		t.Errorf("alice may only view: %v, %s", err, out)
	}
	bob, _ := dex.login(t, "mortise", "bob")
	if out, err := with(bob, "get", "configmaps"); err == nil ||
		!strings.Contains(out, `User "dex:bob@example.com" cannot list resource "configmaps"`) {
		t.Errorf("bob is in no group: %v, %s", err, out)
	}

	byRefreshToken(t, dex, mortise, server, filepath.Join(data, "pki", "ca.crt"), refresh, kubectl)

	// Tokens that are no good.
	parts := strings.Split(alice, ".")
	other, _ := dex.login(t, "other", "alice")
	stranger := &issuer{dir: dir, address: net.JoinHostPort("127.0.0.1", programs.FreePort(t)), ca: ca, cert: cert, key: key}
	another := stranger.start(t, time.Hour)
	foreign, _ := stranger.login(t, "mortise", "alice")
	another.Stop()
	unauthorized("for another audience", other)
	unauthorized("of another issuer", foreign)
	unauthorized("unsigned", none)
	unauthorized("tampered with", parts[0]+"."+claims(dex.url())+"."+parts[2])
	unauthorized("of another issuer under this one's name",
		strings.Split(foreign, ".")[0]+"."+claims(dex.url())+"."+strings.Split(foreign, ".")[2])

	// It comes back with other keys.
	process.Stop()
	process = dex.start(t, time.Hour)
	rotated, _ := dex.login(t, "mortise", "alice")
	for late := time.After(limit); ; { // keys are asked for at most once a second
		out, err := with(rotated, "get", "configmaps", "-o", "name")
		if err == nil && strings.Contains(out, "configmap/plan") {
			break
		}
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("with a new key: %v, %s", err, out)
		}
	}

	// Tokens end.
	process.Stop()
	dex.start(t, time.Second)
	expired, _ := dex.login(t, "mortise", "bob")
	<-time.After(2 * time.Second)
	unauthorized("expired", expired)
}
