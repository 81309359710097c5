// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podtopologyspread

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/schedulertest"
)

// TestDefaultConstraints: pods of a service without constraints of their own are held to those of the arguments.
func TestDefaultConstraints(t *testing.T) {
	factory := informers.NewSharedInformerFactory(nil, 0)
	if err := factory.Core().V1().Services().Informer().GetIndexer().Add(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}},
	}); err != nil {
		t.Fatal(err)
	}
	cluster, snapshot := cache.New(), cache.NewSnapshot()
	for _, name := range []string{"a", "b"} {
		cluster.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": name}}})
	}
	pod := func(name, app, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": app}},
			Spec:       corev1.PodSpec{NodeName: node},
		}
	}
	cluster.SetPod(pod("there", "web", "a"))
	cluster.Update(snapshot)
	p := schedulertest.NewProfile(t, profile.Registry{{Name: Name, New: New, Args: &configv1.PodTopologySpreadArgs{
		DefaultingType:     configv1.ListDefaulting,
		DefaultConstraints: []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: corev1.DoNotSchedule}},
	}}}, profile.Clients{Lister: snapshot, Informers: factory})
	for _, c := range []struct {
		app  string
		want string // on node a
	}{
		{"web", "node(s) didn't match pod topology spread constraints"},
		{"other", ""}, // it belongs to nothing
	} {
		state, newcomer := profile.NewCycleState(), pod("new", c.app, "")
		if _, st, _ := p.RunPreFilter(t.Context(), state, newcomer, snapshot.Nodes()); !st.IsSuccess() {
			t.Fatal(st.Message())
		}
		for _, n := range snapshot.Nodes() {
			st := p.RunFilterPlugins(t.Context(), state, newcomer, n)
			if want := c.want; n.Node().Name == "a" && !strings.HasPrefix(st.Message(), want) || (n.Node().Name == "b" || want == "") &&
				!st.IsSuccess() || want != "" && n.Node().Name == "a" && st.IsSuccess() {
				t.Errorf("pod of %s on node %s: %q, want %q on a", c.app, n.Node().Name, st.Message(), want)
			}
		}
	}
}
