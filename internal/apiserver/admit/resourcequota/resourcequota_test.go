// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// backend stores quotas with versions. It calls meddle before each write.
type backend struct {
	resource.Backend // other methods panic

	mu      sync.Mutex
	version int
	quotas  map[string]*corev1.ResourceQuota
	writes  int
	blind   error // the error of all reads
	others  map[schema.GroupResource][]resource.Object
	meddle  func()
	broken  error
	plugin  admit.Follower
	syncs   int  // how often the plug-in waited for the index
	behind  bool // the index is only updated when the plug-in waits for it
}

// tell makes the plug-in apply the change of a quota to its current state.
func (b *backend) tell(ctx context.Context, name string) error {
	b.mu.Lock()
	c := &feed.Change{Resource: quotas, Namespace: "team", Name: name}
	if q := b.quotas[name]; q != nil {
		c.Object = q
	}
	behind := b.behind
	b.mu.Unlock()
	if behind {
		return nil
	}
	return b.plugin.Apply(ctx, c)
}

// synced makes the plug-in apply everything that is stored.
func (b *backend) synced(ctx context.Context, _ schema.GroupResource) {
	b.mu.Lock()
	b.syncs++
	b.mu.Unlock()
	if err := b.plugin.Load(ctx, b); err != nil {
		panic(err)
	}
}

func (b *backend) Get(_ context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.blind != nil {
		return nil, b.blind
	}
	for _, obj := range b.others[r] {
		if obj.GetNamespace() == namespace && obj.GetName() == name {
			return obj, nil
		}
	}
	if q := b.quotas[name]; q != nil && r == quotas && q.Namespace == namespace {
		return q, nil
	}
	return nil, apierrors.NewNotFound(r, name)
}

func (b *backend) List(_ context.Context, r schema.GroupResource, _ string) ([]resource.Object, error) {
	if b.blind != nil {
		return nil, b.blind
	}
	out := slices.Clone(b.others[r])
	if r == quotas {
		for _, q := range b.quotas {
			out = append(out, q)
		}
	}
	return out, nil
}

func (b *backend) Update(ctx context.Context, r schema.GroupResource, namespace, name string, _ bool,
	change func(resource.Object) error) (resource.Object, error) {
	if b.meddle != nil {
		b.meddle()
	}
	if b.broken != nil {
		return nil, b.broken
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	q := b.quotas[name]
	if q == nil {
		b.mu.Unlock()
		return nil, apierrors.NewNotFound(r, name)
	}
	now := q.DeepCopy()
	err := change(now)
	if err == nil {
		b.version++
		b.writes++
		now.ResourceVersion = strconv.Itoa(b.version)
		b.quotas[name] = now
	}
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return now, b.tell(ctx, name)
}

// write changes a quota without notifying the plug-in, as another server or a controller would.
func (b *backend) write(t *testing.T, name string, change func(*corev1.ResourceQuota)) {
	t.Helper()
	meddle := b.meddle
	b.meddle = nil
	defer func() { b.meddle = meddle }()
	if _, err := b.Update(t.Context(), quotas, "team", name, false,
		func(o resource.Object) error { change(o.(*corev1.ResourceQuota)); return nil }); err != nil {
		t.Fatal(err)
	}
}

func amounts(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = quantity.MustParse(pairs[i+1])
	}
	return out
}

func newQuota(name string, hard, used corev1.ResourceList) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "0"},
		Spec:       corev1.ResourceQuotaSpec{Hard: hard}, Status: corev1.ResourceQuotaStatus{Hard: hard, Used: used},
	}
}

func setup(t testing.TB, config string, qs ...*corev1.ResourceQuota) (*plugin, *backend) {
	t.Helper()
	o := Options{}
	if config != "" {
		o.Config = strings.NewReader(config)
	}
	made, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	p := made.(*plugin)
	b := &backend{quotas: map[string]*corev1.ResourceQuota{}, plugin: p}
	for _, q := range qs {
		b.quotas[q.Name] = q
	}
	if err := errors.Join(p.Join(&admit.Host{Synced: b.synced}), p.Load(t.Context(), b)); err != nil {
		t.Fatal(err)
	}
	return p, b
}

func request(group, plural string, obj resource.Object) *admit.Attributes {
	return &admit.Attributes{
		Operation: admit.Create, Namespace: "team", Name: obj.GetName(), Object: obj, Version: "v1",
		Descriptor: &resource.Descriptor{Group: group, Resource: plural, Namespaced: true},
	}
}

func configMap(name string) *admit.Attributes {
	return request("", "configmaps", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}})
}

