// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcemanagers

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build builds the command, and the programs of k8s.io/kubernetes that plug into a node.
func build(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	const upstream = "k8s.io/kubernetes/test/"
	for _, one := range []struct {
		module string
		args   []string
	}{
		{"../..", []string{"build", "-tags", "grpcnotrace", "-o", dir, "./cmd/mortise"}},
		{".", []string{"build", "-o", dir, upstream + "images/sample-device-plugin", upstream + "e2e/dra/test-driver",
			upstream + "e2e_node/plugins/gcp-credential-provider"}},
	} {
		c := exec.Command("go", one.args...)
		c.Dir, c.Env = one.module, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	}
	return dir
}

// drive runs the plug-in bench, and returns the checks that have another result than ok, each with its result. The bench must succeed.
func drive(t *testing.T, program string, args ...string) map[string]string {
	t.Helper()
	c := exec.Command(program, append([]string{"node", "plugin-bench", "-o", "json"}, args...)...)
	var said strings.Builder
	c.Stderr = &said
	out, err := c.Output()
	t.Logf("%s\n%s", out, said.String())
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Checks []struct{ Check, Result string }
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatal(err)
	}
	other := map[string]string{}
	for _, c := range report.Checks {
		if c.Result != "ok" {
			other[c.Check] = c.Result
		}
	}
	return other
}

func equal(t *testing.T, got map[string]string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("not ok: %v, want %v", got, want)
	}
	for _, w := range want {
		check, result, _ := strings.Cut(w, ": ")
		if got[check] != result {
			t.Errorf("%s: %q, want %s", check, got[check], result)
		}
	}
}

// Upstream's own device plug-in, DRA driver and credential provider, unmodified, pass the plug-in bench: the node's registration, device
// manager, DRA manager and credential providers do for them what kubelet does.
func TestUpstreamPrograms(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the sample device plug-in has /var/lib/kubelet built in: only root can show it another directory there")
	}
	programs := build(t)
	mortise := filepath.Join(programs, "mortise")
	t.Run("sample-device-plugin", func(t *testing.T) {
		t.Parallel()
		equal(t, drive(t, mortise, "--device-plugin", "--usual-path", "--name", "example.com/resource", "--",
			filepath.Join(programs, "sample-device-plugin")),
			"prefers devices that it may give: skip", "reports a changed health: skip")
	})
	t.Run("test-driver", func(t *testing.T) {
		t.Parallel()
		const driver = "test-driver.cdi.k8s.io"
		cdi := t.TempDir()
		equal(t, drive(t, mortise, "--dra", "--name", driver, "--cdi-dir", cdi, "--",
			filepath.Join(programs, "test-driver"), "--drivername", driver, "--cdi-dir", cdi, "kubelet-plugin",
			"--plugin-registration-path", "{dir}/plugins_registry", "--datadir", "{dir}/plugins", "--node-name", "plugin-bench"),
			"refuses a claim that is not there: warn")
	})
	t.Run("gcp-credential-provider", func(t *testing.T) {
		t.Parallel()
		// The program has the metadata server's name built in, and asks it through the proxy of its environment.
		metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.URL.Host, "metadata.google.internal") || r.Header.Get("Metadata-Flavor") != "Google" {
				http.NotFound(w, r)
				return
			}
			fmt.Fprint(w, `{"access_token":"secret"}`)
		}))
		t.Cleanup(metadata.Close)
		config := filepath.Join(t.TempDir(), "config.yaml")
		text := fmt.Sprintf(providers, metadata.URL)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		equal(t, drive(t, mortise, "--credential-provider", "--image-credential-provider-config", config,
			"--image-credential-provider-bin-dir", programs, "--image", "gcr.io/project/image:1"))
	})
}

const providers = `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: gcp-credential-provider
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["gcr.io", "*.gcr.io", "container.cloud.google.com", "*.pkg.dev"]
  defaultCacheDuration: 1m
  env: [{name: HTTP_PROXY, value: %q}]
`
