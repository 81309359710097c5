// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// report is what ginkgo writes of a suite, as far as it is read.
const report = `[{"SuiteDescription": "Kubernetes e2e suite", "PreRunStats": {"TotalSpecs": 7000, "SpecsThatWillRun": 6},
"SpecialSuiteFailureReasons": ["Suite Timeout Elapsed"], "SpecReports": [
{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
{"ContainerHierarchyTexts": ["[sig-apps] Deployment"], "LeafNodeType": "It", "LeafNodeText": "rolls [Conformance]", "State": "passed"},
{"ContainerHierarchyTexts": ["[sig-apps] Deployment"], "LeafNodeType": "It", "LeafNodeText": "scales [Conformance]", "State": "failed",
 "Failure": {"Message": "\n  two pods, want three\nmore"}},
{"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "start [Conformance]", "State": "timedout",
 "Failure": {"Message": "too late"}},
{"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "not chosen", "State": "skipped"},
{"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "one node [Conformance]", "State": "skipped",
 "Failure": {"Message": "Requires at least 2 nodes"}},
{"LeafNodeType": "ReportAfterSuite", "LeafNodeText": "Kubernetes e2e suite report", "State": "passed"}]}]`

func TestReport(t *testing.T) {
	got, unrun, err := readReport(strings.NewReader(report))
	if err != nil {
		t.Fatal(err)
	}
	want := results{
		{"[sig-apps] Deployment rolls [Conformance]", "passed", ""},
		{"[sig-apps] Deployment scales [Conformance]", "failed", "two pods, want three"},
		{"[sig-node] Pods start [Conformance]", "failed", "too late"},
		{"[sig-node] Pods one node [Conformance]", "skipped", "Requires at least 2 nodes"},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(result{})); d != "" {
		t.Error(d)
	}
	if want := (cut{2, "Suite Timeout Elapsed"}); unrun != want {
		t.Errorf("what did not run is %+v, want %+v", unrun, want)
	}
	var out strings.Builder
	if got.print(&out, "containers", known{"containers": {"Deployment scales": "slow", "Pods start": "slow"}}, unrun, 0) ||
		!strings.Contains(out.String(), "containers: 2 selected tests did not run: Suite Timeout Elapsed\n") {
		t.Errorf("a run that was cut off is complete:\n%s", out.String())
	}
	passed := regexp.MustCompile(got.passed())
	if !passed.MatchString("[sig-apps] Deployment rolls [Conformance]") || passed.MatchString("[sig-apps] Deployment scales [Conformance]") {
		t.Errorf("passed: %s", passed)
	}
	for _, c := range []struct {
		known, says string
		ok          bool
	}{
		{"", "FAILED: [sig-apps] Deployment scales [Conformance]\n  two pods, want three\n", false},
		{"containers\tDeployment scales\tslow\ncontainers\tPods start\tslow\n", "\n  slow\n", true},
		{"simulated\tDeployment scales\tslow\nsimulated\tPods start\tslow\n", "FAILED: [sig-node] Pods start", false},
		{"containers\tDeployment\tslow\ncontainers\tPods start\tslow\n", "passes now, known.tsv has it: [sig-apps] Deployment rolls", true},
	} {
		k, err := readKnown(c.known)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if ok := got.print(&out, "containers", k, cut{}, 90*time.Second); ok != c.ok || !strings.Contains(out.String(), c.says) {
			t.Errorf("known %q: %v, want %v and %q:\n%s", c.known, ok, c.ok, c.says, out.String())
		}
		if counts := "2 failed"; !strings.Contains(out.String(), "containers: 1 passed, "+counts) {
			t.Errorf("no counts in:\n%s", out.String())
		}
	}
}

func TestFailedPreparationIsAFailure(t *testing.T) {
	got, _, err := readReport(strings.NewReader(`[{"SpecReports": [{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed",
"Failure": {"Message": "no node"}}]}]`))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got.print(io.Discard, "simulated", nil, cut{}, 0) {
		t.Errorf("%v is no failure", got)
	}
	if (results{}).print(io.Discard, "simulated", nil, cut{}, 0) {
		t.Error("no test at all is no failure")
	}
}

