// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
)

// TestUnreadableWebhook starts a cluster in whose store a webhook configuration cannot be decoded, and a new one at that, so that nothing
// is there of what a start makes: the cluster starts, refuses what the webhooks might, and works when the configuration is deleted.
func TestUnreadableWebhook(t *testing.T) {
	dir := t.TempDir()
	first := &embed.Server{DataDir: dir, Controllers: []string{"none"}, Node: embed.NodeNone} // lays out the directory
	if err := first.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	e, err := local.Open(filepath.Join(dir, "store"), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(e)
	all, err := s.List(t.Context(), "/registry/")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all.Records {
		if _, err := s.Delete(t.Context(), r.Key, store.Any); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Create(t.Context(), "/registry/validatingwebhookconfigurations/corrupt", []byte("k8s\x00 corrupt"), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	client := embedtest.Start(t, &embed.Server{DataDir: dir, Node: embed.NodeNone}).Client()
	maps := client.CoreV1().ConfigMaps("default")
	_, err = maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{})
	const want = `configmaps "a" is forbidden: not yet ready to handle request: validatingwebhookconfigurations.admissionregistration.k8s.io ` +
		`"corrupt" cannot be read from the store`
	if !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("a request that the webhook might refuse: %v", err)
	}
	ready, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "").DoRaw(t.Context())
	if err == nil || !strings.Contains(string(ready), "[-]feed/admission-validatingadmissionwebhook failed") {
		t.Errorf("readyz: %v\n%s", err, ready)
	}
	if err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "corrupt",
		metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: ptr.To(true)}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("when the configuration is deleted: %v", err)
	}
}
