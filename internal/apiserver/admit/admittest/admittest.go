// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package admittest runs an admission plug-in through the scenarios of its testdata directory. [Run] is the one entry point.
//
// A scenario file is testdata/NAME.yaml, a list of [Case]; testdata/NAME.golden has the plug-in's result for each: its
// verdict, its changes as a merge patch, its warnings and audit annotations. `go test -update` writes the golden files.
package admittest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/golden"
	"github.com/mortise-dev/mortise/resource"
)

// Case is one request.
type Case struct {
	Name        string           `json:"name"`
	Operation   string           `json:"operation"` // CREATE when empty
	Subresource string           `json:"subresource"`
	Namespace   string           `json:"namespace"` // the object's own when empty
	User        string           `json:"user"`      // alice when empty
	Stored      []map[string]any `json:"stored"`    // what the store holds
	Object      map[string]any   `json:"object"`
	Old         map[string]any   `json:"old"`
	Resource    string           `json:"resource"`   // group/plural; guessed from the object's kind when empty
	Unreadable  string           `json:"unreadable"` // plural of a resource whose reads fail
	DryRun      bool             `json:"dryRun"`
	// Phase is "mutate" to leave out validation, for a rejection that must come before other plug-ins see the object.
	// It is "validate" to leave out mutation, as if other plug-ins had changed the object afterwards.
	Phase string `json:"phase"`
}

// Run runs all scenario files of the calling test's package.
func Run(t *testing.T, plugin admit.Plugin) {
	t.Helper()
	if plugin.Name() == "" {
		t.Error("the plug-in has no name")
	}
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in testdata: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var cases []Case
		if err := yaml.UnmarshalStrict(data, &cases); err != nil {
			t.Fatalf("decode %s: %v", file, err)
		}
		var out strings.Builder
		for _, c := range cases {
			fmt.Fprintf(&out, "# %s\n%s\n", c.Name, run(t, plugin, c))
		}
		golden.Compare(t, strings.TrimSuffix(file, ".yaml")+".golden", out.String())
	}
}

func run(t *testing.T, plugin admit.Plugin, c Case) string {
	t.Helper()
	backend := &Backend{objects: map[string]resource.Object{}}
	for _, s := range c.Stored {
		obj, gr := decode(t, s)
		backend.Add(gr, obj)
	}
	if f, ok := plugin.(admit.Follower); ok {
		if err := f.Load(t.Context(), backend); err != nil {
			t.Fatal(err)
		}
	}
	a := &admit.Attributes{
		Operation: admit.Operation(c.Operation), Subresource: c.Subresource, Namespace: c.Namespace,
		User: &user.DefaultInfo{Name: cmp.Or(c.User, "alice")}, Version: "v1", DryRun: c.DryRun,
	}
	if a.Operation == "" {
		a.Operation = admit.Create
	}
	var gr schema.GroupResource
	var kind string
	for _, side := range []struct {
		in  map[string]any
		out *resource.Object
	}{{c.Old, &a.Old}, {c.Object, &a.Object}} {
		if side.in != nil {
			obj, r := decode(t, side.in)
			*side.out, gr, kind = obj, r, obj.GetObjectKind().GroupVersionKind().Kind
			a.Name = obj.GetName()
			if a.Namespace == "" {
				a.Namespace = obj.GetNamespace()
			}
		}
	}
	if c.Resource != "" {
		group, plural, _ := strings.Cut(c.Resource, "/")
		gr = schema.GroupResource{Group: group, Resource: plural}
	}
	a.Descriptor = &resource.Descriptor{Group: gr.Group, Resource: gr.Resource, Kind: kind, Namespaced: a.Namespace != ""}
	var warnings []string
	annotations := map[string]string{}
	a.Warn = func(w string) { warnings = append(warnings, w) }
	a.Annotate = func(k, v string) { annotations[k] = v }

	before := encode(t, a.Object)
	old := encode(t, a.Old)
	backend.unreadable = c.Unreadable
	var err error
	if c.Phase != "validate" {
		err = admit.Chain{plugin}.Mutate(t.Context(), backend, a)
	}
	if err == nil && c.Phase != "mutate" {
		err = admit.Chain{plugin}.Validate(t.Context(), backend, a)
	}
	if d := gocmp.Diff(string(old), string(encode(t, a.Old))); d != "" {
		t.Errorf("%s: the old object was changed: %s", c.Name, d)
	}
	var out strings.Builder
	out.WriteString(verdict(err))
	if err == nil {
		patch, perr := jsonpatch.CreateMergePatch(before, encode(t, a.Object))
		if perr != nil {
			t.Fatal(perr)
		}
		if string(patch) != "{}" {
			text, yerr := yaml.JSONToYAML(patch)
			if yerr != nil {
				t.Fatal(yerr)
			}
			out.Write(text)
		}
	}
	for _, c := range backend.created {
		fmt.Fprintf(&out, "created: %s\n", c)
	}
	for _, w := range warnings {
		fmt.Fprintf(&out, "warning: %s\n", w)
	}
	for _, k := range slices.Sorted(maps.Keys(annotations)) {
		fmt.Fprintf(&out, "annotation: %s = %s\n", k, annotations[k])
	}
	return out.String()
}

