// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package compatibility

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/internal/golden"
)

const (
	document = "../../docs/compatibility.md"
	begin    = "<!-- The table is made by test/compatibility; change it with go test ./test/compatibility -update -->\n"
	end      = "<!-- end of the table -->\n"
)

// TestTable tries every verb of every resource, and compares what came of it with the table in the document.
func TestTable(t *testing.T) {
	want := upstream(t)
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	client, err := rest.HTTPClientFor(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	s := &server{client: client, url: cluster.URL()}
	if diff := cmp.Diff(want, s.discover(t)); diff != "" {
		t.Errorf("discovery is not upstream's (-want +got):\n%s", diff)
	}
	got := s.tryAll(t, want)
	for _, r := range want {
		if missing := got[r.name()]; len(missing) > 0 {
			t.Errorf("%s does not serve: %s", r.name(), strings.Join(missing, " "))
		}
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", document)
	}
	made := before + begin + table(want, got) + end + after
	if made == string(text) {
		return
	}
	if !golden.Update() {
		t.Fatalf("the table is stale; -update writes it:\n%s", cmp.Diff(string(text), made))
	}
	if err := os.WriteFile(document, []byte(made), 0o644); err != nil {
		t.Fatal(err)
	}
}

// entry is a resource or subresource in one version.
type entry struct {
	Group, Version, Resource string // Resource: pods or pods/log
	Kind                     string
	Namespaced               bool
	Verbs                    []string
}

func (e entry) version() string { return strings.TrimPrefix(e.Group+"/"+e.Version, "/") }
func (e entry) name() string    { return e.version() + " " + e.Resource }

// preview is a version that is not served by default.
var preview = regexp.MustCompile(`^v\d+(alpha|beta)\d+$`)

// upstream is what Kubernetes serves by default.
func upstream(t *testing.T) []entry {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatalf("find module: %v", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "api", "discovery")
	var core metav1.APIResourceList
	read(t, filepath.Join(dir, "api__v1.json"), &core)
	var all []entry
	for _, r := range core.APIResources {
		all = append(all, entry{"", "v1", r.Name, r.Kind, r.Namespaced, r.Verbs})
	}
	var groups apidiscoveryv2.APIGroupDiscoveryList
	read(t, filepath.Join(dir, "aggregated_v2.json"), &groups)
	all = slices.DeleteFunc(append(all, flatten(&groups)...), func(e entry) bool { return preview.MatchString(e.Version) })
	return sorted(all)
}

func read(t *testing.T, file string, into any) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}

func flatten(list *apidiscoveryv2.APIGroupDiscoveryList) []entry {
	var all []entry
	for _, g := range list.Items {
		for _, v := range g.Versions {
			for _, r := range v.Resources {
				e := entry{g.Name, v.Version, r.Resource, r.ResponseKind.Kind, r.Scope == apidiscoveryv2.ScopeNamespace, r.Verbs}
				all = append(all, e)
				for _, sub := range r.Subresources {
					e.Resource, e.Kind, e.Verbs = r.Resource+"/"+sub.Subresource, sub.ResponseKind.Kind, sub.Verbs
					all = append(all, e)
				}
			}
		}
	}
	return all
}

func sorted(all []entry) []entry {
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.name(), b.name()) })
	for i := range all {
		slices.Sort(all[i].Verbs)
	}
	return all
}

// server is the one that is tried.
type server struct {
	client *http.Client
	url    string
}

func (s *server) discover(t *testing.T) []entry {
	t.Helper()
	var all []entry
	for _, root := range []string{"/api", "/apis"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+root, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		a, err := s.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var list apidiscoveryv2.APIGroupDiscoveryList
		err = json.NewDecoder(a.Body).Decode(&list)
		_ = a.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, flatten(&list)...)
	}
	return sorted(all)
}

