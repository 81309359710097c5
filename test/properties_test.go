// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/restmapper"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/yaml"
)

// propertySeeds are how many random objects of each kind are tried.
const propertySeeds = 3

// subject is a kind with an object of it.
type subject struct {
	object  map[string]any
	update  map[string]any // a change of it that is allowed
	grows   bool           // the server writes to it once it is there
	mapping *meta.RESTMapping
}

// properties is a server, and what is tried on it.
type properties struct {
	*victim
	types    *runtime.Scheme
	subjects []subject
}

func newProperties(t *testing.T) *properties {
	t.Helper()
	p := &properties{victim: newVictim(t), types: runtime.NewScheme()}
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme} {
		if err := add(p.types); err != nil {
			t.Fatal(err)
		}
	}
	p.must(request{method: "POST", path: "/api/v1/namespaces", body: strings.NewReader(`{"metadata":{"name":"transcript"}}`)},
		http.StatusCreated)
	p.must(request{method: "POST", path: "/api/v1/namespaces/transcript/serviceaccounts",
		body: strings.NewReader(`{"metadata":{"name":"default"}}`)}, http.StatusCreated)
	client, err := discovery.NewDiscoveryClientForConfigAndClient(p.config, p.client)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(client)
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	var changes map[string]struct {
		Update    map[string]any
		Completed bool
	}
	read(t, "transcripts/changes.yaml", func(data []byte) error { return yaml.Unmarshal(data, &changes) })
	read(t, "transcripts/kinds.yaml", func(data []byte) error {
		for _, doc := range bytes.Split(data, []byte("\n---\n")) {
			var s subject
			if err := yaml.Unmarshal(doc, &s.object); err != nil {
				return err
			}
			gvk := schema.FromAPIVersionAndKind(fmt.Sprint(s.object["apiVersion"]), fmt.Sprint(s.object["kind"]))
			if s.mapping, err = mapper.RESTMapping(gvk.GroupKind(), gvk.Version); err != nil {
				return err
			}
			change := changes[s.mapping.Resource.GroupResource().String()]
			s.update, s.grows = change.Update, change.Completed
			if s.mapping.Resource.Resource == "devicetaintrules" {
				// With another effect, a time that stays gets to be the time of the write, which is not the same for all sorts of patches.
				s.update["spec"].(map[string]any)["taint"].(map[string]any)["timeAdded"] = "2026-01-02T03:04:05Z"
			}
			p.subjects = append(p.subjects, s)
		}
		return nil
	})
	return p
}

func read(t *testing.T, file string, parse func([]byte) error) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := parse(data); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// must wants an answer of that status, and gives it as JSON.
func (p *properties) must(r request, code int) map[string]any {
	p.t.Helper()
	got, body := p.say(r)
	if got != code {
		p.t.Fatalf("%s %s: %d %s", r.method, r.path, got, body)
	}
	var out map[string]any
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		p.t.Fatal(err)
	}
	return out
}

// path is the kind's collection.
func (s subject) path() string {
	r := s.mapping.Resource
	base := "/apis/" + r.Group
	if r.Group == "" {
		base = "/api"
	}
	base += "/" + r.Version
	if s.mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		base += "/namespaces/transcript"
	}
	return base + "/" + r.Resource
}

func (s subject) name() string { return s.object["metadata"].(map[string]any)["name"].(string) }

// letters are what random text is made of: of all lengths in UTF-8, and what encodings escape.
var letters = []rune("abcXYZ019 _-.:/\\\"'<>&{}[]#%!?\t\näßжλ漢字🦑\u2028\u00a0")

func randomText(r *rand.Rand) string {
	out := make([]rune, r.IntN(30))
	for i := range out {
		out[i] = letters[r.IntN(len(letters))]
	}
	return string(out)
}

// randomMeta is metadata that any object may have.
func randomMeta(r *rand.Rand) map[string]any {
	labels, annotations := map[string]any{}, map[string]any{}
	for range r.IntN(4) {
		labels[fmt.Sprintf("example.com/l%d", r.IntN(5))] = fmt.Sprintf("v%d", r.IntN(3))
	}
	for range r.IntN(4) {
		annotations[fmt.Sprintf("example.com/a%d", r.IntN(5))] = randomText(r)
	}
	m := map[string]any{"labels": labels, "annotations": annotations}
	if r.IntN(2) == 0 {
		var owners []any
		for i := range 1 + r.IntN(3) {
			owners = append(owners, map[string]any{"apiVersion": "example.com/v1", "kind": "Owner", "name": fmt.Sprint("o", i),
				"uid": fmt.Sprint("u", r.IntN(9), i)})
		}
		m["ownerReferences"] = owners
	}
	return m
}

