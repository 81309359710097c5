// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"path"
	"slices"
	"strings"
	"testing"
)

// layer is one rule on imports: files below From may not import what is below To, but for those below Except.
type layer struct {
	from, to string
	except   []string // importing folders that may
	why      string
}

// layers is the map of DESIGN's tree: imports point down, and the rooms beside each other do not know each other.
func layers() []layer {
	rooms := []string{"internal/apiserver", "internal/controllers", "internal/scheduler", "internal/agent", "internal/cli", "internal/console"}
	var out []layer
	for _, a := range rooms {
		for _, b := range rooms {
			if a != b {
				out = append(out, layer{from: a, to: module + "/" + b,
					why: "rooms meet only in internal/builtin, internal/cluster and internal/node, and reach the API server as clients"})
			}
		}
		out = append(out,
			layer{from: a, to: module + "/internal/builtin", why: "imports point down"},
			layer{from: a, to: module + "/internal/cluster", why: "assembly knows the rooms, and no room knows assembly"},
			layer{from: a, to: module + "/internal/node", why: "assembly knows the rooms, and no room knows assembly"},
			layer{from: a, to: module + "/embed$", why: "imports point down"},
			layer{from: a, to: module + "/internal/kinds", why: "rooms see kinds as descriptors that are passed in"})
	}
	for _, low := range []string{"store", "resource", "extension", "api"} {
		for _, high := range []string{"internal", "embed", "cmd"} {
			out = append(out, layer{from: low, to: module + "/" + high, why: "imports point down"})
		}
	}
	out = append(out,
		layer{from: "internal/builtin", to: module + "/internal/cluster", why: "assembly takes the lists, which know nothing of it"},
		layer{from: "internal/builtin", to: module + "/internal/node", why: "assembly takes the lists, which know nothing of it"},
		layer{from: "internal/node", to: module + "/internal/cluster", why: "a cluster runs nodes; a node may be alone"},
		layer{from: "internal/node", to: module + "/internal/apiserver", why: "a node is a client of the API server, which may be elsewhere"},
		layer{from: "internal/cluster", to: module + "/embed$", why: "embed is the face of what is assembled here"},
		layer{from: "internal/node", to: module + "/embed$", why: "embed is the face of what is assembled here"},
		layer{from: "internal/zpages", to: module, why: "it shows what any component tells of itself"},
		layer{from: "internal/lifecycle", to: module, why: "it starts and stops parts, whatever they are"},
		layer{from: "embed/options", to: module, why: "settings are data that every room may read"},
		layer{from: "store", to: module + "/resource", why: "the store speaks bytes, keys and revisions, not objects"},
		layer{from: "store", to: "k8s.io", except: []string{"store/storetest"}, why: "the store speaks bytes, keys and revisions, not objects"},
		layer{from: "internal/kinds", to: module + "/internal/apiserver", why: "kinds are data to the server"},
		layer{from: "internal/apiserver/registry", to: "net/http",
			why: "the registry reads and writes stored objects, whoever asks (decision 12)"},
		layer{from: "internal/apiserver/registry", to: module + "/internal/apiserver/verbs",
			why: "HTTP stands on the registry, not under it (decision 12)"},
		layer{from: ".", to: "k8s.io/kubernetes",
			except: []string{"internal/kinds/upstream", "test/csi", "test/kubescheduler", "test/persistentvolume", "test/podautoscaler",
				"test/resourcemanagers"},
			why: "one package hides upstream's own (decision 2); what tests ask beside it is in modules of their own"},
		layer{from: ".", to: "k8s.io/apiserver/pkg/server", except: []string{"extension/egress"}, why: "Mortise is the server"},
		layer{from: ".", to: "k8s.io/apiserver/pkg/registry", why: "Mortise is the server"},
		layer{from: ".", to: "k8s.io/apiserver/pkg/storage/cacher", why: "Mortise has its own watch cache"},
		layer{from: ".", to: "k8s.io/kube-aggregator/pkg/apiserver", why: "Mortise is the aggregator"},
		layer{from: ".", to: "k8s.io/apiextensions-apiserver/pkg/apiserver$", why: "Mortise serves CRDs itself"},
	)
	return out
}

func TestImportsPointDown(t *testing.T) {
	rules := layers()
	for _, s := range tree(t) {
		for _, imported := range s.imports() {
			for _, l := range rules {
				if !below(s.dir(), l.from) || !matches(imported, l.to) || (s.isTest() && strings.HasPrefix(l.to, module)) {
					continue
				}
				allowed := false
				for _, e := range l.except {
					allowed = allowed || below(s.dir(), e)
				}
				if !allowed {
					t.Errorf("%s imports %s: %s", s.path, imported, l.why)
				}
			}
		}
	}
}

// TestEmbedIsTheFace: the public library has the assembly and the contracts of extensions below it, and nothing else of the inside.
func TestEmbedIsTheFace(t *testing.T) {
	allowed := []string{
		"internal/cluster", "internal/node", "internal/apiserver/admit", "internal/controllers", "internal/scheduler/profile",
		"internal/tracetext", // the log of a failed test explains writes as the command line does
	}
	for _, s := range tree(t) {
		if s.dir() != "embed" || s.isTest() {
			continue
		}
		for _, imported := range s.imports() {
			inside, ok := strings.CutPrefix(imported, module+"/")
			if ok && strings.HasPrefix(inside, "internal/") && !slices.Contains(allowed, inside) {
				t.Errorf("%s imports %s: a cluster is assembled in internal/cluster, a node in internal/node", s.path, imported)
			}
		}
	}
}

// below reports whether dir is root or lies under it; "." is everything.
func below(dir, root string) bool {
	return root == "." || dir == root || strings.HasPrefix(dir, root+"/")
}

// matches reports whether an import path is, or lies under, the rule's; a $ at the end means only that very package.
func matches(imported, rule string) bool {
	if exact, ok := strings.CutSuffix(rule, "$"); ok {
		return imported == exact
	}
	return imported == rule || strings.HasPrefix(imported, rule+"/") && path.Clean(imported) == imported
}
