// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
)

const twoInitializers = `{"apiVersion":"extension.mortise.dev/v1alpha1","kind":"InitializerConfiguration","metadata":{"name":"two"},"initializers":[
	{"name":"one.example.com","rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}]},
	{"name":"two.example.com","rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}]}]}`

// TestInitializersKilled kills the server after each step of an object through its initializers: a step that was acknowledged is not
// done again, what is left is still waited for, and nobody sees the object before the last.
func TestInitializersKilled(t *testing.T) {
	dir := t.TempDir()
	var p *program
	var seeing kubernetes.Interface
	begin := func() {
		p = up(t, dir, "--enable-initializers", "--controllers", "none", "--node", "none")
		c := rest.CopyConfig(p.config)
		c.Wrap(v1alpha1.SeeUninitialized)
		seeing = kubernetes.NewForConfigOrDie(c)
	}
	begin()
	if err := p.client().CoreV1().RESTClient().Post().AbsPath("/apis/extension.mortise.dev/v1alpha1/initializerconfigurations").
		SetHeader("Content-Type", "application/json").Body([]byte(twoInitializers)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	if _, err := seeing.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	done := ""
	for _, name := range []string{"one.example.com", "two.example.com"} {
		p.kill()
		begin()
		if l, err := p.client().CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(l.Items) != 0 {
			t.Errorf("before %s others see %v, %v", name, l.Items, err)
		}
		m, err := seeing.CoreV1().ConfigMaps("default").Get(t.Context(), "m", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !v1alpha1.Turn(m, name) || m.Data["by"] != done {
			t.Fatalf("it is not the turn of %s: %v, %q", name, m.Annotations, m.Data)
		}
		done = strings.TrimSpace(done + " " + name)
		m.Data = map[string]string{"by": done}
		if err := v1alpha1.Finish(m, name); err != nil {
			t.Fatal(err)
		}
		if _, err := seeing.CoreV1().ConfigMaps("default").Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.kill()
	begin()
	if l, err := p.client().CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(l.Items) != 1 ||
		l.Items[0].Data["by"] != done {
		t.Errorf("after all others see %v, %v", l, err)
	}
	p.stop()
}
