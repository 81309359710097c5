// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

const group = "admissionregistration.k8s.io"

func of(plural string) schema.GroupResource {
	return schema.GroupResource{Group: group, Resource: plural}
}

// kind returns a kind of the group. Its validation rejects the names that files must have, as the API does.
func kind(plural, name string, fill func(resource.Object), check func(resource.Object, *field.Path) field.ErrorList) *resource.Descriptor {
	d := &resource.Descriptor{
		Group: group, Resource: plural, Kind: name, ListKind: name + "List",
		Storage: "v1", Versions: []resource.Version{{Name: "v1", Default: fill}},
	}
	if check == nil {
		return d
	}
	d.Strategy.Validate = func(_ context.Context, obj resource.Object) field.ErrorList {
		at := field.NewPath("metadata", "name")
		if strings.HasSuffix(obj.GetName(), ".static.k8s.io") {
			return field.ErrorList{field.Invalid(at, obj.GetName(), "reserved")}
		}
		return check(obj, field.NewPath("spec"))
	}
	return d
}

// host returns a server with the four kinds of policies and bindings, and configurations of validating webhooks.
func host() *admit.Host {
	ignore := admissionregistrationv1.Ignore
	all := []*resource.Descriptor{
		kind("validatingwebhookconfigurations", "ValidatingWebhookConfiguration", func(obj resource.Object) {
			for i := range obj.(*admissionregistrationv1.ValidatingWebhookConfiguration).Webhooks {
				if h := &obj.(*admissionregistrationv1.ValidatingWebhookConfiguration).Webhooks[i]; h.FailurePolicy == nil {
					h.FailurePolicy = &ignore
				}
			}
		}, func(obj resource.Object, _ *field.Path) field.ErrorList {
			if len(obj.(*admissionregistrationv1.ValidatingWebhookConfiguration).Webhooks) == 0 {
				return field.ErrorList{field.Required(field.NewPath("webhooks"), "")}
			}
			return nil
		}),
		kind("validatingadmissionpolicies", "ValidatingAdmissionPolicy", func(obj resource.Object) {
			obj.(*admissionregistrationv1.ValidatingAdmissionPolicy).Spec.FailurePolicy = &ignore
		}, func(obj resource.Object, spec *field.Path) field.ErrorList {
			if len(obj.(*admissionregistrationv1.ValidatingAdmissionPolicy).Spec.Validations) == 0 {
				return field.ErrorList{field.Required(spec.Child("validations"), "")}
			}
			return nil
		}),
		kind("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", nil,
			func(obj resource.Object, spec *field.Path) field.ErrorList {
				if len(obj.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding).Spec.ValidationActions) == 0 {
					return field.ErrorList{field.Required(spec.Child("validationActions"), "")}
				}
				return nil
			}),
		kind("mutatingadmissionpolicies", "MutatingAdmissionPolicy", nil, nil),
		kind("mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", nil, nil),
	}
	return &admit.Host{Kind: func(r schema.GroupResource) *resource.Descriptor {
		if i := slices.IndexFunc(all, func(d *resource.Descriptor) bool { return d.GroupResource() == r }); i >= 0 {
			return all[i]
		}
		return nil
	}}
}

