// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podtolerations_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/podtolerations"
)

const head = "apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1\nkind: Configuration\n"

// kinds: a pod is of no class that has resources, and a toleration is fine that has a key.
func kinds() podtolerations.Kinds {
	return podtolerations.Kinds{
		QOSClass: func(pod *corev1.Pod) corev1.PodQOSClass {
			if pod.Spec.Containers[0].Resources.Requests == nil {
				return corev1.PodQOSBestEffort
			}
			return corev1.PodQOSBurstable
		},
		Check: func(ts []corev1.Toleration, path *field.Path) (errs field.ErrorList) {
			for i, t := range ts {
				if t.Key == "" {
					errs = append(errs, field.Required(path.Index(i).Child("key"), ""))
				}
			}
			return errs
		},
	}
}

func TestScenarios(t *testing.T) {
	p, err := podtolerations.New(strings.NewReader(head+`
default: [{key: everyone, operator: Exists}]
whitelist: [{key: everyone, operator: Exists}, {key: own, operator: Exists}, {key: node.kubernetes.io/memory-pressure, operator: Exists}]`),
		kinds())
	if err != nil {
		t.Fatal(err)
	}
	admittest.Run(t, p)
}

// TestConfiguration: none is fine, a bad one is refused.
func TestConfiguration(t *testing.T) {
	if p, err := podtolerations.New(nil, kinds()); p == nil || err != nil {
		t.Errorf("without configuration: %v, %v", p, err)
	}
	for in, want := range map[string]string{
		head + "default: [{operator: Exists}]":  "podtolerationrestriction.default[0].key",
		head + "whitelist: [{operator: Equal}]": "podtolerationrestriction.whitelist[0].key",
		head + "blacklist: []":                  "unknown field",
		"kind: Configuration":                   "podtolerationrestriction.admission.k8s.io/v1alpha1",
	} {
		if _, err := podtolerations.New(strings.NewReader(in), kinds()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

func FuzzNew(f *testing.F) {
	f.Add(head + "default: [{key: a, operator: Exists}]")
	f.Fuzz(func(t *testing.T, in string) {
		if p, err := podtolerations.New(strings.NewReader(in), kinds()); (p == nil) != (err != nil) {
			t.Errorf("%q: %v and %v", in, p, err)
		}
	})
}