func (b *backend) used(name, what string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.quotas[name].Status.Used[corev1.ResourceName(what)]
	return q.Value()
}

// TestGivenBack checks that a charge is released once if its write certainly failed. A charge with an unknown outcome,
// or one that a recount may have included, is not released.
func TestGivenBack(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    error
		meddle func(*testing.T, *backend)
		want   int64
	}{
		{"committed", nil, nil, 1},
		{"a later plug-in refused", apierrors.NewForbidden(quotas, "m", errors.New("no")), nil, 0},
		{"the name was taken", apierrors.NewAlreadyExists(quotas, "m"), nil, 0},
		{"a conflict", fmt.Errorf("update: %w", &store.ConflictError{}), nil, 0},
		{"the client left before", fmt.Errorf("wait for a commit: %w", context.Canceled), nil, 0},
		{"the request's time was over before", context.DeadlineExceeded, nil, 0},
		{"nobody knows", errors.New("write log: disk full"), nil, 1},
		{"a timeout", apierrors.NewTimeoutError("slow", 1), nil, 1},
		{"somebody counted", apierrors.NewAlreadyExists(quotas, "m"), func(t *testing.T, b *backend) {
			b.write(t, "q", func(q *corev1.ResourceQuota) { q.Status.Used = amounts("count/configmaps", "4") })
		}, 4},
		{"somebody labelled the quota", apierrors.NewAlreadyExists(quotas, "m"), func(t *testing.T, b *backend) {
			b.write(t, "q", func(q *corev1.ResourceQuota) { q.Labels = map[string]string{"a": "b"} })
		}, 0},
		{"the quota is gone", apierrors.NewAlreadyExists(quotas, "m"), func(t *testing.T, b *backend) {
			was := b.quotas["q"]
			delete(b.quotas, "q")
			if err := b.tell(t.Context(), "q"); err != nil {
				t.Fatal(err)
			}
			b.quotas["q"] = was
			b.quotas["q"].UID = "another"
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, b := setup(t, "", newQuota("q", amounts("count/configmaps", "9"), amounts("count/configmaps", "0")))
			a := configMap("m")
			if err := p.Validate(t.Context(), b, a); err != nil {
				t.Fatal(err)
			}
			if n := b.used("q", "count/configmaps"); n != 1 {
				t.Fatalf("charged %d", n)
			}
			if c.meddle != nil {
				c.meddle(t, b)
			}
			a.End(c.end)
			a.End(c.end)
			if n := b.used("q", "count/configmaps"); n != c.want {
				t.Errorf("used %d, want %d", n, c.want)
			}
		})
	}
}

// TestBatch checks that requests that arrive while a quota is being written are charged together, in one write.
func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, b := setup(t, "", newQuota("q", amounts("configmaps", "40"), amounts("configmaps", "0")))
		first, release := make(chan struct{}), make(chan struct{})
		b.meddle = sync.OnceFunc(func() { close(first); <-release })
		var wg sync.WaitGroup
		var refused int
		var mu sync.Mutex
		try := func(i int) {
			if err := p.Validate(t.Context(), b, configMap(fmt.Sprint(i))); err != nil {
				mu.Lock()
				refused++
				mu.Unlock()
			}
		}
		wg.Go(func() { try(0) })
		<-first
		for i := range 50 {
			wg.Go(func() { try(i + 1) })
		}
		synctest.Wait()
		close(release)
		wg.Wait()
		if n := b.used("q", "configmaps"); n != 40 || refused != 11 || b.writes != 2 {
			t.Errorf("used %d, refused %d, %d writes; want 40, 11, 2", n, refused, b.writes)
		}
	})
}

// TestOthersWrite checks that a quota that another writer changes meanwhile is checked again, and that the charge to
// another quota is released if the request is then rejected.
func TestOthersWrite(t *testing.T) {
	p, b := setup(t, "", newQuota("a", amounts("configmaps", "5"), amounts("configmaps", "0")),
		newQuota("b", amounts("count/configmaps", "5"), amounts("count/configmaps", "0")))
	n := 0
	b.meddle = func() {
		if n++; n == 2 { // a is written
			b.write(t, "b", func(q *corev1.ResourceQuota) { q.Status.Used = amounts("count/configmaps", "5") })
		}
	}
	err := p.Validate(t.Context(), b, configMap("m"))
	want := `configmaps "m" is forbidden: exceeded quota: b, requested: count/configmaps=1, used: count/configmaps=5, limited: count/configmaps=5`
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if one, other := b.used("a", "configmaps"), b.used("b", "count/configmaps"); one != 0 || other != 5 {
		t.Errorf("used %d and %d, want 0 and 5", one, other)
	}
	b.meddle, b.broken = nil, errors.New("disk full")
	b.quotas["b"].Status.Used = amounts("count/configmaps", "0")
	if err := p.Load(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(t.Context(), b, configMap("m")); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("a charge that could not be written: %v", err)
	}
}

