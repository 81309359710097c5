// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/join"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/servingkey"
)

// TestServingKeyIsPublished: the Node says the key of a certificate that nobody vouches for, as long as the node serves it.
func TestServingKeyIsPublished(t *testing.T) {
	m, err := serving.LoadOrCreate(t.TempDir(), []string{"localhost"}, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	signed, err := m.Node("n1", []string{"n1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	identity := &join.Identity{Name: "n1"}
	alone, err := identity.SelfSigned(time.Now(), "192.168.1.5")
	if err != nil {
		t.Fatal(err)
	}
	moved, err := identity.SelfSigned(time.Now(), "192.168.1.6")
	if err != nil {
		t.Fatal(err)
	}
	key := servingkey.Published(&tls.Config{Certificates: []tls.Certificate{alone}})
	if got := servingkey.Published(&tls.Config{Certificates: []tls.Certificate{moved}}); got != key {
		t.Errorf("for another address it has the key %q, before %q", got, key)
	}
	shown := func(c tls.Certificate) *tls.Config {
		return &tls.Config{ClientCAs: m.CA.Pool(), Certificates: []tls.Certificate{c}}
	}
	c, _ := newConfigured(t, "enableControllerAttachDetach: false", func(o *Options) { o.Server.TLS = shown(alone) })
	nodes := c.client.CoreV1().Nodes()
	node, err := nodes.Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{servingkey.Annotation: key}, node.Annotations); diff != "" {
		t.Errorf("self-signed (-want +got):\n%s", diff)
	}
	c.stop()
	node.Annotations["example.com/other"] = "stays"
	if _, err := nodes.Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.options.Server.TLS = shown(signed.TLS())
	c.start()
	if node, err = nodes.Get(t.Context(), "n1", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"example.com/other": "stays"}, node.Annotations); diff != "" {
		t.Errorf("signed by the cluster (-want +got):\n%s", diff)
	}
}
