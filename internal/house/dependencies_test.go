// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// mostTestPackages is how many packages a test that uses embedtest may compile, those of the standard library among them.
// A commit that raises it says why.
const mostTestPackages = 1752

// heavy is what a test that uses embedtest does not depend on, by the beginning of import paths, with what would bring it.
var heavy = map[string]string{
	module + "/cmd":                          "the command line",
	module + "/internal/cli":                 "the command line",
	module + "/internal/machine":             "the installation of a container runtime",
	module + "/internal/node/containers":     "nodes with containers",
	module + "/internal/builtin/nodeparts":   "nodes with containers",
	module + "/internal/agent/cri":           "nodes with containers",
	module + "/internal/agent/proxy":         "nodes with containers",
	module + "/internal/agent/netfilter":     "nodes with containers",
	"github.com/containerd":                  "nodes with containers",
	"github.com/google/go-containerregistry": "the download of images",
	"github.com/google/nftables":             "the service proxy",
	"github.com/miekg/dns":                   "the cluster DNS",
	"github.com/vishvananda":                 "the node's network",
	"github.com/opencontainers/image-spec":   "the download of images",
	"k8s.io/cri-client":                      "nodes with containers",
	"k8s.io/kubectl":                         "kubectl",
	"sigs.k8s.io/knftables":                  "the service proxy",
	"github.com/mdlayher":                    "the node's network",
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc": "the container runtime's protocol",
}

// TestEmbedtestIsLight: a test that uses embedtest, on any developer's machine, depends on no node with containers.
func TestEmbedtestIsLight(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", "grpcnotrace", module+"/embed/embedtest")
	list.Env = append(os.Environ(), "CGO_ENABLED=0") // cgo is a package more
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(out))
	for _, p := range packages {
		for beginning, what := range heavy {
			if p == beginning || strings.HasPrefix(p, beginning+"/") {
				t.Errorf("embedtest imports %s, which is of %s", p, what)
			}
		}
	}
	if len(packages) > mostTestPackages {
		t.Errorf("embedtest imports %d packages: want %d at most", len(packages), mostTestPackages)
	}
}
