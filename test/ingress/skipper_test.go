// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/internal/machine/unshare/unsharetest"
	"github.com/mortise-dev/mortise/test/programs"
)

// skipper is the module of the ingress controller.
const skipper = "github.com/zalando/skipper"

// builtIn names the folder of the programs to a process of the test that is alone.
const builtIn = "MORTISE_TEST_PROGRAMS"

func TestMain(m *testing.M) {
	switch os.Getenv(unsharetest.Variable) {
	case "init":
		os.Exit(unsharetest.Init())
	case "test":
		os.Args = append(os.Args, "-programs="+os.Getenv(builtIn))
	}
	os.Exit(programs.Main(m, programs.Mortise,
		programs.Program{In: ".", Mod: "skipper.mod", Name: "skipper", Package: skipper + "/cmd/skipper"}))
}

// image is the name of Skipper's image in its manifests.
var image = regexp.MustCompile(`(?m)^ *image: (\S+/teapot/skipper:\S+)$`)

// commands returns the commands that a page has under a heading.
func commands(t *testing.T, file, heading string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	_, part, ok := strings.Cut(string(text), "\n"+heading+"\n")
	part, _, _ = strings.Cut(part, "\n## ")
	var out strings.Builder
	for _, block := range regexp.MustCompile("(?s)\n```sh\n(.*?)\n```\n").FindAllStringSubmatch(part, -1) {
		fmt.Fprintln(&out, block[1])
	}
	if !ok || out.Len() == 0 {
		t.Fatalf("%s has no commands under %q", file, heading)
	}
	return out.String()
}

// TestSkipper runs the commands of docs/ingress.md on a node with real containers. A client outside of the machine is led by host and path,
// and follows the pods and the Ingress.
func TestSkipper(t *testing.T) {
	if !unsharetest.Alone(t, func() []string { return []string{builtIn + "=" + programs.Dir()} }) {
		return
	}
	module := folder(t, skipper)
	manifests := filepath.Join(module, "docs", "kubernetes", "deploy", "daemonset")
	text, err := os.ReadFile(filepath.Join(manifests, "daemonset.yaml"))
	must(t, err)
	named := image.FindSubmatch(text)
	if named == nil {
		t.Fatalf("no image is named in\n%s", text)
	}
	n := start(t)
	n.load(t, string(named[1]), programs.Path("skipper"))

	said := regexp.MustCompile(`(?m)^skipper=https://\S+/deploy/daemonset$`)
	script := commands(t, filepath.Join("..", "..", "docs", "ingress.md"), "## Skipper")
	if !said.MatchString(script) {
		t.Fatalf("the page does not say where the manifests are:\n%s", script)
	}
	n.run(t, said.ReplaceAllLiteralString(script, "skipper="+manifests))

	n.answers(t, "shop.example.com", "/", "web version 1 ")
	n.answers(t, "shop.example.com", "/index.html", "web version 2 ")
	n.answers(t, "two.example.com", "/", "web version 2 ")
	n.refuses(t, "other.example.com")

	n.Do("", "patch", "ingress", "shop", "--type=json", "-p",
		`[{"op": "replace", "path": "/spec/rules/1/host", "value": "other.example.com"}]`)
	n.answers(t, "other.example.com", "/", "web version 2 ")
	n.refuses(t, "two.example.com")
	before := n.Do("", "get", "pods", "-l", "app=two", "-o", "name")
	n.Do("", "delete", "pods", "-l", "app=two", "--grace-period=1", "--wait=false")
	n.Do("", "rollout", "status", "deployment/two", "--timeout=100s")
	after := n.Do("", "get", "pods", "-l", "app=two", "--field-selector=status.phase=Running", "-o", "name")
	n.answers(t, "other.example.com", "/", "web version 2 on "+strings.TrimPrefix(strings.TrimSpace(after), "pod/"))
	if before == after {
		t.Errorf("the pod is still %s", before)
	}
}
