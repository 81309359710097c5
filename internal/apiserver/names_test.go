// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TestNameAndGenerateName sets both: the name is used, and if it is taken the client may try again.
func TestNameAndGenerateName(t *testing.T) {
	c := kubernetes.NewForConfigOrDie(start(t).inProcess).CoreV1().ConfigMaps("ns")
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", GenerateName: "g", SelfLink: "said"}}
	if _, err := c.Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Create(t.Context(), cm, metav1.CreateOptions{})
	if again, ok := apierrors.SuggestsClientDelay(err); !apierrors.IsAlreadyExists(err) || !ok || again != 1 ||
		!strings.Contains(err.Error(), "the server was not able to generate a unique name for the object") {
		t.Errorf("a taken name: %v", err)
	}
	for _, dry := range [][]string{nil, {metav1.DryRunAll}} {
		got, err := c.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", SelfLink: "said"}},
			metav1.UpdateOptions{DryRun: dry})
		if err != nil || (got.SelfLink == "") != (dry == nil) {
			t.Errorf("dry run %v: self link %q, %v", dry, got.SelfLink, err)
		}
		_, err = c.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", UID: "other"}},
			metav1.UpdateOptions{DryRun: dry})
		key := "Key: /registry/"
		if dry != nil {
			key = "Key: /"
		}
		if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), key) || dry != nil && strings.Contains(err.Error(), "registry") {
			t.Errorf("dry run %v, another object: %v", dry, err)
		}
	}
}

// TestScaleOfAnotherGroup puts scales of groups that formerly had one: they are known, but the path does not accept
// them.
func TestScaleOfAnotherGroup(t *testing.T) {
	_, config := startControllers(t)
	c := kubernetes.NewForConfigOrDie(config).CoreV1()
	if _, err := c.ReplicationControllers("ns").Create(t.Context(), &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{
		"extensions/v1beta1": "the API version in the data (extensions/v1beta1) does not match the expected API version (autoscaling/v1)",
		"autoscaling/v2":     `no kind "Scale" is registered for version "autoscaling/v2"`,
	} {
		body := `{"kind":"Scale","apiVersion":"` + version + `","metadata":{"name":"x"},"spec":{"replicas":2}}`
		err := c.RESTClient().Put().Namespace("ns").Resource("replicationcontrollers").Name("x").SubResource("scale").Body([]byte(body)).Do(
			t.Context()).Error()
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", version, err)
		}
	}
}