// tryAll returns the verbs that are not served, by entry.
func (s *server) tryAll(t *testing.T, all []entry) map[string][]string {
	t.Helper()
	missing := map[string][]string{}
	var mu sync.Mutex
	var tries sync.WaitGroup
	room := make(chan struct{}, 8)
	for _, e := range all {
		for _, verb := range e.Verbs {
			room <- struct{}{}
			tries.Go(func() {
				defer func() { <-room }()
				answer, ok, err := s.try(t, e, verb)
				if err != nil {
					t.Errorf("%s %s: %v", verb, e.name(), err)
				}
				if !ok {
					t.Logf("%s %s: %s", verb, e.name(), answer)
					mu.Lock()
					defer mu.Unlock()
					missing[e.name()] = append(missing[e.name()], verb)
				}
			})
		}
	}
	tries.Wait()
	for _, m := range missing {
		slices.Sort(m)
	}
	return missing
}

// absent is the name of objects that are not there.
const absent = "compatibility-absent"

// methods are those of the verbs.
var methods = map[string]string{
	"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE",
	"deletecollection": "DELETE",
}

// try says a request of a verb, and whether the answer shows that the verb is served: a path or method that is not is answered
// without a word of the object, or as not allowed.
func (s *server) try(t *testing.T, e entry, verb string) (answer string, served bool, err error) {
	resource, sub, isSub := strings.Cut(e.Resource, "/")
	path := "/apis/" + e.version()
	if e.Group == "" {
		path = "/api/" + e.Version
	}
	if e.Namespaced {
		path += "/namespaces/default"
	}
	path += "/" + resource
	if isSub || slices.Contains([]string{"get", "update", "patch", "delete"}, verb) {
		path += "/" + absent
	}
	if isSub {
		path += "/" + sub
	}
	var body []byte
	switch verb {
	case "watch":
		path += "?watch=true"
	case "create", "update":
		path += "?dryRun=All"
		body = fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"name":%q}}`, e.version(), e.Kind, absent)
	case "patch":
		body = []byte(`{}`)
	case "delete", "deletecollection":
		path += "?dryRun=All"
	}
	r, err := http.NewRequestWithContext(t.Context(), methods[verb], s.url+path, bytes.NewReader(body))
	if err != nil {
		return "", false, err
	}
	r.Header.Set("Content-Type", "application/json")
	if verb == "patch" {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	a, err := s.client.Do(r)
	if err != nil {
		return "", false, err
	}
	defer a.Body.Close()
	if a.StatusCode < 300 {
		return a.Status, true, nil // a watch goes on until its body is closed
	}
	var status metav1.Status
	if err := json.NewDecoder(a.Body).Decode(&status); err != nil {
		return a.Status, false, nil // a path that is not there is told in plain text
	}
	switch a.StatusCode {
	case http.StatusNotFound:
		return status.Message, status.Details != nil && status.Details.Name == absent, nil
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return status.Message, false, nil
	}
	return status.Message, status.Message != "", nil // refused for what was asked, by who serves it
}

// table is a line for each resource and subresource.
func table(all []entry, missing map[string][]string) string {
	var out strings.Builder
	resources, subresources, verbs, lacking := 0, 0, 0, 0
	for _, e := range all {
		if resources++; strings.Contains(e.Resource, "/") {
			subresources++
		}
		verbs += len(e.Verbs)
		lacking += len(missing[e.name()])
	}
	fmt.Fprintf(&out, "%d of %d verbs of %d resources and %d subresources are served.\n\n", verbs-lacking, verbs, resources-subresources,
		subresources)
	out.WriteString("| version | resource | verbs | served |\n|---|---|---|---|\n")
	for _, e := range all {
		served := "all"
		if m := missing[e.name()]; len(m) > 0 {
			served = "not " + strings.Join(m, " ")
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s |\n", e.version(), e.Resource, short(e.Verbs), served)
	}
	return out.String()
}

// short is a list of verbs in which the eight that most resources have are one word.
func short(verbs []string) string {
	usual := []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	for _, v := range usual {
		if !slices.Contains(verbs, v) {
			return strings.Join(verbs, " ")
		}
	}
	rest := slices.DeleteFunc(slices.Clone(verbs), func(v string) bool { return slices.Contains(usual, v) })
	return strings.Join(append([]string{"the eight"}, rest...), " ")
}