// random is the subject's object with random metadata.
func (s subject) random(r *rand.Rand) map[string]any {
	out := clonedJSON(s.object)
	m := out["metadata"].(map[string]any)
	maps.Copy(m, randomMeta(r))
	return out
}

func clonedJSON[T any](x T) T {
	data, err := json.Marshal(x)
	if err != nil {
		panic(err)
	}
	var out T
	if err := json.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	return out
}

func body(x any) *bytes.Reader {
	data, err := json.Marshal(x)
	if err != nil {
		panic(err)
	}
	return bytes.NewReader(data)
}

// content is an object without what changes with each write.
func content(o map[string]any) map[string]any {
	out := clonedJSON(o)
	m := out["metadata"].(map[string]any)
	for _, k := range []string{"managedFields", "resourceVersion", "generation"} {
		delete(m, k)
	}
	return out
}

// TestProperties tries what must hold of each kind on random objects of it.
func TestProperties(t *testing.T) {
	p := newProperties(t)
	for _, s := range p.subjects {
		t.Run(s.mapping.Resource.GroupResource().String(), func(t *testing.T) {
			p.t = t
			for n := range uint64(propertySeeds) {
				r := rand.New(rand.NewPCG(n, 7))
				made := p.must(request{method: "POST", path: s.path(), body: body(s.random(r))}, http.StatusCreated)
				if s.grows {
					made = p.completed(s, made)
				}
				p.sameInAllMedia(s, made)
				p.applyTwice(s, r)
				p.patches(s, r)
				p.remove(s)
				if t.Failed() {
					t.Fatalf("of seed %d", n)
				}
			}
		})
	}
}

// completed waits until the server has written to a new object, and gives what it is then.
func (p *properties) completed(s subject, made map[string]any) map[string]any {
	p.t.Helper()
	query := "?watch=1&fieldSelector=metadata.name%3D" + s.name() + "&resourceVersion=" +
		made["metadata"].(map[string]any)["resourceVersion"].(string)
	q, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, p.config.Host+s.path()+query, http.NoBody)
	if err != nil {
		p.t.Fatal(err)
	}
	response, err := p.client.Do(q)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	var e struct{ Object map[string]any }
	if err := json.NewDecoder(response.Body).Decode(&e); err != nil {
		p.t.Fatal(err)
	}
	return e.Object
}

// remove deletes the object, whatever holds it.
func (p *properties) remove(s subject) {
	p.t.Helper()
	one := s.path() + "/" + s.name()
	p.say(request{method: "DELETE", path: one + "?gracePeriodSeconds=0"})
	p.say(request{method: "PATCH", path: one, contentType: "application/merge-patch+json",
		body: strings.NewReader(`{"metadata":{"finalizers":null}}`)})
	if s.mapping.Resource.Resource == "namespaces" {
		p.say(request{method: "PUT", path: one + "/finalize", body: strings.NewReader(`{"metadata":{"name":"` + s.name() + `"},"spec":{}}`)})
	}
	if code, _ := p.say(request{method: "GET", path: one}); code != http.StatusNotFound {
		p.t.Fatalf("a GET after deletion is answered %d", code)
	}
}

// sameInAllMedia wants one object in JSON, YAML and protobuf, alone and in a list.
func (p *properties) sameInAllMedia(s subject, made map[string]any) {
	p.t.Helper()
	one := s.path() + "/" + s.name()
	plain := p.must(request{method: "GET", path: one}, http.StatusOK)
	// which says what its names became
	if d := cmp.Diff(content(made), content(plain)); d != "" && s.mapping.Resource.Resource != "customresourcedefinitions" {
		p.t.Errorf("read differs from created: %s", d)
	}
	code, text := p.say(request{method: "GET", path: one, headers: map[string]string{"Accept": "application/yaml"}})
	var inYAML map[string]any
	if err := yaml.Unmarshal([]byte(text), &inYAML); err != nil || code != http.StatusOK {
		p.t.Fatalf("read as YAML: %d %v", code, err)
	}
	if d := cmp.Diff(plain, inYAML); d != "" {
		p.t.Errorf("YAML differs from JSON: %s", d)
	}
	if d := cmp.Diff(typed(p, s, plain), p.protobuf(one)); d != "" {
		p.t.Errorf("protobuf differs from JSON: %s", d)
	}
	list := p.must(request{method: "GET", path: s.path() + "?fieldSelector=metadata.name%3D" + url.QueryEscape(s.name())}, http.StatusOK)
	items, _ := list["items"].([]any)
	if len(items) != 1 {
		p.t.Fatalf("a list has %d items", len(items))
	}
	alone := clonedJSON(plain)
	delete(alone, "kind")
	delete(alone, "apiVersion")
	if d := cmp.Diff(any(alone), items[0]); d != "" && s.mapping.Resource.Group != "apiextensions.k8s.io" {
		p.t.Errorf("listed differs from read: %s", d)
	}
}

