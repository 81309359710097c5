// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// comparisons are the modules of their own that compare Mortise with Kubernetes' own code, or run its programs beside Mortise.
var comparisons = []string{
	filepath.Join("test", "csi"), filepath.Join("test", "kubescheduler"), filepath.Join("test", "persistentvolume"),
	filepath.Join("test", "podautoscaler"), filepath.Join("test", "resourcemanagers"),
}

// TestOnlyUpstreamImportsKubernetes: only internal/kinds/upstream imports k8s.io/kubernetes, and of that only the parts that
// define the API as data. Comparisons are not part of the program.
func TestOnlyUpstreamImportsKubernetes(t *testing.T) {
	const kubernetes = "k8s.io/kubernetes/"
	allowed := []string{"pkg/apis/", "pkg/printers/internalversion", "pkg/api/legacyscheme", "plugin/pkg/auth/authorizer/rbac/bootstrappolicy",
		"api/"}
	root, files := filepath.Join("..", ".."), 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if e.IsDir() && (strings.HasPrefix(e.Name(), ".") && e.Name() != ".." || rel == filepath.Join("internal", "zz") ||
			slices.Contains(comparisons, rel)) {
			return filepath.SkipDir
		}
		if e.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		files++
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return nil // another test's business: it does not build
		}
		for _, i := range f.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil || !strings.HasPrefix(name, kubernetes) {
				continue
			}
			if filepath.Dir(rel) != filepath.Join("internal", "kinds", "upstream") {
				t.Errorf("%s imports %s: only internal/kinds/upstream may", rel, name)
				continue
			}
			ok := false
			for _, a := range allowed {
				ok = ok || strings.HasPrefix(strings.TrimPrefix(name, kubernetes), a)
			}
			if !ok {
				t.Errorf("%s imports %s, which does not define the API", rel, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 10 {
		t.Errorf("looked at %d files only", files)
	}
}