func status(q *corev1.ResourceQuota, dryRun bool) *admit.Attributes {
	a := request("", "resourcequotas", q)
	a.Operation, a.Subresource, a.Old, a.DryRun = admit.Update, "status", q, dryRun
	return a
}

// TestCountWaits checks that a write of a quota's status waits only for writes that were charged and have not ended.
func TestCountWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuota("q", amounts("configmaps", "9"), amounts("configmaps", "0"))
		p, b := setup(t, "", q)
		a, later := configMap("a"), configMap("b")
		if err := p.Validate(t.Context(), b, a); err != nil {
			t.Fatal(err)
		}
		counted := make(chan error, 1)
		go func() { counted <- p.Validate(t.Context(), b, status(q, true)) }()
		synctest.Wait()
		began := time.Now()
		if err := p.Validate(t.Context(), b, later); err != nil { // the quota is in force: no write waits for the count
			t.Fatal(err)
		}
		select {
		case <-counted:
			t.Fatal("did not wait")
		default:
		}
		a.End(nil)
		if err := <-counted; err != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("waited %s", waited)
		}
		later.End(nil)
		if n := len(p.space("team").underway); n != 0 {
			t.Errorf("%d writes are under way after all have ended", n)
		}
	})
}

// TestFirstCount checks that writes wait a limited time for the first count of a quota whose limits are not in force.
func TestFirstCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuota("q", amounts("configmaps", "1"), nil)
		q.Status = corev1.ResourceQuotaStatus{}
		p, b := setup(t, "", q)
		if err := p.Validate(t.Context(), b, status(q, true)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		began := time.Now()
		go func() { done <- p.Validate(t.Context(), b, configMap("a")) }()
		if err := p.Validate(t.Context(), b, podCreation("p", "1")); err != nil { // the quota does not limit pods
			t.Error(err)
		}
		b.write(t, "q", func(q *corev1.ResourceQuota) { q.Labels = map[string]string{"a": "b"} })
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("did not wait")
		default:
		}
		b.write(t, "q", func(q *corev1.ResourceQuota) {
			q.Status = corev1.ResourceQuotaStatus{Hard: amounts("configmaps", "1"), Used: amounts("configmaps", "1")}
		})
		if err := <-done; !apierrors.IsForbidden(err) {
			t.Errorf("let in after the count: %v", err)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("waited %s", waited)
		}

		b.write(t, "q", func(q *corev1.ResourceQuota) { q.Status = corev1.ResourceQuotaStatus{} })
		if err := p.Validate(t.Context(), b, status(b.quotas["q"], true)); err != nil {
			t.Fatal(err)
		}
		began = time.Now()
		if err := p.Validate(t.Context(), b, configMap("a")); err != nil { // the counter is gone
			t.Error(err)
		}
		if waited := time.Since(began); waited != shutFor {
			t.Errorf("waited %s", waited)
		}
	})
}

// TestGivesUp checks that a request that ends while it waits for its check is not charged.
func TestGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, b := setup(t, "", newQuota("q", amounts("configmaps", "9"), amounts("configmaps", "0")))
		first, release := make(chan struct{}), make(chan struct{})
		b.meddle = sync.OnceFunc(func() { close(first); <-release })
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := p.Validate(t.Context(), b, configMap("a")); err != nil {
				t.Error(err)
			}
		})
		<-first
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Validate(ctx, b, configMap("b")); !apierrors.IsInternalError(err) {
			t.Errorf("gave up with %v", err)
		}
		close(release)
		wg.Wait()
		if n := b.used("q", "configmaps"); n != 1 {
			t.Errorf("used %d, want 1", n)
		}
	})
}

const limitedConfig = `
apiVersion: apiserver.config.k8s.io/v1
kind: ResourceQuotaConfiguration
limitedResources:
- resource: persistentvolumeclaims
  matchContains: [".storageclass.storage.k8s.io/requests.storage"]
- resource: pods
  matchScopes: [{scopeName: PriorityClass, operator: In, values: [vital]}]
`