// typed reads JSON into the kind's Go type, and gives that as JSON: protobuf does not tell null from absent.
func typed(p *properties, s subject, o map[string]any) map[string]any {
	p.t.Helper()
	obj, err := p.types.New(s.mapping.GroupVersionKind)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(clonedJSON(o), obj); err != nil {
		p.t.Fatal(err)
	}
	return withoutInnerKinds(clonedAs[map[string]any](p, obj))
}

func clonedAs[T any](p *properties, x any) T {
	p.t.Helper()
	data, err := json.Marshal(x)
	if err != nil {
		p.t.Fatal(err)
	}
	var out T
	if err := json.Unmarshal(data, &out); err != nil {
		p.t.Fatal(err)
	}
	return out
}

// withoutInnerKinds drops what protobuf has no place for: the kinds of a StatefulSet's claims.
func withoutInnerKinds(o map[string]any) map[string]any {
	spec, _ := o["spec"].(map[string]any)
	claims, _ := spec["volumeClaimTemplates"].([]any)
	for _, c := range claims {
		delete(c.(map[string]any), "kind")
		delete(c.(map[string]any), "apiVersion")
	}
	return o
}

// protobuf reads an object as protobuf.
func (p *properties) protobuf(path string) map[string]any {
	p.t.Helper()
	code, data := p.say(request{method: "GET", path: path, headers: map[string]string{"Accept": "application/vnd.kubernetes.protobuf"}})
	obj, _, err := protobuf.NewSerializer(p.types, p.types).Decode([]byte(data), nil, nil)
	if err != nil || code != http.StatusOK {
		p.t.Fatalf("read as protobuf: %d %v", code, err)
	}
	return withoutInnerKinds(clonedAs[map[string]any](p, obj))
}

// applyTwice wants the second of two equal applies to change nothing.
func (p *properties) applyTwice(s subject, r *rand.Rand) {
	p.t.Helper()
	config := clonedJSON(s.object)
	if r.IntN(2) == 0 { // only metadata, or all that the object says
		config = map[string]any{"apiVersion": config["apiVersion"], "kind": config["kind"], "metadata": map[string]any{"name": s.name()}}
	}
	delete(config, "stringData") // which no read shows
	m := config["metadata"].(map[string]any)
	maps.Copy(m, randomMeta(r))
	apply := request{method: "PATCH", path: s.path() + "/" + s.name() + "?force=true&fieldManager=applier",
		contentType: "application/apply-patch+yaml"}
	apply.body = body(config)
	first := p.must(apply, http.StatusOK)
	apply.body = body(config)
	second := p.must(apply, http.StatusOK)
	if d := cmp.Diff(first, second); d != "" {
		p.t.Errorf("a second apply changes: %s", d)
	}
}

// patches wants the difference of two objects, as a patch of each sort, to make the second from the first.
func (p *properties) patches(s subject, r *rand.Rand) {
	p.t.Helper()
	one := s.path() + "/" + s.name()
	before := p.must(request{method: "GET", path: one}, http.StatusOK)
	after := clonedJSON(before)
	m := after["metadata"].(map[string]any)
	maps.Copy(m, randomMeta(r))
	if s.update != nil && r.IntN(3) > 0 {
		merged, err := jsonpatch.MergePatch(marshalled(after), marshalled(s.update))
		if err != nil {
			p.t.Fatal(err)
		}
		after = nil
		if err := json.Unmarshal(merged, &after); err != nil {
			p.t.Fatal(err)
		}
	}
	// what the server makes of it is what patches must come to
	put := p.must(request{method: "PUT", path: one + "?dryRun=All", body: body(after)}, http.StatusOK)
	from, to := content(before), content(put)
	merge, err := jsonpatch.CreateMergePatch(marshalled(from), marshalled(to))
	if err != nil {
		p.t.Fatal(err)
	}
	var operations []map[string]any
	for _, k := range slices.Sorted(maps.Keys(to)) {
		if k != "metadata" {
			operations = append(operations, map[string]any{"op": "add", "path": "/" + k, "value": to[k]})
		}
	}
	for k := range from {
		if _, stays := to[k]; !stays {
			operations = append(operations, map[string]any{"op": "remove", "path": "/" + k})
		}
	}
	for k, x := range to["metadata"].(map[string]any) {
		operations = append(operations, map[string]any{"op": "add", "path": "/metadata/" + k, "value": x})
	}
	for k := range from["metadata"].(map[string]any) {
		if _, stays := to["metadata"].(map[string]any)[k]; !stays {
			operations = append(operations, map[string]any{"op": "remove", "path": "/metadata/" + k})
		}
	}
	kind, err := p.types.New(s.mapping.GroupVersionKind)
	if err != nil {
		p.t.Fatal(err)
	}
	strategic, err := strategicpatch.CreateTwoWayMergePatch(marshalled(from), marshalled(to), kind)
	if err != nil {
		p.t.Fatal(err)
	}
	for contentType, patch := range map[string][]byte{
		"application/merge-patch+json": merge, "application/json-patch+json": marshalled(operations),
		"application/strategic-merge-patch+json": strategic,
	} {
		got := p.must(request{method: "PATCH", path: one + "?dryRun=All", contentType: contentType, body: bytes.NewReader(patch)}, http.StatusOK)
		if d := cmp.Diff(to, content(got)); d != "" {
			p.t.Errorf("%s\n%s\nmakes: %s", contentType, patch, d)
		}
	}
}

