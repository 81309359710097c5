// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// listing is a backend of configurations without namespaces.
type listing struct {
	empty
	objects []resource.Object
	err     error
}

func (l *listing) List(context.Context, schema.GroupResource, string) ([]resource.Object, error) {
	return slices.Clone(l.objects), l.err
}

// configuration decodes a configuration in YAML.
func configuration(t *testing.T, name, initializers string) resource.Object {
	t.Helper()
	u := &unstructured.Unstructured{}
	text := "{apiVersion: extension.mortise.dev/v1alpha1, kind: InitializerConfiguration, metadata: {name: " + name + "}, " +
		"initializers: [" + initializers + "]}"
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	b, err := u.MarshalJSON() // numbers as the server decodes them
	if err == nil {
		err = u.UnmarshalJSON(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestConfigurationsAreFollowed checks that the initializers of all configurations apply, in the order of the
// configurations' names and of their lists; the first one of a name counts. A configuration that cannot be read does
// not affect the others.
func TestConfigurationsAreFollowed(t *testing.T) {
	const everything = `rules: [{apiGroups: ["*"], apiVersions: ["*"], resources: ["*"]}]`
	p, ledger := New(clock.RealClock{}), extension.NewLedger(clock.RealClock{})
	if err := p.Join(&admit.Host{Ledger: ledger}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]schema.GroupResource{{Group: "extension.mortise.dev", Resource: "initializerconfigurations"}}, p.Follows()); d != "" {
		t.Errorf("it follows %s", d)
	}
	l := &listing{}
	waits := func() string {
		t.Helper()
		a := creation("")
		if err := p.Mutate(t.Context(), l, a); err != nil {
			return err.Error()
		}
		i, err := v1alpha1.InitializersOf(a.Object)
		if err != nil || i == nil {
			return fmt.Sprint(err)
		}
		var out []string
		for _, one := range i.Pending {
			out = append(out, fmt.Sprintf("%s %d %s", one.Name, one.DeadlineSeconds, one.FailurePolicy))
		}
		return strings.Join(out, ", ")
	}
	listed := func() (out []string) {
		for _, e := range ledger.Snapshot() {
			out = append(out, e.Name+" "+e.Where)
		}
		return out
	}
	l.objects = []resource.Object{
		configuration(t, "z", `{name: z.example.com, `+everything+`}, {name: a.example.com, deadlineSeconds: 9, `+everything+`}`),
		configuration(t, "b", `{name: y.example.com, failurePolicy: Ignore, deadlineSeconds: 7, `+everything+`}, `+
			`{name: a.example.com, `+everything+`}, {name: n.example.com}`),
	}
	if err := p.Load(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got, want := waits(), "y.example.com 7 Ignore, a.example.com 30 Fail, z.example.com 30 Fail"; got != want {
		t.Errorf("it waits for %s, want %s", got, want)
	}
	want := []string{
		"a.example.com InitializerConfiguration/b", "n.example.com InitializerConfiguration/b", "y.example.com InitializerConfiguration/b",
		"z.example.com InitializerConfiguration/z",
	}
	if d := cmp.Diff(want, listed()); d != "" {
		t.Errorf("the ledger (-want +got):\n%s", d)
	}

	change := func(name string, obj resource.Object) error {
		return p.Apply(t.Context(), &feed.Change{Resource: configurations, Name: name, Object: obj})
	}
	if err := errors.Join(change("z", nil), change("c", configuration(t, "c", `{name: c.example.com, `+everything+`}`))); err != nil {
		t.Error(err)
	}
	if got, want := waits(), "y.example.com 7 Ignore, a.example.com 30 Fail, c.example.com 30 Fail"; got != want {
		t.Errorf("after changes it waits for %s, want %s", got, want)
	}
	if err := change("b", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}}); err == nil ||
		!strings.Contains(err.Error(), "read InitializerConfiguration: it is a *v1.ConfigMap") {
		t.Errorf("one that cannot be read: %v", err)
	}
	if got, want := waits(), "c.example.com 30 Fail"; got != want {
		t.Errorf("then it waits for %s, want %s", got, want)
	}

	l.objects = []resource.Object{
		configuration(t, "a", `{name: 7}`), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b"}},
		configuration(t, "c", `{name: c.example.com, `+everything+`}`),
	}
	err := p.Load(t.Context(), l)
	for _, want := range []string{"read InitializerConfiguration a: ", "read InitializerConfiguration: it is a *v1.ConfigMap"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with two that cannot be read: %v, want %s", err, want)
		}
	}
	if got, want := waits(), "c.example.com 30 Fail"; got != want {
		t.Errorf("it waits for %s, want %s", got, want)
	}
	l.err = errors.New("disk full")
	if err := p.Load(t.Context(), l); !errors.Is(err, l.err) {
		t.Errorf("none can be read: %v", err)
	}
	if got, want := waits(), "c.example.com 30 Fail"; got != want {
		t.Errorf("then it waits for %s, want %s", got, want)
	}

	selecting := `{name: a.example.com, namespaceSelector: {matchLabels: {env: prod}}, ` + everything + `}`
	l.err, l.objects = nil, []resource.Object{configuration(t, "a", selecting)}
	if err := p.Load(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if got := waits(); got != `namespaces "ns" not found` {
		t.Errorf("in a namespace that is not there: %s", got)
	}
	l.objects = nil
	if err := p.Load(t.Context(), l); err != nil || waits() != "<nil>" || len(listed()) > 0 {
		t.Errorf("none: %v, it waits for %s, the ledger has %v", err, waits(), listed())
	}
}

// TestUpdatesAreChecked checks that an update of a configuration is validated like a create.
func TestUpdatesAreChecked(t *testing.T) {
	kind, err := Kind()
	if err != nil {
		t.Fatal(err)
	}
	good, bad := configuration(t, "c", `{name: a.example.com}`), configuration(t, "c", `{name: short}`)
	for _, obj := range []resource.Object{good, bad} {
		kind.Hub().Default(obj)
		obj.SetResourceVersion("1")
	}
	if errs := kind.Strategy.ValidateUpdate(t.Context(), good, good); len(errs) > 0 {
		t.Error(errs)
	}
	if errs := kind.Strategy.ValidateUpdate(t.Context(), bad, good); len(errs) != 1 || errs[0].Field != "initializers[0].name" {
		t.Errorf("a short name: %v", errs)
	}
}

// TestColumns checks the columns of kubectl get.
func TestColumns(t *testing.T) {
	kind, err := Kind()
	if err != nil {
		t.Fatal(err)
	}
	obj := configuration(t, "c", `{name: a.example.com}, {name: b.example.com, deadlineSeconds: 5, failurePolicy: Ignore}`)
	kind.Hub().Default(obj)
	obj.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-time.Hour)))
	cells, err := kind.Hub().Columns.Cells(obj)
	if err != nil || len(cells) != len(kind.Hub().Columns.Definitions()) {
		t.Errorf("%v, %v", cells, err)
	}
	if want := "[c a.example.com,b.example.com 30s Fail,5s Ignore"; !strings.HasPrefix(fmt.Sprint(cells), want) {
		t.Errorf("%v, want %s", cells, want)
	}
	if cells, err := kind.Hub().Columns.Cells(configuration(t, "c", `{name: 7}`)); err == nil {
		t.Errorf("of what cannot be read: %v", cells)
	}
	if cells, err := (columns{unreadable{}}).Cells(obj); err == nil {
		t.Errorf("of what has no name and age: %v", cells)
	}
}

// unreadable are columns whose cells fail.
type unreadable struct{ resource.Columns }

func (unreadable) Cells(resource.Object) ([]any, error) { return nil, errors.New("disk full") }
