// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// TestDisrupted: the condition is put behind those that are there, in its own place if it is one of them, and not said twice.
func TestDisrupted(t *testing.T) {
	is := func(kind corev1.PodConditionType, status corev1.ConditionStatus) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: status}
	}
	for _, c := range []struct {
		name string
		have []corev1.PodCondition
		want string
	}{
		{"none", nil, "DisruptionTarget=True@3 "},
		{"others", []corev1.PodCondition{is("Initialized", "True"), is("Ready", "True")},
			"Initialized=True@0 Ready=True@0 DisruptionTarget=True@3 "},
		{"was one before", []corev1.PodCondition{is("DisruptionTarget", "False"), is("Ready", "True")}, "DisruptionTarget=True@3 Ready=True@0 "},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Conditions: c.have}}
		patch, err := Disrupted(pod, "R", "M", 3, time.Unix(0, 0))
		if err != nil {
			t.Fatal(err)
		}
		before, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		after, err := strategicpatch.StrategicMergePatch(before, patch, pod)
		if err != nil {
			t.Fatal(err)
		}
		var now corev1.Pod
		if err := json.Unmarshal(after, &now); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, k := range now.Status.Conditions {
			got += string(k.Type) + "=" + string(k.Status) + "@" + string(rune('0'+k.ObservedGeneration)) + " "
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
		if patch, err := Disrupted(&now, "R", "M", 4, time.Unix(9, 0)); err != nil || patch != nil {
			t.Errorf("%s: said twice: %s, %v", c.name, patch, err)
		}
	}
}