func marshalled(x any) []byte {
	data, err := json.Marshal(x)
	if err != nil {
		panic(err)
	}
	return data
}

// TestPagesAndReplays wants pages of any size to be the whole list, and the events since any revision to lead from the list of
// then to that of now.
func TestPagesAndReplays(t *testing.T) {
	p := newProperties(t)
	r := rand.New(rand.NewPCG(11, 7))
	const path = "/api/v1/namespaces/transcript/configmaps"
	var revisions []string
	for range 150 {
		name := fmt.Sprintf("m%02d", r.IntN(60))
		m := map[string]any{"metadata": map[string]any{"name": name, "labels": map[string]any{"color": fmt.Sprint("c", r.IntN(3))}},
			"data": map[string]any{"x": randomText(r)}}
		switch r.IntN(4) {
		case 0:
			p.say(request{method: "DELETE", path: path + "/" + name})
		case 1:
			p.say(request{method: "PUT", path: path + "/" + name, body: body(m)})
		default:
			p.say(request{method: "POST", path: path, body: body(m)})
		}
		list := p.must(request{method: "GET", path: path + "?limit=1"}, http.StatusOK)
		revisions = append(revisions, list["metadata"].(map[string]any)["resourceVersion"].(string))
	}
	for range 30 {
		query := ""
		if r.IntN(2) == 0 {
			query = "&labelSelector=color%3Dc1"
		}
		if r.IntN(2) == 0 {
			query += "&resourceVersionMatch=Exact&resourceVersion=" + revisions[r.IntN(len(revisions))]
		}
		whole := p.must(request{method: "GET", path: path + "?" + query}, http.StatusOK)
		var items []any
		limit, token := 1+r.IntN(25), ""
		for {
			next := query
			if token != "" {
				next = "&continue=" + url.QueryEscape(token)
				if i := strings.Index(query, "&labelSelector"); i >= 0 {
					next += "&labelSelector=color%3Dc1"
				}
			}
			page := p.must(request{method: "GET", path: fmt.Sprintf("%s?limit=%d%s", path, limit, next)}, http.StatusOK)
			items = append(items, page["items"].([]any)...)
			if token, _ = page["metadata"].(map[string]any)["continue"].(string); token == "" {
				break
			}
		}
		if d := cmp.Diff(whole["items"], any(append([]any{}, items...))); d != "" {
			t.Errorf("pages of %d with %q: %s", limit, query, d)
		}
	}
	now := byName(p.must(request{method: "GET", path: path}, http.StatusOK))
	for range 4 {
		since := revisions[r.IntN(len(revisions))]
		state := byName(p.must(request{method: "GET", path: path + "?resourceVersionMatch=Exact&resourceVersion=" + since}, http.StatusOK))
		code, stream := p.say(request{method: "GET", path: path + "?watch=1&timeoutSeconds=1&resourceVersion=" + since})
		if code != http.StatusOK {
			t.Fatalf("watch: %d %s", code, stream)
		}
		events := json.NewDecoder(strings.NewReader(stream))
		for events.More() {
			var e metav1.WatchEvent
			if err := events.Decode(&e); err != nil {
				t.Fatal(err)
			}
			var o map[string]any
			if err := json.Unmarshal(e.Object.Raw, &o); err != nil {
				t.Fatal(err)
			}
			delete(o, "kind")
			delete(o, "apiVersion")
			name := o["metadata"].(map[string]any)["name"].(string)
			if state[name] = o; e.Type == "DELETED" {
				delete(state, name)
			}
		}
		if d := cmp.Diff(now, state); d != "" {
			t.Errorf("what happened since %s leads to: %s", since, d)
		}
	}
}

func byName(list map[string]any) map[string]any {
	out := map[string]any{}
	for _, item := range list["items"].([]any) {
		out[item.(map[string]any)["metadata"].(map[string]any)["name"].(string)] = item
	}
	return out
}