// files writes documents to a new directory: a.yaml, b.yaml and so on.
func files(t *testing.T, documents ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, text := range documents {
		if err := os.WriteFile(filepath.Join(dir, string(rune('a'+i))+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// said returns an error's text without the directory; empty: none.
func said(err error, dir string) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), dir, "DIR")
}

func names(objs []resource.Object) string {
	var out []string
	for _, obj := range objs {
		out = append(out, obj.GetName())
	}
	return strings.Join(out, " ")
}

const head = `{"apiVersion": "admissionregistration.k8s.io/v1", "kind": `

func configuration(name string) string {
	return head + `"ValidatingWebhookConfiguration", "metadata": {"name": "` + name + `"},
		"webhooks": [{"name": "w.example.com", "clientConfig": {"url": "https://example.com"}}]}`
}

// TestWebhooks reads single configurations and lists, applies defaults, sorts them, and rejects what the API rejects.
func TestWebhooks(t *testing.T) {
	const empty = head + `"ValidatingWebhookConfiguration", "metadata": {"name": "e.static.k8s.io"}}`
	const a, b = "a.static.k8s.io", "b.static.k8s.io"
	list := func(items ...string) string {
		return head + `"ValidatingWebhookConfigurationList", "items": [` + strings.Join(items, ", ") + `]}`
	}
	for _, c := range []struct {
		name      string
		resource  string // validatingwebhookconfigurations when empty
		documents []string
		want, err string
	}{
		{name: "none"},
		{name: "sorted", documents: []string{configuration(b), configuration(a)}, want: a + " " + b},
		{name: "a list", documents: []string{list(configuration(b), configuration(a))}, want: a + " " + b},
		{
			name:      "a list of anything",
			documents: []string{`{"apiVersion": "v1", "kind": "List", "items": [` + configuration(a) + `]}`}, want: a,
		},
		{
			name: "a name that the API takes", documents: []string{configuration("a")},
			err: `error loading DIR/a.yaml: "a" in file "DIR/a.yaml" must have a name ending with ".static.k8s.io"`,
		},
		{name: "invalid", documents: []string{empty}, err: "error loading DIR/a.yaml: webhooks: Required value"},
		{
			name: "invalid in a list", documents: []string{list(configuration(a), empty)},
			err: "error loading DIR/a.yaml: webhooks: Required value",
		},
		{
			name: "another kind", documents: []string{head + `"MutatingWebhookConfiguration", "metadata": {"name": "a.static.k8s.io"}}`},
			err: "error loading DIR/a.yaml: unsupported resource type *v1.MutatingWebhookConfiguration",
		},
		{
			name:      "an unknown field",
			documents: []string{head + `"ValidatingWebhookConfiguration", "metadata": {"name": "a.static.k8s.io"}, "hooks": []}`},
			err:       `error loading DIR/a.yaml: strict decoding error: unknown field "hooks"`,
		},
		{
			name: "not served", resource: "mutatingwebhookconfigurations",
			err: "read DIR: mutatingwebhookconfigurations.admissionregistration.k8s.io is not served",
		},
	} {
		dir := files(t, c.documents...)
		plural := c.resource
		if plural == "" {
			plural = "validatingwebhookconfigurations"
		}
		got, _, err := Webhooks(host(), of(plural), dir)
		if names(got) != c.want || said(err, dir) != c.err {
			t.Errorf("%s: got %q, %q, want %q, %q", c.name, names(got), said(err, dir), c.want, c.err)
		}
		for _, obj := range got {
			if p := obj.(*admissionregistrationv1.ValidatingWebhookConfiguration).Webhooks[0].FailurePolicy; p == nil ||
				*p != admissionregistrationv1.Ignore {
				t.Errorf("%s: %s: the failure policy was not filled in", c.name, obj.GetName())
			}
		}
	}
}

// TestHash checks that the hash changes only with the contents of the files.
func TestHash(t *testing.T) {
	hash := func(documents ...string) string {
		_, h, err := Webhooks(host(), of("validatingwebhookconfigurations"), files(t, documents...))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	one := hash(configuration("a.static.k8s.io"))
	if again := hash(configuration("a.static.k8s.io")); one == "" || again != one {
		t.Errorf("the same files: %q and %q", one, again)
	}
	if other := hash(configuration("b.static.k8s.io")); other == one {
		t.Errorf("other files: %q for both", one)
	}
}

// TestPolicies reads policies and bindings, which must refer to each other.
func TestPolicies(t *testing.T) {
	policy := func(kind, name string) string {
		spec := ""
		if kind == "Validating" {
			spec = `"validations": [{"expression": "true"}]`
		}
		return head + `"` + kind + `AdmissionPolicy", "metadata": {"name": "` + name + `"}, "spec": {` + spec + `}}`
	}
	binding := func(kind, name, of string) string {
		spec := `"policyName": "` + of + `"`
		if kind == "Validating" {
			spec += `, "validationActions": ["Deny"]`
		}
		return head + `"` + kind + `AdmissionPolicyBinding", "metadata": {"name": "` + name + `"}, "spec": {` + spec + `}}`
	}
	const p, b, validating, mutating = "p.static.k8s.io", "b.static.k8s.io", "Validating", "Mutating"
	const nowhere = `binding "b.static.k8s.io" references policy "p.static.k8s.io" which does not exist in the manifest directory`
	for _, c := range []struct {
		name               string
		prefix             string // of the kinds' names
		documents          []string
		policies, bindings string
		err                string
	}{
		{name: "none", prefix: validating},
		{
			name: "validating", prefix: validating,
			documents: []string{binding(validating, b, p), policy(validating, p), policy(validating, "a.static.k8s.io")},
			policies:  "a.static.k8s.io p.static.k8s.io", bindings: b,
		},
		{name: "mutating", prefix: mutating, documents: []string{policy(mutating, p), binding(mutating, b, p)}, policies: p, bindings: b},
		{name: "in lists", prefix: validating, documents: []string{
			head + `"ValidatingAdmissionPolicyList", "items": [` + policy(validating, p) + `]}`,
			head + `"ValidatingAdmissionPolicyBindingList", "items": [` + binding(validating, b, p) + `]}`,
		}, policies: p, bindings: b},
		{name: "a binding of a policy that is not there", prefix: validating, documents: []string{binding(validating, b, p)}, err: nowhere},
		{name: "a mutating one", prefix: mutating, documents: []string{binding(mutating, b, p)}, err: nowhere},
		{name: "an invalid policy", prefix: validating, documents: []string{
			head + `"ValidatingAdmissionPolicy", "metadata": {"name": "p.static.k8s.io"}}`,
		}, err: "error loading DIR/a.yaml: spec.validations: Required value"},
		{name: "an invalid binding", prefix: validating, documents: []string{
			policy(validating, p),
			head + `"ValidatingAdmissionPolicyBinding", "metadata": {"name": "b.static.k8s.io"}, "spec": {"policyName": "p.static.k8s.io"}}`,
		}, err: "error loading DIR/b.yaml: spec.validationActions: Required value"},
		{
			name: "the other plug-in's", prefix: mutating, documents: []string{policy(validating, p)},
			err: "error loading DIR/a.yaml: unsupported resource type *v1.ValidatingAdmissionPolicy",
		},
		{
			name: "a webhook", prefix: validating, documents: []string{configuration("a.static.k8s.io")},
			err: "error loading DIR/a.yaml: unsupported resource type *v1.ValidatingWebhookConfiguration",
		},
	} {
		dir := files(t, c.documents...)
		plural := strings.ToLower(c.prefix) + "admissionpolic"
		ps, bs, hash, err := Policies(host(), of(plural+"ies"), of(plural+"ybindings"), dir)
		if names(ps) != c.policies || names(bs) != c.bindings || said(err, dir) != c.err {
			t.Errorf("%s: got %q, %q, %q, want %q, %q, %q", c.name, names(ps), names(bs), said(err, dir), c.policies, c.bindings, c.err)
		}
		if (hash != "") != (len(ps) > 0) {
			t.Errorf("%s: the hash is %q", c.name, hash)
		}
		for _, obj := range ps {
			v, ok := obj.(*admissionregistrationv1.ValidatingAdmissionPolicy)
			if ok && (v.Spec.FailurePolicy == nil || *v.Spec.FailurePolicy != admissionregistrationv1.Ignore) {
				t.Errorf("%s: %s: the failure policy was not filled in", c.name, obj.GetName())
			}
		}
	}
	for _, r := range [][2]string{{"nothings", "mutatingadmissionpolicybindings"}, {"mutatingadmissionpolicies", "nothings"}} {
		dir := files(t)
		_, _, _, err := Policies(host(), of(r[0]), of(r[1]), dir)
		if got, want := said(err, dir), "read DIR: "+r[0]+".admissionregistration.k8s.io is not served"; got != want {
			t.Errorf("%v: got %q, want %q", r, got, want)
		}
	}
}

// lines passes the written lines on.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		l <- string(line)
	}
	return len(b), nil
}

