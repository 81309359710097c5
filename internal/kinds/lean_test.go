// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
)

// said returns what a program prints to its standard output.
func said(t *testing.T, name string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Stderr = t.Output()
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %q: %v", name, args, err)
	}
	return strings.TrimSpace(string(out))
}

// imported returns what a Go file imports.
func imported(t *testing.T, file string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\t(?:\w+ )?"([^"]+)"$`).FindAllStringSubmatch(string(text), -1) {
		all[m[1]] = true
	}
	return all
}

// emptied matches the packages for tests that lean empties, and the packages that compile only if those are empty.
var emptied = regexp.MustCompile(`/fake$|^k8s\.io/client-go/(testing|gentype)$|^k8s\.io/apiserver/pkg/admission/plugin/policy/generic$`)

// TestLeftOutIsServedNowhere looks at what scripts/overlay/lean leaves out of the program's libraries. Kubernetes of this version serves
// none of the versions that kubectl and client-go lose. Mortise serves none of the versions whose conversions it loses, whatever its
// --runtime-config. The packages compile without them.
func TestLeftOutIsServedNowhere(t *testing.T) {
	dir := t.TempDir()
	packages := strings.Fields(said(t, "../../scripts/overlay/lean", dir))
	lean := filepath.Join(dir, "lean")

	directory := func(of string) string { return said(t, "go", "list", "-f", "{{.Dir}}", of) }
	documents := filepath.Join(said(t, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"), "api", "discovery")
	text, err := os.ReadFile(filepath.Join(documents, "aggregated_v2.json"))
	if err != nil {
		t.Fatal(err)
	}
	var upstream apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(text, &upstream); err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{} // by the first label of the group, as the packages have it
	add := func(group, version string) {
		label, _, _ := strings.Cut(group, ".")
		served[label+"/"+version] = true
	}
	for _, group := range upstream.Items {
		for _, v := range group.Versions {
			add(group.Name, v.Version)
		}
	}
	everything, err := ParseRuntimeConfig(map[string]string{"api/all": "true"})
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]bool{}
	for _, d := range All(Options{RuntimeConfig: everything}) {
		label, _, _ := strings.Cut(d.Group, ".")
		for _, v := range d.Versions {
			own[label+"/"+v.Name] = true
		}
	}

	// gone returns the versions that a file imports no more.
	gone := func(of, file, prefix string) (out []string) {
		after := imported(t, filepath.Join(lean, of, file))
		for path := range imported(t, filepath.Join(directory(of), file)) {
			if version, ok := strings.CutPrefix(path, prefix); ok && !after[path] {
				out = append(out, version)
			}
		}
		return out
	}
	count := 0
	for _, f := range []struct{ of, file, prefix string }{
		{"k8s.io/client-go/kubernetes/scheme", "register.go", "k8s.io/api/"},
		{"k8s.io/kubectl/pkg/scheme", "install.go", "k8s.io/api/"},
		{"k8s.io/client-go/kubernetes", "clientset.go", "k8s.io/client-go/kubernetes/typed/"},
		{"k8s.io/client-go/informers", "generic.go", "k8s.io/api/"},
	} {
		for _, version := range gone(f.of, f.file, f.prefix) {
			if count++; served[version] {
				t.Errorf("%s leaves out %s, which Kubernetes serves", f.of, version)
			}
		}
	}
	// Servers send reviews to webhooks in versions that they do not serve.
	for _, review := range []string{"authentication/v1beta1", "authorization/v1beta1"} {
		if !imported(t, filepath.Join(lean, "k8s.io/client-go/kubernetes/scheme/register.go"))["k8s.io/api/"+review] {
			t.Errorf("client-go's scheme has no %s, which webhooks may want", review)
		}
	}
	for _, of := range packages {
		if version, ok := strings.CutPrefix(of, "k8s.io/api/"); ok && served[version] {
			t.Errorf("%s registers nothing, which Kubernetes serves", of)
		}
		if !strings.HasSuffix(of, "/install") {
			continue
		}
		for _, version := range gone(of, "install.go", "k8s.io/kubernetes/pkg/apis/") {
			if count++; own[version] {
				t.Errorf("%s leaves out %s, which Mortise serves", of, version)
			}
		}
	}
	if count < 75 || !own["resource/v1beta1"] || !served["scheduling/v1alpha3"] {
		t.Errorf("%d versions are left out; Mortise serves %v, Kubernetes %v", count, own, served)
	}

	compile, err := filepath.Abs("../../scripts/overlay/compile")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"build", "-tags", "grpcnotrace", fmt.Sprintf("-toolexec=sh '%s' '%s'", compile, dir)}
	var edited []string
	for _, of := range packages {
		if !emptied.MatchString(of) {
			files := said(t, "sh", "-c", `cat "$0" "$1"/*.go | cksum | cut -d ' ' -f 1`, compile, filepath.Join(lean, of))
			args, edited = append(args, "-gcflags="+of+"=-lean="+files), append(edited, of)
		}
	}
	said(t, "go", append(args, edited...)...)
}
