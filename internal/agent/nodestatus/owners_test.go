// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"encoding/json"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/servingkey"
)

// When the node writes again what somebody has changed.
type when int

const (
	never when = iota
	atRegistration
	atHeartbeats
)

// owned is a part of the Node, with what somebody else does to it, and when the node undoes that.
type owned struct {
	name   string
	field  string // as docs/nodes.md has it
	undone when
	change func(*corev1.Node)
	part   func(*corev1.Node) any
}

func label(name string) func(*corev1.Node) any {
	return func(n *corev1.Node) any { return n.Labels[name] }
}

func annotation(name string) func(*corev1.Node) any {
	return func(n *corev1.Node) any { return n.Annotations[name] }
}

func setLabel(name string) func(*corev1.Node) {
	return func(n *corev1.Node) { metav1.SetMetaDataLabel(&n.ObjectMeta, name, "theirs") }
}

func setAnnotation(name string) func(*corev1.Node) {
	return func(n *corev1.Node) { metav1.SetMetaDataAnnotation(&n.ObjectMeta, name, "theirs") }
}

func quantity(list func(*corev1.Node) corev1.ResourceList, name corev1.ResourceName) func(*corev1.Node) any {
	return func(n *corev1.Node) any { q, there := list(n)[name]; return []any{q.String(), there} }
}

func capacity(n *corev1.Node) corev1.ResourceList { return n.Status.Capacity }
func free(n *corev1.Node) corev1.ResourceList     { return n.Status.Allocatable }

func condition(kind corev1.NodeConditionType) func(*corev1.Node) any {
	return func(n *corev1.Node) any {
		for _, c := range n.Status.Conditions {
			if c.Type == kind {
				return []any{c.Status, c.Reason, c.Message}
			}
		}
		return nil
	}
}

func address(kind corev1.NodeAddressType) func(*corev1.Node) any {
	return func(n *corev1.Node) any {
		var out []string
		for _, a := range n.Status.Addresses {
			if a.Type == kind {
				out = append(out, a.Address)
			}
		}
		return out
	}
}

