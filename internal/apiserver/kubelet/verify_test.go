// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/servingkey"
)

func authority(t *testing.T) *serving.Material {
	t.Helper()
	m, err := serving.LoadOrCreate(t.TempDir(), []string{"localhost"}, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// certificate returns a certificate that a CA has signed for a node.
func certificate(t *testing.T, m *serving.Material, node string, hosts ...string) *x509.Certificate {
	t.Helper()
	pair, err := m.Node(node, hosts, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return pair.Certificate
}

// TestVerify checks that a node is identified by the cluster's signature or by its published key, and that other nodes
// are rejected.
func TestVerify(t *testing.T) {
	ours, other := authority(t), authority(t)
	w := &Transports{Roots: ours.CA.Pool(), Server: ours.Server.Certificate, CA: ours.CA.Certificate}
	const unknown, another, own = "the serving certificate of node n cannot be verified: set serverTLSBootstrap: true",
		"node n: another node answers there: m", "an API server answers there"
	stranger, second := certificate(t, other, "n", "192.0.2.1"), certificate(t, other, "m", "192.0.2.1")
	client, err := ours.Client("n", nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		leaf *x509.Certificate
		key  string
		want string // in the error; empty: none
	}{
		"the cluster's, by address":        {certificate(t, ours, "n", "192.0.2.1"), "", ""},
		"the cluster's, by name":           {certificate(t, ours, "n", "n", "192.0.2.2"), "", ""},
		"the cluster's, for several nodes": {certificate(t, ours, "", "192.0.2.1"), "", ""},
		"the cluster's, of elsewhere":      {certificate(t, ours, "n", "192.0.2.2"), "", unknown},
		"the cluster's, of another node":   {certificate(t, ours, "m", "192.0.2.1", "n"), "", another},
		"the cluster's, of a client":       {client.Certificate, "", unknown},
		"a stranger's":                     {stranger, "", unknown},
		"a stranger's, published":          {stranger, servingkey.Of(stranger), ""},
		"a stranger's, not the published":  {stranger, servingkey.Of(second), unknown},
		"another node's, published":        {second, servingkey.Of(second), another},
		"the server's":                     {ours.Server.Certificate, "", own},
		"the server's, published":          {ours.Server.Certificate, servingkey.Of(ours.Server.Certificate), own},
	} {
		err := w.verify(peer{node: "n", host: "192.0.2.1", key: c.key}, []*x509.Certificate{c.leaf})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if err := w.verify(peer{node: "n", host: "192.0.2.1"}, nil); err == nil {
		t.Error("a node without a certificate is taken")
	}
}

// TestVerifyEachByItself checks that nodes at one address share no connections, and that a new key gets new ones.
func TestVerifyEachByItself(t *testing.T) {
	node := func(name, key string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{servingkey.Annotation: key}}}
	}
	w := &Transports{Keys: true}
	first := w.To(node("n", "a"), "192.0.2.1")
	if w.To(node("n", "a"), "192.0.2.1") != first {
		t.Error("connections to a node are not used again")
	}
	if w.To(node("m", "a"), "192.0.2.1") == first {
		t.Error("two nodes share connections")
	}
	if w.To(node("n", "b"), "192.0.2.1") == first {
		t.Error("connections outlive the key that they were made for")
	}
	if w.To(node("n", "a"), "192.0.2.2") == first {
		t.Error("connections outlive the address that they were made for")
	}
	if strict := (&Transports{}); strict.To(node("n", "a"), "192.0.2.1") != strict.To(node("n", "b"), "192.0.2.1") {
		t.Error("a published key counts though authorities were named")
	}
}
