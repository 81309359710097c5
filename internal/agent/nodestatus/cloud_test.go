// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
)

// TestCloud: what a node says for a cloud, as kubelet says it: the taint only when it makes its Node, addresses only while there are none,
// configured ones for the cloud to confirm.
func TestCloud(t *testing.T) {
	const own = "InternalIP=10.0.0.1 Hostname=n"
	for _, c := range []struct {
		name                              string
		cloud                             Cloud
		taint, first, cloudSet, annotated string
	}{
		{"no cloud", Cloud{}, "", own, own + " ExternalIP=9.9.9.9", ""},
		{"configured, without a cloud", Cloud{Given: true}, "", own, own + " ExternalIP=9.9.9.9", ""},
		{"external", Cloud{External: true}, "true:NoSchedule", "Hostname=n", "InternalIP=8.8.8.8 ExternalIP=9.9.9.9", ""},
		{"external, configured", Cloud{External: true, Given: true}, "true:NoSchedule", own,
			"InternalIP=8.8.8.8 ExternalIP=9.9.9.9", "10.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := New(Config{
				Client: fake.NewClientset(), Runtime: &cri.Client{}, Addresses: addresses{"10.0.0.1"}, Kubelet: kubeletconfig.Default(),
				Clock: clock.RealClock{}, NodeName: "n", Resources: allocatable.Node{MaxPods: 7}, Cloud: c.cloud,
			})
			texts := func(n *corev1.Node) string {
				var out []string
				for _, a := range n.Status.Addresses {
					out = append(out, fmt.Sprintf("%s=%s", a.Type, a.Address))
				}
				return strings.Join(out, " ")
			}
			made, taint := m.initial(), ""
			for _, found := range made.Spec.Taints {
				if found.Key == "node.cloudprovider.kubernetes.io/uninitialized" {
					taint = found.Value + ":" + string(found.Effect)
				}
			}
			if taint != c.taint || texts(made) != c.first || made.Annotations["alpha.kubernetes.io/provided-node-ip"] != c.annotated {
				t.Errorf("made with the taint %q, %s, %v", taint, texts(made), made.Annotations)
			}
			made.Spec.Taints = nil // the cloud's controller manager has been there
			made.Status.Addresses = []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "8.8.8.8"}, {Type: corev1.NodeExternalIP, Address: "9.9.9.9"},
			}
			if again := m.updated(made); len(again.Spec.Taints) > 0 || texts(again) != c.cloudSet {
				t.Errorf("then it writes %v, %s", again.Spec.Taints, texts(again))
			}
		})
	}
}

// TestOutside: the machine's addresses are in an annotation while the node's own are out of reach.
func TestOutside(t *testing.T) {
	for _, c := range []struct {
		outside Addresses
		want    string
	}{{nil, ""}, {addresses{"192.0.2.7", "fd00::7"}, "192.0.2.7,fd00::7"}, {addresses{"127.0.0.1"}, ""}} {
		n := &corev1.Node{}
		n.Annotations = map[string]string{v1alpha1.LoadBalancerAddressesAnnotation: "before"}
		annotate(n, &Config{Addresses: addresses{"10.244.0.1"}, Cloud: Cloud{Outside: c.outside}})
		if got := n.Annotations[v1alpha1.LoadBalancerAddressesAnnotation]; got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
