// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	quotaconfig "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/quota"
	"github.com/mortise-dev/mortise/resource"
)

// claimOf returns a claim that requests an amount of storage of a class; empty: of none.
func claimOf(class, storage string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c"}}
	c.Spec.Resources.Requests = amounts("storage", storage)
	if class != "" {
		c.Spec.StorageClassName = &class
	}
	return c
}

// updateOf returns the attributes of an object's update.
func updateOf(plural string, old, now resource.Object) *admit.Attributes {
	a := request("", plural, now)
	a.Operation, a.Old = admit.Update, old
	return a
}

// TestUpdates checks that an update is charged the increase, or everything if a quota did not count the object before.
func TestUpdates(t *testing.T) {
	const storage, claim = "requests.storage", `persistentvolumeclaims "c" is forbidden: `
	const uncovered = "insufficient quota to consume: gold.storageclass.storage.k8s.io/requests.storage"
	claims := func(class, before, after string) *admit.Attributes {
		return updateOf("persistentvolumeclaims", claimOf(class, before), claimOf(class, after))
	}
	unknown := claims("", "1Gi", "1Gi")
	unknown.Old = nil
	withDeadline, seconds := podOf("p", "1"), int64(60)
	withDeadline.Spec.ActiveDeadlineSeconds = &seconds
	ends := updateOf("pods", podOf("p", "1"), withDeadline)
	one, number := amounts("pods", "1"), amounts("persistentvolumeclaims", "1")
	for _, c := range []struct {
		name, config string
		hard, used   corev1.ResourceList
		scope        corev1.ResourceQuotaScope // empty: none
		a            *admit.Attributes
		want, left   string
	}{
		{name: "grows", hard: amounts(storage, "3Gi"), used: amounts(storage, "1Gi"), a: claims("", "1Gi", "3Gi"), left: storage + "=3Gi"},
		{
			name: "grows too large", hard: amounts(storage, "3Gi"), used: amounts(storage, "2Gi"), a: claims("", "1Gi", "3Gi"),
			want: claim + "exceeded quota: q, requested: requests.storage=2Gi, used: requests.storage=2Gi, limited: requests.storage=3Gi",
			left: storage + "=2Gi",
		},
		{name: "shrinks", hard: amounts(storage, "3Gi"), used: amounts(storage, "3Gi"), a: claims("", "3Gi", "1Gi"), left: storage + "=3Gi"},
		{
			name: "nobody knows what it was", hard: amounts(storage, "1Gi"), used: amounts(storage, "0"), a: unknown,
			want: claim + "unable to get previous usage since prior version of object was not found", left: storage + "=0",
		},
		{
			name: "comes into a scope", hard: amounts("pods", "1", "cpu", "2"), used: amounts("pods", "0", "cpu", "0"), scope: "Terminating",
			a: ends, left: "cpu=1,pods=1",
		},
		{
			name: "comes into a scope that is full", hard: one, used: one, scope: "Terminating", a: ends,
			want: `pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1`, left: "pods=1",
		},
		{name: "leaves a scope", hard: one, used: one, scope: "NotTerminating", a: ends, left: "pods=1"},
		{
			name: "limited, not covered, and uses no more", config: limitedConfig, hard: number, used: number,
			a: claims("gold", "1Gi", "1Gi"), left: "persistentvolumeclaims=1",
		},
		{
			name: "limited, not covered, and grows", config: limitedConfig, hard: number, used: number,
			a: claims("gold", "1Gi", "2Gi"), want: claim + uncovered, left: "persistentvolumeclaims=1",
		},
		{
			name: "limited, with a quota of something else, and uses no more", config: limitedConfig, hard: one, used: one,
			a: claims("gold", "1Gi", "1Gi"), left: "pods=1",
		},
		{
			name: "limited, with a quota of something else, and grows", config: limitedConfig, hard: one, used: one,
			a: claims("gold", "1Gi", "2Gi"), want: claim + uncovered, left: "pods=1",
		},
		{
			name: "less than nothing", hard: amounts(storage, "3Gi"), used: amounts(storage, "1Gi"),
			a:    request("", "persistentvolumeclaims", claimOf("", "-1Gi")),
			want: claim + "quota usage is negative for resource(s): requests.storage", left: storage + "=1Gi",
		},
		{
			name: "limited, and asks for nothing of it", config: limitedConfig, hard: one, used: one,
			a: request("", "persistentvolumeclaims", claimOf("gold", "0")), left: "pods=1",
		},
		{
			name: "a quota of what it does not ask for", hard: amounts("requests.ephemeral-storage", "1Gi"),
			used: amounts("requests.ephemeral-storage", "0"), a: podCreation("p", "1"), left: "requests.ephemeral-storage=0",
		},
		{
			name: "a namespace", config: limitedConfig + "- resource: namespaces\n  matchContains: [count/namespaces]\n", hard: one, used: one,
			a: request("", "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}), left: "pods=1",
		},
	} {
		q := newQuota("q", c.hard, c.used)
		if c.scope != "" {
			q.Spec.Scopes = []corev1.ResourceQuotaScope{c.scope}
		}
		p, b := setup(t, c.config, q)
		got := ""
		if err := p.Validate(t.Context(), b, c.a); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		c.a.End(nil)
		if left := b.usedText("q"); left != c.left {
			t.Errorf("%s: used %s, want %s", c.name, left, c.left)
		}
	}
}

// faulty is an evaluator of pods that fails on demand.
type faulty struct {
	quota.Evaluator
	names, usage, oldUsage, scope, oldScope error
}

// old reports whether an object is the one that an update replaces.
func (faulty) old(obj runtime.Object) bool { return obj.(*corev1.Pod).Name == "old" }

func (f faulty) Names(ctx context.Context, of []corev1.ResourceName) ([]corev1.ResourceName, error) {
	names, err := f.Evaluator.Names(ctx, of)
	return names, errors.Join(err, f.names)
}

func (f faulty) InScope(s corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
	in, err := f.Evaluator.InScope(s, obj)
	if f.old(obj) {
		return in, errors.Join(err, f.oldScope)
	}
	return in, errors.Join(err, f.scope)
}

func (f faulty) Usage(ctx context.Context, obj runtime.Object) (corev1.ResourceList, error) {
	used, err := f.Evaluator.Usage(ctx, obj)
	if f.old(obj) {
		return used, errors.Join(err, f.oldUsage)
	}
	return used, errors.Join(err, f.usage)
}

// TestCheckFails checks that a request whose usage cannot be measured is rejected.
func TestCheckFails(t *testing.T) {
	broken := errors.New("no such thing")
	limited := []quotaconfig.LimitedResource{{
		Resource: "pods", MatchContains: []string{"pods"}, MatchScopes: []corev1.ScopedResourceSelectorRequirement{
			{ScopeName: corev1.ResourceQuotaScopeNotTerminating, Operator: corev1.ScopeSelectorOpExists},
		},
	}}
	const scope = "error on matching scope {NotTerminating Exists []}: no such thing"
	for _, c := range []struct {
		name    string
		limited []quotaconfig.LimitedResource
		quotas  int
		update  bool
		fault   faulty
		want    string
	}{
		{name: "nothing", quotas: 1},
		{name: "nothing, an update", quotas: 1, update: true},
		{name: "the names", quotas: 1, fault: faulty{names: broken}, want: "no such thing"},
		{name: "what it uses", quotas: 1, fault: faulty{usage: broken}, want: "no such thing"},
		{name: "what it uses, where that is limited", limited: limited, fault: faulty{usage: broken}, want: "no such thing"},
		{name: "what it uses, without a quota", fault: faulty{usage: broken}, want: "no such thing"},
		{name: "what it used", quotas: 1, update: true, fault: faulty{oldUsage: broken}, want: "no such thing"},
		{name: "what is nowhere", quotas: 1, fault: faulty{oldUsage: broken}},
		{name: "its scopes", quotas: 1, fault: faulty{scope: broken}, want: "error matching scopes of quota q, err: " + scope},
		{name: "its scopes, where they are limited", limited: limited, fault: faulty{scope: broken}}, // as kube-apiserver does
		{name: "the scopes that it was in", quotas: 1, update: true, fault: faulty{oldScope: broken}, want: "no such thing"},
	} {
		q := newQuota("q", amounts("pods", "9"), amounts("pods", "1"))
		q.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotTerminating}
		a := podCreation("p", "1")
		if c.update {
			a = updateOf("pods", podOf("old", ""), podOf("p", "1"))
		}
		c.fault.Evaluator = quota.For(a.Descriptor.GroupResource(), cluster{now: time.Now})
		w := &work{attributes: a, evaluator: c.fault}
		w.measure(t.Context())
		var all []*running
		for range c.quotas {
			all = append(all, &running{ResourceQuota: q, used: q.Status.Used})
		}
		got := ""
		if _, err := (&checker{c.limited}).check(t.Context(), all, w); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
