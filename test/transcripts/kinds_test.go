// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package transcripts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// change is what the dialogue of a kind does beyond what all do.
type change struct {
	Update, Refused, Strategic, Status, Apply map[string]any
	Stays                                     bool // its finalizers keep it
	Completed                                 bool // the server writes to it once it is there
	Noisy                                     bool // kube-apiserver writes to it, at times of its own
	As                                        string
}

// subjects are the objects of kinds.yaml.
func subjects(t *testing.T) []map[string]any {
	t.Helper()
	data, err := os.ReadFile("kinds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]any
	for _, doc := range bytes.Split(data, []byte("\n---\n")) {
		var m map[string]any
		if err := yaml.UnmarshalStrict(doc, &m); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		out = append(out, m)
	}
	return out
}

func changes(t *testing.T) map[string]change {
	t.Helper()
	data, err := os.ReadFile("changes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]change
	if err := yaml.UnmarshalStrict(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// served is a resource, as discovery tells it.
type served struct {
	name         string
	namespaced   bool
	subresources []string
	kept         bool // can be created and read back
}

// resources are all that the server serves, by apiVersion and kind.
func (s *server) resources(t *testing.T) map[schema.GroupVersionKind]*served {
	t.Helper()
	read := func(path string, into any) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := s.client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if err := json.NewDecoder(response.Body).Decode(into); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	var groups metav1.APIGroupList
	read("/apis", &groups)
	paths := map[string]string{"v1": "/api/v1"}
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			paths[v.GroupVersion] = "/apis/" + v.GroupVersion
		}
	}
	out := map[schema.GroupVersionKind]*served{}
	for version, path := range paths {
		var list metav1.APIResourceList
		read(path, &list)
		byName := map[string]*served{}
		for _, r := range list.APIResources {
			if name, sub, isSub := strings.Cut(r.Name, "/"); isSub {
				byName[name].subresources = append(byName[name].subresources, sub)
				continue
			}
			one := &served{name: r.Name, namespaced: r.Namespaced, kept: slices.Contains(r.Verbs, "create") && slices.Contains(r.Verbs, "get")}
			byName[r.Name] = one
			out[schema.FromAPIVersionAndKind(version, r.Kind)] = one
		}
	}
	for _, r := range out {
		slices.Sort(r.subresources)
	}
	return out
}

// kindDialogue is what is said to each kind.
func kindDialogue(subject map[string]any, r *served, c change) []exchange {
	resourceName := r.name
	apiVersion := fmt.Sprint(subject["apiVersion"])
	collection := "/apis/" + apiVersion
	if apiVersion == "v1" {
		collection = "/api/v1"
	}
	if r.namespaced {
		collection += "/namespaces/transcript"
	}
	collection += "/" + resourceName
	name := field2(subject, "metadata", "name")
	one := collection + "/" + name
	meta := subject["metadata"].(map[string]any)
	meta["labels"] = map[string]any{"transcript": resourceName}

	var es []exchange
	add := func(title, method, path, contentType string, body any) *exchange {
		e := exchange{title: title, method: method, path: path}
		if contentType != "" {
			e.headers = append(e.headers, [2]string{"Content-Type", contentType})
		}
		switch b := body.(type) {
		case nil:
		case string:
			e.body = b
		default:
			e.body = strings.TrimRight(plain(b), "\n")
		}
		es = append(es, e)
		return &es[len(es)-1]
	}
	accept := func(e *exchange, media string) { e.headers = append(e.headers, [2]string{"Accept", media}) }
	config := func(label string) map[string]any {
		out := map[string]any{}
		for k, v := range c.Apply {
			out[k] = v
		}
		out["apiVersion"], out["kind"] = apiVersion, subject["kind"]
		m := map[string]any{"name": name, "labels": map[string]any{"applied": label}}
		if more, ok := c.Apply["metadata"].(map[string]any); ok {
			for k, v := range more {
				m[k] = v
			}
		}
		out["metadata"] = m
		return out
	}
	const merge, strategic, jsonPatch, apply = "application/merge-patch+json", "application/strategic-merge-patch+json",
		"application/json-patch+json", "application/apply-patch+yaml"
	selector := "labelSelector=transcript%3D" + resourceName
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	const partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	const protobuf = "application/vnd.kubernetes.protobuf"

	create := add("create", "POST", collection+"?fieldManager=author", "", subject)
	if c.As != "" {
		create.headers = append(create.headers, [2]string{"Impersonate-User", c.As}, [2]string{"Impersonate-Group", "system:masters"})
	}
	if c.Completed {
		w := add("what the server adds", "GET", collection+"?watch=1&resourceVersion={create.rv}&fieldSelector=metadata.name%3D"+name, "", nil)
		w.until, w.untilCount = "MODIFIED", 1
	}
	add("create again", "POST", collection, "", "as create, with\nmetadata: {resourceVersion: null}")
	add("create without a name", "POST", collection, "",
		map[string]any{"apiVersion": apiVersion, "kind": subject["kind"], "metadata": map[string]any{}})
	put := "as create, with\nmetadata: {annotations: {by: put}, resourceVersion: null}\n"
	if c.Update != nil {
		put += plain(c.Update)
		if m, ok := c.Update["metadata"].(map[string]any); ok {
			m["annotations"], m["resourceVersion"] = map[string]any{"by": "put"}, nil
			put = "as create, with\n" + plain(c.Update)
		}
	}
	add("update", "PUT", one+"?fieldManager=updater", "", put)
	add("merge patch", "PATCH", one+"?fieldManager=patcher", merge,
		map[string]any{"metadata": map[string]any{"labels": map[string]any{"merged": "yes"}, "annotations": map[string]any{"by": nil}}})
	if c.Refused != nil {
		add("refused change", "PATCH", one, merge, c.Refused)
	}
	add("JSON patch", "PATCH", one+"?fieldManager=patcher", jsonPatch,
		`[{"op": "test", "path": "/metadata/labels/merged", "value": "yes"}, {"op": "move", "from": "/metadata/labels/merged", "path": "/metadata/labels/moved"}]`)
	change := c.Strategic
	if change == nil {
		change = map[string]any{"metadata": map[string]any{"labels": map[string]any{"moved": nil}, "finalizers": []any{"example.com/hold"}}}
	}
	add("strategic merge patch", "PATCH", one+"?fieldManager=strategist", strategic, change)
	add("strategic merge patch that takes away", "PATCH", one+"?fieldManager=strategist", strategic,
		map[string]any{"metadata": map[string]any{"$deleteFromPrimitiveList/finalizers": []any{"example.com/hold", "example.com/a"}}})
	add("apply", "PATCH", one+"?fieldManager=applier", apply, config("one"))
	add("apply again", "PATCH", one+"?fieldManager=applier", apply, config("one"))
	add("apply by another", "PATCH", one+"?fieldManager=rival", apply, config("two"))
	add("apply by another, with force", "PATCH", one+"?fieldManager=rival&force=true", apply, config("two"))
	for _, sub := range r.subresources {
		switch sub {
		case "status":
			status := c.Status
			if status == nil {
				status = map[string]any{"metadata": map[string]any{"annotations": map[string]any{"by": "status"}}}
			}
			add("patch status", "PATCH", one+"/status?fieldManager=reporter", merge, status)
		case "scale":
			add("read scale", "GET", one+"/scale", "", nil)
			add("patch scale", "PATCH", one+"/scale?fieldManager=scaler", merge, map[string]any{"spec": map[string]any{"replicas": 5}})
		}
	}
	accept(add("read as protobuf", "GET", one, "", nil), protobuf)
	add("list", "GET", collection+"?"+selector, "", nil)
	accept(add("list as Table", "GET", collection+"?"+selector, "", nil), table)
	accept(add("list metadata", "GET", collection+"?"+selector, "", nil), partial)
	add("delete, as a trial", "DELETE", one+"?dryRun=All", "", nil)
	add("delete", "DELETE", one, "", `{"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "propagationPolicy": "Background", "preconditions": {"uid": "{create.uid}"}}`)
	add("read after", "GET", one, "", nil)
	w := add("watch what happened", "GET", collection+"?watch=1&resourceVersion={create.rv}&fieldSelector=metadata.name%3D"+name, "", nil)
	if c.Stays {
		w.path += "&timeoutSeconds=1"
	} else {
		w.until, w.untilCount = "DELETED", 1
	}
	return es
}

// clone copies JSON.
func clone(m map[string]any) map[string]any {
	data, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	return out
}
