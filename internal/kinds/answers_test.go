// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	genericvalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	sigsjson "sigs.k8s.io/json"

	"github.com/mortise-dev/mortise/internal/kinds/networking"
	"github.com/mortise-dev/mortise/resource"
)

// answer is one create that kube-apiserver 1.37.1 was asked for, and what it said.
type answer struct {
	ID, Path, Body, Message string
	Status                  int
	Object                  map[string]any
}

// TestAnswers creates each recorded object as the server does, up to the store, and compares errors to the letter, and
// objects with their defaults.
func TestAnswers(t *testing.T) {
	kinds := map[schema.GroupResource]*resource.Descriptor{}
	for _, d := range All(Options{}) {
		kinds[d.GroupResource()] = d
	}
	for _, a := range answers(t) {
		t.Run(a.ID, func(t *testing.T) {
			gvr, namespace := split(a.Path)
			d := kinds[gvr.GroupResource()]
			if d == nil {
				t.Skipf("%s is not a stored kind of this list", gvr.Resource)
			}
			if a.Status == 201 && admission[gvr.Resource] {
				t.Skip("admission changes these on their way in")
			}
			got, err := create(t, d, gvr.Version, namespace, a.Body, strings.HasPrefix(a.ID, "invalid/"))
			if a.Status == 422 {
				var status *apierrors.StatusError
				if !errors.As(err, &status) {
					t.Fatalf("want refusal %q, got %v", a.Message, err)
				}
				if diff := cmp.Diff(mask(a.Message), mask(status.ErrStatus.Message)); diff != "" {
					t.Errorf("message (-upstream +ours):\n%s", diff)
				}
				return
			}
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			if diff := cmp.Diff(mask(plain(t, a.Object)), mask(plain(t, got))); diff != "" {
				t.Errorf("object (-upstream +ours):\n%s", diff)
			}
		})
	}
}

// answers reads the recordings.
func answers(t *testing.T) []answer {
	t.Helper()
	f, err := os.Open("testdata/answers.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	var out []answer
	for lines.Scan() {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		out = append(out, a)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// admission are resources that built-in admission plug-ins complete: their objects are compared where those are tested.
var admission = map[string]bool{"nodes": true, "persistentvolumes": true, "pods": true, "volumeattributesclasses": true}

// create does what the server's create does before it stores. What is invalid on record was a dry run.
func create(t *testing.T, d *resource.Descriptor, version, namespace, body string, dryRun bool) (resource.Object, error) {
	t.Helper()
	ctx := context.Background()
	v := d.Version(version)
	obj := v.New()
	if err := sigsjson.UnmarshalCaseSensitivePreserveInts([]byte(body), obj); err != nil {
		t.Fatal(err)
	}
	v.Default(obj)
	if v.ToHub != nil {
		hub, err := v.ToHub(obj)
		if err != nil {
			t.Fatal(err)
		}
		obj = hub
	}
	if d.Namespaced {
		obj.SetNamespace(namespace)
	}
	if d.Create == nil {
		obj.SetUID(types.UID("00000000-0000-0000-0000-000000000001"))
		obj.SetCreationTimestamp(metav1.Unix(1700000000, 0))
	}
	if d.Create != nil {
		who := &user.DefaultInfo{Name: "admin", UID: "1", Groups: []string{user.SystemPrivilegedGroup}}
		out, err := d.Create(request.WithUser(ctx, who), nobody{}, obj, &metav1.CreateOptions{})
		if err == nil {
			out.GetObjectKind().SetGroupVersionKind(d.HubGroupVersionKind())
		}
		return out, err
	}
	if d.Strategy.Allocate != nil {
		done, err := d.Strategy.Allocate(ctx, nobody{}, obj, nil, dryRun)
		if err != nil {
			return nil, err
		}
		if done != nil {
			defer done(true)
		}
	}
	if d.Strategy.PrepareCreate != nil {
		d.Strategy.PrepareCreate(ctx, obj)
	}
	errs := d.Strategy.Validate(ctx, obj)
	if len(errs) == 0 {
		errs = genericvalidation.ValidateObjectMetaAccessor(obj, d.Namespaced, func(name string, prefix bool) []string {
			if prefix {
				return path.IsValidPathSegmentPrefix(name)
			}
			return path.IsValidPathSegmentName(name)
		}, field.NewPath("metadata"))
	}
	if len(errs) > 0 {
		return nil, apierrors.NewInvalid(d.HubGroupVersionKind().GroupKind(), obj.GetName(), errs)
	}
	if v.FromHub != nil {
		out, err := v.FromHub(obj)
		if err != nil {
			t.Fatal(err)
		}
		obj = out
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: d.Group, Version: version, Kind: d.Kind})
	return obj, nil
}

// split reads a collection's path.
func split(p string) (schema.GroupVersionResource, string) {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	var gvr schema.GroupVersionResource
	if parts[0] == "api" {
		gvr.Version, parts = parts[1], parts[2:]
	} else {
		gvr.Group, gvr.Version, parts = parts[1], parts[2], parts[3:]
	}
	namespace := ""
	if len(parts) > 2 && parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	gvr.Resource = parts[0]
	return gvr, namespace
}

var (
	times = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	tens  = regexp.MustCompile(`\b10\.\d+\.\d+\.\d+\b`)
	uids  = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
)

// mask hides what differs from run to run, as the recordings do.
func mask(s string) string {
	s = times.ReplaceAllString(s, "<time>")
	s = tens.ReplaceAllString(s, "<ip>")
	return uids.ReplaceAllString(s, "<uid>")
}

// masked are the keys whose values the recordings hide.
var masked = map[string]bool{
	"resourceVersion": true, "uid": true, "clusterIP": true, "clusterIPs": true, "nodePort": true, "username": true, "groups": true,
	"managedFields": true,
	"extra":         true,
}

// plain is an object as sorted, indented text without what differs from run to run.
func plain(t *testing.T, obj any) string {
	t.Helper()
	data, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	var strip func(v any)
	strip = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				if masked[key] {
					delete(v, key)
					continue
				}
				strip(value)
			}
		case []any:
			for _, value := range v {
				strip(value)
			}
		}
	}
	strip(v)
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// nobody is a backend with nothing in it.
type nobody struct{ resource.Backend }

func (nobody) List(context.Context, schema.GroupResource, string) ([]resource.Object, error) {
	return nil, nil
}

func (nobody) Create(ctx context.Context, r schema.GroupResource, obj resource.Object, _ bool) (resource.Object, error) {
	if errs := networking.IPAddress().Strategy.Validate(ctx, obj); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: r.Group, Kind: "IPAddress"}, obj.GetName(), errs)
	}
	return obj, nil
}

func (nobody) Delete(context.Context, schema.GroupResource, string, string, *metav1.DeleteOptions) error {
	return nil
}
