// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package envtest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mortise-dev/mortise/embed/envtest"
)

const definition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// TestEnvironment is a suite as kubebuilder makes it.
func TestEnvironment(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "crd.yaml"), []byte(definition), 0o600); err != nil {
		t.Fatal(err)
	}
	env := &envtest.Environment{CRDDirectoryPaths: []string{dir}, ErrorIfCRDPathMissing: true, BinaryAssetsDirectory: "none"}
	env.ControlPlane.GetAPIServer().Configure().Append("disable-admission-plugins", "ServiceAccount")
	config, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if len(env.CRDs) != 1 || len(env.KubeConfig) == 0 || env.Config == nil {
		t.Errorf("%d CRDs, a kubeconfig of %d bytes", len(env.CRDs), len(env.KubeConfig))
	}
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w", "namespace": "default"},
	}}
	if err := c.Create(t.Context(), widget); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.Spec.Containers = "p", "default", []corev1.Container{{Name: "c", Image: "i"}}
	if err := c.Create(t.Context(), pod); err != nil {
		t.Errorf("a pod without a service account: %v", err)
	}
	alice, err := env.AddUser(envtest.User{Name: "alice", Groups: []string{"dev"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	hers, err := client.New(alice.Config(), client.Options{})
	if err == nil {
		err = hers.List(t.Context(), &corev1.PodList{})
	}
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "alice"`) {
		t.Errorf("a user without rights: %v", err)
	}
}

func TestUnknownFlag(t *testing.T) {
	env := &envtest.Environment{}
	env.ControlPlane.GetAPIServer().Configure().Set("no-such-flag", "1")
	if _, err := env.Start(); err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("start says %v", err)
	}
	if err := env.Stop(); err != nil {
		t.Error(err)
	}
}