// TestLimited covers resources that may not be used without a quota that covers them.
func TestLimited(t *testing.T) {
	claim := func(class string) *admit.Attributes {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c"}}
		c.Spec.Resources.Requests = amounts("storage", "1Gi")
		if class != "" {
			c.Spec.StorageClassName = &class
		}
		return request("", "persistentvolumeclaims", c)
	}
	pod := func(class string) *admit.Attributes {
		return request("", "pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"},
			Spec: corev1.PodSpec{PriorityClassName: class}})
	}
	vital := newQuota("vital", amounts("pods", "1"), amounts("pods", "0"))
	vital.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{ScopeName: "PriorityClass",
		Operator: "In", Values: []string{"vital"}}}}
	gold := newQuota("gold", amounts("gold.storageclass.storage.k8s.io/requests.storage", "1Gi"),
		amounts("gold.storageclass.storage.k8s.io/requests.storage", "0"))
	for _, c := range []struct {
		name   string
		quotas []*corev1.ResourceQuota
		a      *admit.Attributes
		want   string
	}{
		{"a claim of no class", nil, claim(""), ""},
		{"a claim of a class, no quota", nil, claim("gold"),
			`persistentvolumeclaims "c" is forbidden: insufficient quota to consume: gold.storageclass.storage.k8s.io/requests.storage`},
		{"a claim that is covered", []*corev1.ResourceQuota{gold}, claim("gold"), ""},
		{"a claim of another class", []*corev1.ResourceQuota{gold}, claim("tin"),
			`persistentvolumeclaims "c" is forbidden: insufficient quota to consume: tin.storageclass.storage.k8s.io/requests.storage`},
		{"a pod of no class", nil, pod(""), ""},
		{"a vital pod, no quota", nil, pod("vital"), `insufficient quota to match these scopes: [{PriorityClass In [vital]}]`},
		{"a vital pod that is covered", []*corev1.ResourceQuota{vital}, pod("vital"), ""},
		{"a config map", nil, configMap("m"), ""},
	} {
		var qs []*corev1.ResourceQuota
		for _, q := range c.quotas {
			qs = append(qs, q.DeepCopy())
		}
		p, b := setup(t, limitedConfig, qs...)
		got := ""
		if err := p.Validate(t.Context(), b, c.a); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestConfig covers valid and invalid configurations.
func TestConfig(t *testing.T) {
	v1, beta := "apiVersion: apiserver.config.k8s.io/v1\nkind: ResourceQuotaConfiguration\n",
		"apiVersion: resourcequota.admission.k8s.io/v1beta1\nkind: Configuration\n"
	if _, err := New(Options{Config: iotest.ErrReader(errors.New("disk full"))}); err == nil ||
		err.Error() != "read configuration: disk full" {
		t.Errorf("a configuration that cannot be read: %v", err)
	}
	for config, want := range map[string]string{
		v1: "", beta: "", strings.Replace(beta, "v1beta1", "v1alpha1", 1): "", v1 + "limitedResources: [{resource: pods}]": "",
		`{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "ResourceQuotaConfiguration"}`: "",
		v1 + "limitedResources: [{matchContains: [x]}]":                                      "Required value",
		v1 + "limited: []":                       "unknown field",
		strings.Replace(v1, "io/v1", "io/v9", 1): "no kind",
		"nonsense":                               "decode configuration",
	} {
		_, err := New(Options{Config: strings.NewReader(config)})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", config, err, want)
		}
	}
}

// FuzzConfig checks that no configuration panics.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(limitedConfig))
	f.Add([]byte(`{"apiVersion": "resourcequota.admission.k8s.io/v1beta1", "kind": "Configuration"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := New(Options{Config: strings.NewReader(string(data))})
		if (p == nil) == (err == nil) {
			t.Errorf("made %v, %v", p, err)
		}
	})
}

// TestRoomNotHeardOf checks that a count that is stored but not yet in the index takes effect: a client that has seen
// it by a watch may use the room, and the error of a rejection contains the latest numbers.
func TestRoomNotHeardOf(t *testing.T) {
	p, b := setup(t, "", newQuota("q", amounts("configmaps", "5"), amounts("configmaps", "5")))
	counted := b.quotas["q"].DeepCopy()
	counted.ResourceVersion, counted.Status.Used = "1", amounts("configmaps", "4")
	b.version, b.quotas["q"] = 1, counted
	if err := p.Validate(t.Context(), b, configMap("m")); err != nil {
		t.Fatal(err)
	}
	if used := b.used("q", "configmaps"); used != 5 {
		t.Errorf("used %d, want 5", used)
	}
	counted = b.quotas["q"].DeepCopy()
	counted.ResourceVersion, counted.Status.Used = "9", amounts("configmaps", "7")
	b.version, b.quotas["q"] = 9, counted
	want := `configmaps "n" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=7, limited: configmaps=5`
	if err := p.Validate(t.Context(), b, configMap("n")); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
