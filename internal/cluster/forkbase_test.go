// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// forked returns a fork that is stopped when the test ends.
func forked(t *testing.T, of *Cluster) *Cluster {
	t.Helper()
	f, err := of.Fork(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// value returns what a ConfigMap of a cluster says, to a client over TLS and to one in the process.
func value(t *testing.T, c *Cluster) string {
	t.Helper()
	var values []string
	for _, config := range []kubernetes.Interface{kubernetes.NewForConfigOrDie(c.Config()), kubernetes.NewForConfigOrDie(c.As(admin()))} {
		m, err := config.CoreV1().ConfigMaps("default").Get(t.Context(), "m", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, m.Data["value"])
	}
	if values[0] != values[1] {
		t.Errorf("over TLS the value is %s, in the process %s", values[0], values[1])
	}
	return values[0]
}

// set sets it.
func set(t *testing.T, c *Cluster, value string) {
	t.Helper()
	maps := kubernetes.NewForConfigOrDie(c.Config()).CoreV1().ConfigMaps("default")
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Data: map[string]string{"value": value}}
	_, err := maps.Update(t.Context(), m, metav1.UpdateOptions{})
	if err != nil {
		_, err = maps.Create(t.Context(), m, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestForksShareTheirBase: forks of one state have one API server until something may happen in one of them. They go on when the first
// cluster has changed or stopped, and end up with nothing left running.
func TestForksShareTheirBase(t *testing.T) {
	first, _ := started(t, Settings{Controllers: []string{"none"}})
	set(t, first, "1")
	a, b := forked(t, first), forked(t, first)
	check := func(want map[*Cluster]string) {
		t.Helper()
		for c, should := range want {
			if got := value(t, c); got != should {
				t.Errorf("%s has %s: want %s", c.URL(), got, should)
			}
		}
	}
	check(map[*Cluster]string{a: "1", b: "1"})
	if a.origin.base != b.origin.base || a.serving.Load() != nil {
		t.Error("two forks of one state that were only read do not share an API server")
	}
	set(t, a, "2")
	set(t, first, "3")
	c := forked(t, first)
	check(map[*Cluster]string{first: "3", a: "2", b: "1", c: "3"})
	if b.origin.base == c.origin.base || a.serving.Load() == nil || b.serving.Load() != nil {
		t.Error("an API server has what another one should have")
	}
	if err := a.Reset(); err != nil {
		t.Fatal(err)
	}
	check(map[*Cluster]string{a: "1"})
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	check(map[*Cluster]string{a: "1", b: "1", c: "3"})
	set(t, b, "4")
	check(map[*Cluster]string{a: "1", b: "4", c: "3"})
	base := a.origin.base
	for _, f := range []*Cluster{a, b} {
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	}
	if err := base.reader.Wait(); err != nil || base.users != 0 {
		t.Errorf("the API server of the base has %d users: %v", base.users, err)
	}
}

// TestReadForkStarts: a fork with controllers, which is only read, starts as well: what its controllers have to do happens. One without
// them does not. A watch starts either.
func TestReadForkStarts(t *testing.T) {
	for name, controllers := range map[string][]string{"controllers": nil, "none": {"none"}} {
		t.Run(name, func(t *testing.T) {
			first, _ := started(t, Settings{Controllers: controllers})
			set(t, first, "1")
			f := forked(t, first)
			if instanceOf(f) != nil {
				t.Error("a fork runs before it is used")
			}
			value(t, f)
			if runs := instanceOf(f) != nil; runs != (controllers == nil) {
				t.Errorf("a fork that was read runs: %t", runs)
			}
			w, err := kubernetes.NewForConfigOrDie(f.Config()).CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			w.Stop()
			if instanceOf(f) == nil {
				t.Error("a fork that is watched does not run")
			}
		})
	}
}

// TestBaseThatCannotStart: a request to a fork whose base cannot start gets an error.
func TestBaseThatCannotStart(t *testing.T) {
	first, _ := started(t, Settings{Controllers: []string{"none"}})
	f := forked(t, first)
	f.origin.base.settings.Listen = "nowhere"
	client := kubernetes.NewForConfigOrDie(f.As(admin()))
	if _, err := client.CoreV1().Namespaces().Get(context.Background(), "default", metav1.GetOptions{}); err == nil {
		t.Error("it answers")
	}
}
