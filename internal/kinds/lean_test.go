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
		t.Fatalf("%s %q ...: %v", name, args[:min(len(args), 3)], err)
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
// none of the versions that kubectl and client-go lose, but scales, which aggregated servers may have in old versions, can be read.
// Mortise serves none of the versions whose conversions it loses, whatever its --runtime-config. Objects are encoded as before. The
// packages compile without the rest.
func TestLeftOutIsServedNowhere(t *testing.T) {
	dir := t.TempDir()
	var packages []string
	sums := map[string]string{}
	for line := range strings.SplitSeq(said(t, "../../scripts/overlay/lean", dir), "\n") {
		of, sum, _ := strings.Cut(line, " ")
		packages = append(packages, of)
		sums[of] = sum
	}
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
	api := said(t, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/api")
	for _, version := range []string{"apps/v1beta1", "apps/v1beta2", "extensions/v1beta1"} {
		text, err := os.ReadFile(filepath.Join(lean, "k8s.io/api", version, "register.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "&Scale{}") || !strings.Contains(string(text), "NewSchemeBuilder(addKnownTypes)") {
			t.Errorf("%s registers no Scale", version)
		}
	}
	for _, of := range packages {
		if version, ok := strings.CutPrefix(of, "k8s.io/api/"); ok {
			if _, err := os.Stat(filepath.Join(lean, of, "register.go")); err == nil && served[version] {
				t.Errorf("%s registers nothing, which Kubernetes serves", of)
			}
			checkMessages(t, of, filepath.Join(api, strings.TrimPrefix(of, "k8s.io/api/")), filepath.Join(lean, of))
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
		args = append(args, "-gcflags="+of+"=-lean="+sums[of])
		if !emptied.MatchString(of) {
			edited = append(edited, of)
		}
	}
	said(t, "go", append(args, edited...)...)
}

// checkMessages checks that objects of a package of k8s.io/api are encoded as before, and that only methods for whole messages are gone.
func checkMessages(t *testing.T, of, dir, lean string) {
	t.Helper()
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	object := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^func \(in \*(\w+)\) DeepCopyObject\(\)`).FindAllStringSubmatch(
		read(filepath.Join(dir, "zz_generated.deepcopy.go")), -1) {
		object[m[1]] = true
	}
	method := regexp.MustCompile(`(?m)^func \(m \*(\w+)\) (\w+)\(`)
	left := map[string]bool{}
	for _, m := range method.FindAllStringSubmatch(read(filepath.Join(lean, "generated.pb.go")), -1) {
		left[m[0]] = true
	}
	for _, m := range method.FindAllStringSubmatch(read(filepath.Join(dir, "generated.pb.go")), -1) {
		if whole := m[2] == "Reset" || m[2] == "Marshal" || m[2] == "MarshalTo"; !left[m[0]] && (!whole || object[m[1]]) {
			t.Errorf("%s: %s is left out", of, m[0])
		}
	}
}