// TestFollow checks that the directory is read immediately and after each change, and that only new and invalid
// contents are logged.
func TestFollow(t *testing.T) {
	dir := files(t, "first")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	logged, loads, ended := make(lines, 100), make(chan string, 100), make(chan struct{})
	var want []string // the logged loads
	last := "first"
	go func() {
		defer close(ended)
		Follow(ctx, slog.New(slog.NewJSONHandler(logged, nil)), dir, func() (bool, error) {
			text, err := os.ReadFile(filepath.Join(dir, "a.yaml"))
			defer func() { loads <- string(text) }()
			if err != nil || string(text) == "bad" {
				err = errors.Join(err, errors.New("bad file"))
				want = append(want, fmt.Sprint("ERROR Could not reload admission manifests, keeping the previous ones ", dir, " ", err))
				return false, err
			}
			if string(text) == last {
				return false, nil
			}
			last = string(text)
			want = append(want, "INFO Reloaded admission manifests "+dir+" <nil>")
			return true, nil
		})
	}()
	await := func(text string) {
		t.Helper()
		for {
			select {
			case got := <-loads:
				if got == text {
					return
				}
			case <-ended:
				t.Fatal("it ended early")
			}
		}
	}
	await("first")
	for _, text := range []string{"second", "bad", "third"} {
		if err := os.WriteFile(filepath.Join(dir, "new"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "a.yaml")); err != nil {
			t.Fatal(err)
		}
		await(text)
	}
	cancel()
	<-ended
	close(logged)
	var got []string
	for line := range logged {
		var v struct {
			Level, Msg, Dir string
			Error           any
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(v.Level, " ", v.Msg, " ", v.Dir, " ", v.Error))
	}
	if !slices.Equal(got, want) || len(want) < 3 {
		t.Errorf("logged:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