func TestTables(t *testing.T) {
	if _, err := readKnown(knownTable); err != nil {
		t.Error(err)
	}
	for _, r := range runs() {
		if r.storage != "" { // a focus there chooses among the suites of storage
			continue
		}
		focus, err := r.focus(`\[sig-api-machinery\]`)
		if err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
		focused := regexp.MustCompile(focus)
		if !focused.MatchString("[sig-api-machinery] Discovery should validate PreferredVersion for each APIGroup [Conformance]") ||
			focused.MatchString("[sig-node] Pods should validate PreferredVersion for each APIGroup [Conformance]") {
			t.Errorf("%s: focus %s", r.name, focus)
		}
		if _, err := r.focus("nothing"); (err == nil) != (r.tests == nil) {
			t.Errorf("%s: a focus on nothing: %v", r.name, err)
		}
	}
	mock := slices.IndexFunc(runs(), func(r run) bool { return r.name == "csimock" })
	focus, err := runs()[mock].focus("attach")
	if err != nil {
		t.Fatal(err)
	}
	focused := regexp.MustCompile(focus)
	if !focused.MatchString("[sig-storage] CSI Mock volume attach should attach") || focused.MatchString("[sig-storage] CSI Mock volume limits") ||
		focused.MatchString("[sig-node] Pods attach") {
		t.Errorf("csimock: focus %s", focus)
	}
	if _, err := readKnown("simulated\tname without a cause\n"); err == nil {
		t.Error("a line without a cause is no error")
	}
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "mortise")
	for _, c := range []struct{ peers, says string }{
		{"", "scripts/conformance/build DIR makes it"},
		{t.TempDir(), "e2e.test: no such file or directory: scripts/conformance/build"},
	} {
		s := settings{peers: c.peers, binary: binary, out: t.TempDir()}
		if _, err := s.all(t.Context(), []string{"simulated"}, io.Discard); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("peers %q: %v, want %q", c.peers, err, c.says)
		}
	}
	if _, err := (settings{}).all(t.Context(), []string{"quick"}, io.Discard); err == nil || !strings.Contains(err.Error(), `no run "quick"`) {
		t.Errorf("a run that does not exist: %v", err)
	}
}

func TestReadyLineIsFound(t *testing.T) {
	ready := make(chan struct{})
	follow(strings.NewReader("mortise: starting ...\nmortise: ready in 90 ms, URL, kubeconfig F, node: none\nmortise: ready in jest\n"), ready)
	<-ready
}

// TestRegistry reads an image as containerd does: the manifest by its tag, then what it names.
func TestRegistry(t *testing.T) {
	layer, err := writeLayer(filepath.Join(t.TempDir(), "l.tar"), func(a archive) error { return a.text("hello", "world") })
	if err != nil {
		t.Fatal(err)
	}
	img, err := standIn{names: []string{"e2e/hello:1"}, layers: []string{"l"}, cmd: []string{"hello"}}.image(map[string]v1.Layer{"l": layer})
	if err != nil {
		t.Fatal(err)
	}
	r, err := serve(map[string]v1.Image{"e2e/hello:1": img}, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) []byte {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.address+"/v2/e2e/hello/"+path+"?ns=registry.k8s.io", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %v", path, res.Status, err)
		}
		return body
	}
	manifest, err := v1.ParseManifest(strings.NewReader(string(get("manifests/1"))))
	if err != nil {
		t.Fatal(err)
	}
	config, err := v1.ParseConfigFile(strings.NewReader(string(get("blobs/" + manifest.Config.Digest.String()))))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"hello"}, config.Config.Cmd); d != "" {
		t.Error(d)
	}
	files := tar.NewReader(strings.NewReader(string(get("blobs/" + manifest.Layers[0].Digest.String()))))
	if h, err := files.Next(); err != nil || h.Name != "hello" {
		t.Errorf("the layer begins with %v, %v", h, err)
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
}

// TestStandIns makes all images of a tree that has a file of each name.
func TestStandIns(t *testing.T) {
	if _, err := os.Stat("/bin/busybox"); err != nil {
		t.Skip("SKIPPED: no busybox")
	}
	peers := t.TempDir()
	for _, name := range []string{"bin/agnhost", "bin/nnp", "bin/sample-apiserver", "bin/resource-consumer", "bin/consume-cpu", "bin/etcd",
		"bin/sample-device-plugin",
		"rootfs/bin/bash-static", "rootfs/etc/passwd", "rootfs/etc/group"} {
		path := filepath.Join(peers, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	images, err := standIns(context.Background(), peers, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range table() {
		for _, n := range s.names {
			layers, err := images[n].Layers()
			if err != nil || len(layers) != len(s.layers) {
				t.Errorf("%s has %d layers, %v", n, len(layers), err)
			}
		}
	}
	r, err := serve(images, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
}

// TestPassedBeforeIsLeftOut: a run in pieces skips what has passed in the pieces before.
func TestPassedBeforeIsLeftOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(path, []byte(report), 0o600); err != nil {
		t.Fatal(err)
	}
	s := settings{skip: "slow", after: path + "," + path}
	if err := s.skipPassed(); err != nil {
		t.Fatal(err)
	}
	passed := `\[sig-apps\] Deployment rolls \[Conformance\]$`
	if want := "slow|" + passed + "|" + passed; s.skip != want {
		t.Errorf("skips %s, want %s", s.skip, want)
	}
	s = settings{after: filepath.Join(t.TempDir(), "none.json")}
	if err := s.skipPassed(); err == nil || !strings.Contains(err.Error(), "none.json") {
		t.Errorf("a report that does not exist: %v", err)
	}
	if s = (settings{skip: "slow"}); s.skipPassed() != nil || s.skip != "slow" {
		t.Errorf("skips %s", s.skip)
	}
}
