// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers_test

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/embed"
)

// TestQuota counts what waits: else it would be too many of them at the moment when nobody can be refused any more.
func TestQuota(t *testing.T) {
	t.Parallel()
	c := start(t, &embed.Server{})
	c.configure(t, "slow", "", "configmaps", v1alpha1.Initializer{Name: "slow.example.com", DeadlineSeconds: 3600})
	one := corev1.ResourceList{"count/configmaps": resource.MustParse("1")}
	q, err := c.client.CoreV1().ResourceQuotas("default").Create(t.Context(),
		&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: one}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// as the controller would
	q.Status = corev1.ResourceQuotaStatus{Hard: one, Used: corev1.ResourceList{"count/configmaps": resource.MustParse("0")}}
	if _, err := c.client.CoreV1().ResourceQuotas("default").UpdateStatus(t.Context(), q, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.all.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("held"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.all.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("more"),
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=1, limited: count/configmaps=1") {
		t.Errorf("one more than there may be: %v", err)
	}
	if q, err = c.client.CoreV1().ResourceQuotas("default").Get(t.Context(), "q", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if used := q.Status.Used["count/configmaps"]; used.Value() != 1 {
		t.Errorf("%v are counted", &used)
	}
}

// TestCBOR reads as CBOR, with objects that wait: they are as hidden as in other encodings.
func TestCBOR(t *testing.T) {
	t.Parallel()
	c := start(t, &embed.Server{FeatureGates: map[string]bool{"CBORServingAndStorage": true}})
	w, err := c.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/default/configmaps").Param("watch", "true").SetHeader("Accept",
		"application/cbor").Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	c.configure(t, "slow", "", "configmaps", v1alpha1.Initializer{Name: "slow.example.com", DeadlineSeconds: 3600})
	if _, err := c.all.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("hidden-one"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.dynamic.Resource(configurations).Delete(t.Context(), "slow", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("plain-one"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const cbor = "application/cbor"
	for _, accept := range []string{cbor, cbor + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"} {
		list := raw(t, c.client.CoreV1().RESTClient(), "/api/v1/namespaces/default/configmaps", accept)
		if strings.Contains(list, "hidden-one") || !strings.Contains(list, "plain-one") {
			t.Errorf("%s: %q", accept, list)
		}
		list = raw(t, c.client.CoreV1().RESTClient(), "/api/v1/namespaces/default/configmaps", accept, "includeUninitialized=true")
		if !strings.Contains(list, "hidden-one") {
			t.Errorf("%s, all: %q", accept, list)
		}
	}
	var said []byte
	for b := make([]byte, 4096); !bytes.Contains(said, []byte("plain-one")); {
		n, err := w.Read(b)
		if said = append(said, b[:n]...); err != nil {
			t.Fatalf("the watch: %v", err)
		}
	}
	if bytes.Contains(said, []byte("hidden-one")) {
		t.Errorf("the watch tells of it: %q", said)
	}
}
