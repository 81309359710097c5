// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
)

// TestNodesLabelThemselves covers the whole table of labels that a kubelet may and may not set on its own node:
// upstream's IsKubeletLabel, everything outside kubernetes.io and k8s.io, and nothing below
// node-restriction.kubernetes.io. A kubelet may not change or remove a label that it may not set.
func TestNodesLabelThemselves(t *testing.T) {
	may := []string{
		"app", "example.com/rack", "xkubernetes.io/a", "x-k8s.io/a", "notnode-restriction.example.com/a",
		// the kubelet's own labels
		"kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/os",
		"beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type",
		"topology.kubernetes.io/zone", "topology.kubernetes.io/region",
		"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
		// the kubelet's prefixes
		"node.kubernetes.io/anything", "a.node.kubernetes.io/b", "kubelet.kubernetes.io/anything", "a.kubelet.kubernetes.io/b",
	}
	mayNot := []string{
		"node-restriction.kubernetes.io/pci", "team.node-restriction.kubernetes.io/pci",
		"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master",
		"kubernetes.io/anything", "k8s.io/anything", "a.kubernetes.io/b", "a.k8s.io/b",
		"topology.kubernetes.io/rack", "xnode.kubernetes.io/a", "xkubelet.kubernetes.io/a", "xnode-restriction.kubernetes.io/a",
		"node.k8s.io/a", "node.kubernetes.io.k8s.io/a",
	}
	node := func(labels map[string]string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: meta("", "n1", "n1")}
		n.Labels = labels
		return n
	}
	verdict := func(old, is *corev1.Node) string {
		a := &admit.Attributes{Operation: admit.Create, Descriptor: kindOf("", "nodes"), Name: "n1", Object: is}
		if old != nil {
			a.Operation, a.Old = admit.Update, old
		}
		return asNode(t, a)
	}
	check := func(label string, allowed bool) {
		one, other := node(map[string]string{label: "1"}), node(map[string]string{label: "2"})
		for _, c := range []struct {
			name    string
			old, is *corev1.Node
			want    string
		}{
			{"create", nil, one, `nodes "n1" is forbidden: node "n1" is not allowed to set the following labels: ` + label},
			{"add", node(nil), one, `nodes "n1" is forbidden: is not allowed to modify labels: ` + label},
			{"change", one, other, `nodes "n1" is forbidden: is not allowed to modify labels: ` + label},
			{"remove", one, node(nil), `nodes "n1" is forbidden: is not allowed to modify labels: ` + label},
		} {
			if allowed {
				c.want = ""
			}
			if got := verdict(c.old, c.is); got != c.want {
				t.Errorf("%s %s:\n got %q\nwant %q", c.name, label, got, c.want)
			}
		}
		if got := verdict(one, node(map[string]string{label: "1", "app": "x"})); got != "" {
			t.Errorf("keep %s: %s", label, got)
		}
	}
	for _, label := range may {
		check(label, true)
	}
	for _, label := range mayNot {
		check(label, false)
	}
	many := node(map[string]string{"k8s.io/b": "", "app": "", "k8s.io/a": "", "kubernetes.io/os": "linux"})
	for old, want := range map[*corev1.Node]string{
		nil:       `nodes "n1" is forbidden: node "n1" is not allowed to set the following labels: k8s.io/a, k8s.io/b`,
		node(nil): `nodes "n1" is forbidden: is not allowed to modify labels: k8s.io/a, k8s.io/b`,
	} {
		if got := verdict(old, many); got != want {
			t.Errorf("many labels: got %q, want %q", got, want)
		}
	}
	// a label that differs on both sides is listed once
	if got, want := fmt.Sprint(forbidden(map[string]string{"k8s.io/a": "1"}, map[string]string{"k8s.io/a": "2"})), "[k8s.io/a]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
