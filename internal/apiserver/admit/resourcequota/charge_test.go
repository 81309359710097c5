// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
)

// podOf returns a pod whose container requests an amount of CPU; empty: it has no request.
func podOf(name, cpu string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	if cpu != "" {
		p.Spec.Containers[0].Resources.Requests = amounts("cpu", cpu)
	}
	return p
}

func podCreation(name, cpu string) *admit.Attributes { return request("", "pods", podOf(name, cpu)) }

func (b *backend) usedText(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return show(b.quotas[name].Status.Used)
}

// TestCharges checks that a write that fits is charged once to each quota that matches it. A rejected write, a dry run,
// or a write that no quota matches is not charged.
func TestCharges(t *testing.T) {
	const exceeded = `pods "p" is forbidden: exceeded quota: q, requested: `
	for _, c := range []struct {
		name       string
		hard, used corev1.ResourceList
		change     func(*admit.Attributes)
		want       string
		left       string // used afterwards
	}{
		{"fits", amounts("pods", "2", "cpu", "2"), amounts("pods", "1", "cpu", "1"), nil, "", "cpu=2,pods=2"},
		{"a limit of what it does not use", amounts("services", "1"), amounts("services", "1"), nil, "", "services=1"},
		{"one too many", amounts("pods", "1"), amounts("pods", "1"), nil, exceeded + "pods=1, used: pods=1, limited: pods=1", "pods=1"},
		{"too much", amounts("pods", "9", "cpu", "2"), amounts("pods", "1", "cpu", "1500m"), nil,
			exceeded + "cpu=1, used: cpu=1500m, limited: cpu=2", "cpu=1500m,pods=1"},
		{"too much of two", amounts("requests.cpu", "1", "cpu", "1"), amounts("requests.cpu", "1", "cpu", "1"), nil,
			exceeded + "cpu=1,requests.cpu=1, used: cpu=1,requests.cpu=1, limited: cpu=1,requests.cpu=1", "cpu=1,requests.cpu=1"},
		{"dry", amounts("pods", "2"), amounts("pods", "1"), func(a *admit.Attributes) { a.DryRun = true }, "", "pods=1"},
		{"dry, and one too many", amounts("pods", "1"), amounts("pods", "1"), func(a *admit.Attributes) { a.DryRun = true },
			exceeded + "pods=1, used: pods=1, limited: pods=1", "pods=1"},
		{"says nothing of what is limited", amounts("cpu", "2"), amounts("cpu", "1"), func(a *admit.Attributes) { a.Object = podOf("p", "") },
			`pods "p" is forbidden: failed quota: q: must specify cpu for: c`, "cpu=1"},
		{"nobody has counted", amounts("pods", "2", "cpu", "2"), amounts("pods", "1"), nil,
			`pods "p" is forbidden: status unknown for quota: q, resources: cpu,pods`, "pods=1"},
		{"a deletion", amounts("pods", "1"), amounts("pods", "1"),
			func(a *admit.Attributes) { a.Operation, a.Old, a.Object = admit.Delete, a.Object, nil }, "", "pods=1"},
		{"another namespace", amounts("pods", "1"), amounts("pods", "1"), func(a *admit.Attributes) { a.Namespace = "other" }, "", "pods=1"},
		{"a subresource", amounts("pods", "1"), amounts("pods", "1"), func(a *admit.Attributes) { a.Subresource = "binding" }, "", "pods=1"},
		{"an update that uses no more", amounts("pods", "1", "cpu", "1"), amounts("pods", "1", "cpu", "1"), func(a *admit.Attributes) {
			a.Operation, a.Old = admit.Update, podOf("p", "1")
		}, "", "cpu=1,pods=1"},
		{"its status", amounts("pods", "1", "cpu", "1"), amounts("pods", "1", "cpu", "1"), func(a *admit.Attributes) {
			a.Operation, a.Old, a.Subresource = admit.Update, podOf("p", "1"), "status"
		}, "", "cpu=1,pods=1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, b := setup(t, "", newQuota("q", c.hard, c.used))
			a := podCreation("p", "1")
			if c.change != nil {
				c.change(a)
			}
			got := ""
			if err := p.Validate(t.Context(), b, a); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			a.End(nil)
			if left := b.usedText("q"); left != c.left {
				t.Errorf("used %s, want %s", left, c.left)
			}
		})
	}
	p, b := setup(t, "", newQuota("one", amounts("pods", "2"), amounts("pods", "0")),
		newQuota("two", amounts("pods", "2"), amounts("pods", "1")), newQuota("three", amounts("configmaps", "1"), amounts("configmaps", "0")))
	for i, want := range []string{"", `pods "p1" is forbidden: exceeded quota: two, requested: pods=1, used: pods=2, limited: pods=2`} {
		a := podCreation(fmt.Sprint("p", i), "1")
		got := ""
		if err := p.Validate(t.Context(), b, a); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		a.End(nil)
	}
	if got := b.usedText("one") + " " + b.usedText("two") + " " + b.usedText("three"); got != "pods=1 pods=2 configmaps=0" {
		t.Errorf("used %s", got)
	}
}

// TestPluginItself checks the plug-in's name and the resources that it follows.
func TestPluginItself(t *testing.T) {
	p, _ := setup(t, "")
	if p.Name() != "ResourceQuota" || len(p.Follows()) == 0 || p.Follows()[0] != quotas {
		t.Errorf("%s follows %v", p.Name(), p.Follows())
	}
}
