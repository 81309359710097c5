// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
)

func TestRevise(t *testing.T) {
	for _, x := range []struct {
		name, says string
		generation int64
		follow     bool
		annotation string // after it
		changed    bool
	}{
		{"global-default", "true", 3, true, "true", false},
		{"global-default", "1", 3, true, "1", false},
		{"global-default", "false", 1, false, "false", false},
		{"global-default", "-", 1, true, "true", true},
		{"global-default", "-", 2, false, "false", true},
		{"global-default", "perhaps", 2, false, "false", true},
		{"exempt", "false", 2, true, "true", true},
		{"catch-all", "-", 2, true, "true", true},
	} {
		m := &metav1.ObjectMeta{Name: x.name, Generation: x.generation}
		if x.says != "-" {
			m.Annotations = map[string]string{autoUpdate: x.says}
		}
		follow, changed := revise(m)
		if follow != x.follow || changed != x.changed || m.Annotations[autoUpdate] != x.annotation {
			t.Errorf("%+v: follow %v, changed %v, says %q", x, follow, changed, m.Annotations[autoUpdate])
		}
	}
}

// TestFlowObjectsKept: what was changed of the server's own objects is put right, save what is for administrators to say.
func TestFlowObjectsKept(t *testing.T) {
	s, made := started(t, Settings{Controllers: []string{"none"}})
	b := &bootstrapper{server: made.server, self: made.self(), log: made.settings.Logger}
	ctx, c := t.Context(), kubernetes.NewForConfigOrDie(s.Config()).FlowcontrolV1()
	shares := int32(7)
	exempt, err := c.PriorityLevelConfigurations().Get(ctx, "exempt", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := exempt.DeepCopy()
	exempt.Spec.Exempt.NominalConcurrencyShares = &shares
	delete(exempt.Annotations, autoUpdate)
	if exempt, err = c.PriorityLevelConfigurations().Update(ctx, exempt, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := b.repairPriorityLevel(ctx, want, exempt); err != nil {
		t.Fatal(err)
	}
	if exempt, err = c.PriorityLevelConfigurations().Get(ctx, "exempt", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if exempt.Annotations[autoUpdate] != "true" || *exempt.Spec.Exempt.NominalConcurrencyShares != shares {
		t.Errorf("kept as %v %+v", exempt.Annotations, exempt.Spec.Exempt)
	}
	for name, says := range map[string]string{"former": "true", "own": ""} {
		f := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if says != "" {
			f.Annotations = map[string]string{autoUpdate: says}
		}
		f.Spec.PriorityLevelConfiguration.Name, f.Spec.MatchingPrecedence = "catch-all", 9000
		if _, err := c.FlowSchemas().Create(ctx, f, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	all := []bootstrap.Object{}
	fs, err := c.FlowSchemas().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range fs.Items {
		if f := &fs.Items[i]; f.Name != "former" && f.Name != "own" {
			all = append(all, bootstrap.Object{Object: f})
		}
	}
	pl, err := c.PriorityLevelConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pl.Items {
		all = append(all, bootstrap.Object{Object: &pl.Items[i]})
	}
	var left *flowcontrolv1.FlowSchemaList
	names := map[string]bool{}
	for range 5 { // an object whose status the server writes meanwhile is left to the next time
		if err := b.dropFormer(ctx, all); err != nil {
			t.Fatal(err)
		}
		if left, err = c.FlowSchemas().List(ctx, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		clear(names)
		for _, f := range left.Items {
			names[f.Name] = true
		}
		if !names["former"] {
			break
		}
	}
	if names["former"] || !names["own"] || !names["global-default"] || len(left.Items) != len(fs.Items)-1 {
		t.Errorf("left are %v", names)
	}
}