// owners is whose each part of the Node is.
func owners() []owned {
	const foreign = "example.com/dongle"
	five := resource.MustParse("5")
	spec := func(name string, change func(*corev1.NodeSpec), part func(*corev1.NodeSpec) any) owned {
		return owned{name, "spec." + name, never, func(n *corev1.Node) { change(&n.Spec) },
			func(n *corev1.Node) any { return part(&n.Spec) }}
	}
	status := func(name string, undone when, change func(*corev1.NodeStatus), part func(*corev1.NodeStatus) any) owned {
		return owned{name, "status." + name, undone, func(n *corev1.Node) { change(&n.Status) },
			func(n *corev1.Node) any { return part(&n.Status) }}
	}
	return []owned{
		{"label of the system", "metadata.labels", atHeartbeats, setLabel(corev1.LabelOSStable), label(corev1.LabelOSStable)},
		{"label of the host", "metadata.labels", atRegistration, setLabel(corev1.LabelHostname), label(corev1.LabelHostname)},
		{"label of the configuration", "metadata.labels", never, setLabel("l"), label("l")},
		{"label of a zone", "metadata.labels", atRegistration, setLabel(corev1.LabelTopologyZone), label(corev1.LabelTopologyZone)},
		{"label of a region", "metadata.labels", never, setLabel(corev1.LabelTopologyRegion), label(corev1.LabelTopologyRegion)},
		{"another label", "metadata.labels", never, setLabel("color"), label("color")},
		{"serving key", "metadata.annotations", atHeartbeats, setAnnotation(servingkey.Annotation), annotation(servingkey.Annotation)},
		{"cloud's address", "metadata.annotations", atHeartbeats, setAnnotation(providedIP), annotation(providedIP)},
		{"attach and detach", "metadata.annotations", atRegistration, setAnnotation(attachDetach), annotation(attachDetach)},
		{"another annotation", "metadata.annotations", never, setAnnotation("note"), annotation("note")},

		spec("podCIDR", func(s *corev1.NodeSpec) { s.PodCIDR = "10.9.0.0/24" }, func(s *corev1.NodeSpec) any { return s.PodCIDR }),
		spec("podCIDRs", func(s *corev1.NodeSpec) { s.PodCIDRs = []string{"10.9.0.0/24"} },
			func(s *corev1.NodeSpec) any { return s.PodCIDRs }),
		spec("providerID", func(s *corev1.NodeSpec) { s.ProviderID = "cloud://1" }, func(s *corev1.NodeSpec) any { return s.ProviderID }),
		spec("unschedulable", func(s *corev1.NodeSpec) { s.Unschedulable = true },
			func(s *corev1.NodeSpec) any { return s.Unschedulable }),
		spec("taints", func(s *corev1.NodeSpec) { s.Taints = []corev1.Taint{{Key: "k", Effect: "NoSchedule"}} },
			func(s *corev1.NodeSpec) any { return s.Taints }),
		spec("configSource", func(s *corev1.NodeSpec) { s.ConfigSource = &corev1.NodeConfigSource{} },
			func(s *corev1.NodeSpec) any { return s.ConfigSource }),
		spec("podPreemptionPolicy", func(s *corev1.NodeSpec) { s.PodPreemptionPolicy = &corev1.NodePodPreemptionPolicy{} },
			func(s *corev1.NodeSpec) any { return s.PodPreemptionPolicy }),
		spec("externalID", func(s *corev1.NodeSpec) { s.DoNotUseExternalID = "x" },
			func(s *corev1.NodeSpec) any { return s.DoNotUseExternalID }),

		{"capacity of the machine", "status.capacity", atHeartbeats, func(n *corev1.Node) { n.Status.Capacity["cpu"] = five },
			quantity(capacity, "cpu")},
		{"capacity of pods", "status.capacity", atHeartbeats, func(n *corev1.Node) { n.Status.Capacity["pods"] = five },
			quantity(capacity, "pods")},
		{"huge pages", "status.capacity", atHeartbeats, func(n *corev1.Node) { n.Status.Capacity["hugepages-5Mi"] = five },
			quantity(capacity, "hugepages-5Mi")},
		{"extended capacity", "status.capacity", never, func(n *corev1.Node) { n.Status.Capacity[foreign] = five },
			quantity(capacity, foreign)},
		{"allocatable of the machine", "status.allocatable", atHeartbeats, func(n *corev1.Node) { n.Status.Allocatable["memory"] = five },
			quantity(free, "memory")},
		{"extended, allocatable", "status.allocatable", never, func(n *corev1.Node) {
			n.Status.Capacity[foreign], n.Status.Allocatable[foreign] = five, five
		}, quantity(free, foreign)},
		{"extended, without capacity", "status.allocatable", atHeartbeats, func(n *corev1.Node) {
			n.Status.Allocatable["example.com/none"] = five
		}, quantity(free, "example.com/none")},
		status("phase", never, func(s *corev1.NodeStatus) { s.Phase = corev1.NodeRunning },
			func(s *corev1.NodeStatus) any { return s.Phase }),
		{"condition Ready", "status.conditions", atHeartbeats, func(n *corev1.Node) {
			for i := range n.Status.Conditions {
				n.Status.Conditions[i].Status, n.Status.Conditions[i].Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
			}
		}, condition(corev1.NodeReady)},
		{"condition of the network", "status.conditions", never, func(n *corev1.Node) {
			theirs := corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue}
			n.Status.Conditions = append(n.Status.Conditions, theirs)
		}, condition(corev1.NodeNetworkUnavailable)},
		{"condition of a detector", "status.conditions", never, func(n *corev1.Node) {
			n.Status.Conditions = append([]corev1.NodeCondition{{Type: "KernelDeadlock", Status: corev1.ConditionFalse}}, n.Status.Conditions...)
		}, condition("KernelDeadlock")},
		{"internal address", "status.addresses", atHeartbeats, func(n *corev1.Node) { n.Status.Addresses[0].Address = "10.9.9.9" },
			address(corev1.NodeInternalIP)},
		{"host name", "status.addresses", atHeartbeats, func(n *corev1.Node) { n.Status.Addresses = n.Status.Addresses[:1] },
			address(corev1.NodeHostName)},
		{"external address", "status.addresses", never, func(n *corev1.Node) {
			n.Status.Addresses = append([]corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}}, n.Status.Addresses...)
		}, address(corev1.NodeExternalIP)},
		{"both addresses", "status.addresses", atHeartbeats, func(n *corev1.Node) {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.9.9.9"},
				corev1.NodeAddress{Type: corev1.NodeExternalDNS, Address: "n1.example.com"})
		}, address(corev1.NodeInternalIP)},
		status("daemonEndpoints", atHeartbeats, func(s *corev1.NodeStatus) { s.DaemonEndpoints.KubeletEndpoint.Port = 1 },
			func(s *corev1.NodeStatus) any { return s.DaemonEndpoints }),
		status("nodeInfo", atHeartbeats, func(s *corev1.NodeStatus) {
			s.NodeInfo.KubeletVersion, s.NodeInfo.KubeProxyVersion = "v1.0.0", "v1.0.0"
		},
			func(s *corev1.NodeStatus) any { return s.NodeInfo }),
		status("images", atHeartbeats, func(s *corev1.NodeStatus) { s.Images = nil }, func(s *corev1.NodeStatus) any { return s.Images }),
		status("volumesInUse", atHeartbeats, func(s *corev1.NodeStatus) { s.VolumesInUse = []corev1.UniqueVolumeName{"v"} },
			func(s *corev1.NodeStatus) any { return s.VolumesInUse }),
		status("volumesAttached", never, func(s *corev1.NodeStatus) { s.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}} },
			func(s *corev1.NodeStatus) any { return s.VolumesAttached }),
		status("config", never, func(s *corev1.NodeStatus) { s.Config = &corev1.NodeConfigStatus{Error: "e"} },
			func(s *corev1.NodeStatus) any { return s.Config }),
		status("runtimeHandlers", atHeartbeats, func(s *corev1.NodeStatus) { s.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: "theirs"}} },
			func(s *corev1.NodeStatus) any { return s.RuntimeHandlers }),
		status("features", atHeartbeats, func(s *corev1.NodeStatus) { s.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: new(true)} },
			func(s *corev1.NodeStatus) any { return s.Features }),
		status("declaredFeatures", atHeartbeats, func(s *corev1.NodeStatus) { s.DeclaredFeatures = []string{"Theirs"} },
			func(s *corev1.NodeStatus) any { return s.DeclaredFeatures }),
	}
}

