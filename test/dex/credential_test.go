// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dex

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// byRefreshToken has kubectl log in by `mortise credential oidc` as a plug-in, with a refresh token of dex, which is good once:
// the plug-in keeps the next one.
func byRefreshToken(t *testing.T, dex *issuer, mortise, server, ca, refresh string, kubectl func(args ...string) (string, error)) {
	t.Helper()
	dir := t.TempDir()
	token, secret, file := filepath.Join(dir, "refresh"), filepath.Join(dir, "secret"), filepath.Join(dir, "kubeconfig")
	for path, text := range map[string]string{token: refresh + "\n", secret: "s\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	type object = map[string]any
	config, err := json.Marshal(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": []object{{"name": "c", "cluster": object{"server": server, "certificate-authority": ca}}},
		"contexts": []object{{"name": "x", "context": object{"cluster": "c", "user": "u"}}},
		"users": []object{{"name": "u", "user": object{"exec": object{
			"apiVersion": "client.authentication.k8s.io/v1", "command": mortise, "interactiveMode": "Never",
			"args": []string{"credential", "oidc", "--issuer", dex.url(), "--client-id", "mortise", "--client-secret-file", secret,
				"--refresh-token-file", token, "--certificate-authority", dex.ca, "--no-cache"},
		}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	was := refresh
	for range 2 {
		out, err := kubectl("--kubeconfig", file, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.groups}")
		if err != nil || out != `dex:alice@example.com ["dex:developers","system:authenticated"]` {
			t.Fatalf("by a refresh token: %v, %s", err, out)
		}
		now, err := os.ReadFile(token)
		if err != nil {
			t.Fatal(err)
		}
		if next := strings.TrimSpace(string(now)); next == was || next == "" {
			t.Errorf("the refresh token after %s is %s", was, next)
		} else {
			was = next
		}
	}
	if err := os.WriteFile(token, []byte(refresh), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := kubectl("--kubeconfig", file, "get", "configmaps"); err == nil || !strings.Contains(out, "exit code 1") {
		t.Errorf("by a refresh token that was used: %v, %s", err, out)
	}
}