func verdict(err error) string {
	if err == nil {
		return "allowed\n"
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return fmt.Sprintf("error: %v\n", err)
	}
	s := status.Status()
	out := fmt.Sprintf("%d %s: %s\n", s.Code, s.Reason, s.Message)
	if s.Details != nil {
		for _, c := range s.Details.Causes {
			out += fmt.Sprintf("cause: %s %s: %s\n", c.Type, c.Field, c.Message)
		}
	}
	return out
}

func decode(t *testing.T, in map[string]any) (resource.Object, schema.GroupResource) {
	t.Helper()
	data, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	obj, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		t.Fatalf("decode %s: %v", data, err)
	}
	obj.GetObjectKind().SetGroupVersionKind(*gvk)
	plural, _ := meta.UnsafeGuessKindToResource(*gvk)
	o, ok := obj.(resource.Object)
	if !ok {
		t.Fatalf("%T has no metadata", obj)
	}
	return o, plural.GroupResource()
}

func encode(t *testing.T, obj runtime.Object) []byte {
	t.Helper()
	if obj == nil {
		return []byte("{}")
	}
	data, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// SignersHost returns a server whose users may do verb for the signer example.com/a, and for all signers of
// example.org.
func SignersHost(verb string) *admit.Host {
	return &admit.Host{Authorize: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetVerb() == verb && a.GetAPIGroup() == "certificates.k8s.io" && a.GetResource() == "signers" &&
			(a.GetName() == "example.com/a" || a.GetName() == "example.org/*") {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	}}
}

// Backend is a backend with a few objects. It supports reads and creates.
type Backend struct {
	resource.Backend // other methods panic

	objects    map[string]resource.Object
	created    []string
	unreadable string
}

// Add adds an object.
func (b *Backend) Add(r schema.GroupResource, obj resource.Object) {
	b.objects[key(r, obj.GetNamespace(), obj.GetName())] = obj
}

func key(r schema.GroupResource, namespace, name string) string {
	return r.String() + "|" + namespace + "|" + name
}

// Get returns the object of that name.
func (b *Backend) Get(_ context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error) {
	if r.Resource == b.unreadable {
		return nil, errors.New("disk full")
	}
	if obj, ok := b.objects[key(r, namespace, name)]; ok {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(r, name)
}

// Create adds an object and records the call.
func (b *Backend) Create(_ context.Context, r schema.GroupResource, obj resource.Object, _ bool) (resource.Object, error) {
	b.Add(r, obj)
	b.created = append(b.created, r.String()+" "+obj.GetName())
	return obj, nil
}

// List returns the objects of a namespace, sorted by name.
func (b *Backend) List(_ context.Context, r schema.GroupResource, namespace string) ([]resource.Object, error) {
	if r.Resource == b.unreadable {
		return nil, errors.New("disk full")
	}
	var out []resource.Object
	for _, k := range slices.Sorted(maps.Keys(b.objects)) {
		if strings.HasPrefix(k, r.String()+"|"+namespace) {
			out = append(out, b.objects[k])
		}
	}
	return out, nil
}