func TestOwners(t *testing.T) {
	runtime := startRuntime(t)
	doc, err := os.ReadFile("../../../docs/nodes.md")
	if err != nil {
		t.Fatal(err)
	}
	covered := map[string]bool{}
	for _, o := range owners() {
		covered[o.field] = true
		t.Run(o.name, func(t *testing.T) {
			ctx := t.Context()
			client := fake.NewClientset()
			m := New(Config{
				Client: client, Runtime: runtime, Addresses: addresses{"10.0.0.1"}, Images: images{{Names: []string{"a:1"}, SizeBytes: 7}},
				Kubelet: kubeletconfig.Default(), Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler), NodeName: "n1",
				Labels: map[string]string{"l": "v", corev1.LabelTopologyZone: "z"}, Port: 10250, Network: cni.Options{Dir: "-"},
				Resources: allocatable.Node{Machine: hardware.Machine{CPUs: 2, Memory: 1 << 30}, MaxPods: 7},
			})
			get := func() *corev1.Node {
				node, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return node
			}
			if err := m.Register(ctx); err != nil {
				t.Fatal(err)
			}
			node := get()
			own := encoded(t, o.part(node))
			o.change(node)
			theirs := encoded(t, o.part(node))
			if own == theirs {
				t.Fatalf("nothing is changed: %s", own)
			}
			if _, err := client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, step := range []struct {
				when when
				name string
				run  func() error
			}{
				{atHeartbeats, "the heartbeat", func() error { return m.sync(ctx, true) }},
				{atHeartbeats, "another heartbeat", func() error { return m.sync(ctx, false) }},
				{atRegistration, "registration", func() error { return m.Register(ctx) }},
			} {
				if err := step.run(); err != nil {
					t.Fatal(err)
				}
				want := theirs
				if o.undone == atHeartbeats || o.undone == step.when {
					want = own
				}
				if got := encoded(t, o.part(get())); got != want {
					t.Errorf("after %s: %s, not %s", step.name, got, want)
				}
			}
		})
	}
	for _, of := range []struct {
		prefix string
		kind   reflect.Type
	}{{"spec.", reflect.TypeFor[corev1.NodeSpec]()}, {"status.", reflect.TypeFor[corev1.NodeStatus]()}} {
		for i := range of.kind.NumField() {
			name, _, _ := strings.Cut(of.kind.Field(i).Tag.Get("json"), ",")
			if field := of.prefix + name; !covered[field] || !strings.Contains(string(doc), "`"+field+"`") {
				t.Errorf("%s: say here and in docs/nodes.md whose it is", field)
			}
		}
	}
}

func encoded(t *testing.T, part any) string {
	t.Helper()
	out, err := json.Marshal(part)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
