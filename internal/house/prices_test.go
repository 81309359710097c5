// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// price is a row of CONTRIBUTING's table of what adding a thing touches: packages below a folder, and the one list that names them.
type price struct {
	thing, folder, list string
	suite               string   // call of the conformance suite in each package's tests; empty: any tests
	also                []string // packages that may import one beside the list, with what lies below them
}

// beyondTheList are the imports and the missing tests that a row's packages may have, with the reason.
var beyondTheList = map[string]string{
	"internal/cluster/admission.go internal/apiserver/admit/webhook":          "what webhooks may touch is a setting",
	"internal/cluster/controllers.go internal/controllers/kubernetesservice":  "each server runs this one, elected or not",
	"internal/cluster/election.go internal/controllers/kubernetesservice":     "each server runs this one, elected or not",
	"internal/cluster/identity.go internal/controllers/kubernetesservice":     "each server runs this one, elected or not",
	"internal/scheduler/profiles.go internal/scheduler/plugins/noderesources": "extenders add to its arguments",
	"internal/controllers/policystatus":                                       "embed/policystatus_test.go tests it in a server",
	"store/etcd":                                                              "test/etcd tests it, against members that are no dependency of this module",
	"internal/scheduler/plugins/defaultbinder":                                "the tests of the scheduler cover it",
}

func prices() []price {
	return []price{
		{thing: "store engine", folder: "store", list: "internal/builtin/engines.go", suite: "storetest.Run",
			also: []string{"store", "internal/cli", "internal/apiserver", "bench", "test"}}, // tools of the local engine, tests upon memory
		{thing: "admission plug-in", folder: "internal/apiserver/admit", list: "internal/builtin/admission.go"},
		{thing: "controller", folder: "internal/controllers", list: "internal/builtin/controllers.go"},
		{thing: "scheduler plug-in", folder: "internal/scheduler/plugins", list: "internal/builtin/scheduler.go"},
		{thing: "volume plug-in", folder: "internal/agent/volumes", list: "internal/builtin/nodeparts/volumes.go", suite: "volumetest.Run"},
	}
}

// TestAddingCostsWhatItSays checks the rows about packages in a list: each package is in its folder, has its tests, and only the list and
// packages beside it import it, so that adding one touches nothing else.
func TestAddingCostsWhatItSays(t *testing.T) {
	rows := pricedRows(t)
	all := tree(t)
	needed := map[string]bool{}
	allowed := func(what string) bool { needed[what] = true; return beyondTheList[what] != "" }
	for _, p := range prices() {
		if touches := rows[p.thing]; !strings.Contains(touches, p.list) || !strings.Contains(touches, p.suite) {
			t.Errorf("CONTRIBUTING.md: the row of a %s does not name %s and %s", p.thing, p.list, p.suite)
		}
		listed := packagesOf(all, p)
		if len(listed) < 2 {
			t.Errorf("%s names %d packages below %s", p.list, len(listed), p.folder)
		}
		for _, of := range listed {
			if !tested(all, of, p.suite) && !allowed(of) {
				t.Errorf("%s, a %s, has no tests that call %s", of, p.thing, p.suite)
			}
			for _, s := range all {
				if s.isTest() || s.path == p.list || s.dir() == of || !slices.Contains(s.imports(), module+"/"+of) ||
					slices.ContainsFunc(append(p.also, p.folder), func(dir string) bool { return below(s.dir(), dir) }) || allowed(s.path+" "+of) {
					continue
				}
				t.Errorf("%s imports %s: only %s names a %s", s.path, of, p.list, p.thing)
			}
		}
	}
	stale(t, beyondTheList, needed, "needs no exception")
}

// TestContributingNamesWhatIsThere checks that the files and folders of the table exist.
func TestContributingNamesWhatIsThere(t *testing.T) {
	named := regexp.MustCompile(`\b(internal|embed|api|docs|test)/[a-z0-9_./]*[a-z0-9]`)
	for thing, touches := range pricedRows(t) {
		for _, name := range named.FindAllString(touches, -1) {
			if _, err := os.Stat(filepath.Join("..", "..", name)); err != nil {
				t.Errorf("CONTRIBUTING.md: adding a %s touches %s, which does not exist", thing, name)
			}
		}
	}
}

// pricedRows returns what adding each thing touches, as CONTRIBUTING.md says.
func pricedRows(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(strings.TrimSpace(line), "|"); len(cells) == 4 && cells[0] == "" {
			rows[strings.TrimSpace(cells[1])] = cells[2]
		}
	}
	if len(rows) < 10 {
		t.Fatalf("found %d rows", len(rows))
	}
	return rows
}

// packagesOf returns the folders of the packages directly below a row's folder that its list imports.
func packagesOf(all []source, p price) (out []string) {
	for _, s := range all {
		if s.path != p.list {
			continue
		}
		for _, imported := range s.imports() {
			if dir, ok := strings.CutPrefix(imported, module+"/"); ok && path.Dir(dir) == p.folder {
				out = append(out, dir)
			}
		}
	}
	return out
}

// tested reports whether a package has tests, with a call of the suite if there is one.
func tested(all []source, dir, suite string) bool {
	return slices.ContainsFunc(all, func(s source) bool {
		return s.isTest() && s.dir() == dir && bytes.Contains(s.text, []byte(suite))
	})
}
