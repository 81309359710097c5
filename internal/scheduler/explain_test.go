// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension/trace"
)

func ask(t *testing.T, c kubernetes.Interface, name string) (*trace.Scheduling, error) {
	t.Helper()
	b, err := c.CoreV1().RESTClient().Get().AbsPath(trace.Route).Param(trace.ParamScheduling, "true").
		Param(trace.ParamNamespace, "default").Param(trace.ParamName, name).Do(t.Context()).Raw()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, b)
	}
	var s trace.Scheduling
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return &s, nil
}

func explained(t *testing.T, c kubernetes.Interface, name string) *trace.Scheduling {
	t.Helper()
	s, err := ask(t, c, name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDecisionsAreExplained: what is told of a pod agrees with what the API shows of it.
func TestDecisionsAreExplained(t *testing.T) {
	s := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, APIServer: options.APIServer{Explain: options.Explain{Enabled: true}}})
	c := s.Client()
	addNode(t, c, "a", "2")
	addNode(t, c, "b", "4")
	// After these the scheduler has heard of both nodes, and that they are ready.
	addPod(t, c, "fills-b", "3", nil)
	awaitPod(t, c, "fills-b", on("b"))
	addPod(t, c, "fills-a", "1500m", nil)
	awaitPod(t, c, "fills-a", on("a"))
	addPod(t, c, "pilot", "100m", func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"x": "y"} })
	awaitPod(t, c, "pilot", refused("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."))
	addPod(t, c, "p", "100m", nil)
	pod := awaitPod(t, c, "p", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })

	got := explained(t, c, "p")
	d := got.Decisions[0]
	if got.UID != string(pod.UID) || d.Node != pod.Spec.NodeName || d.Nodes != 2 || d.Feasible != 2 || d.Attempt != 1 ||
		d.Profile != "default-scheduler" || len(d.Filtered) != 0 {
		t.Errorf("pod is on %s, told: %+v", pod.Spec.NodeName, got)
	}
	if len(d.Scores) != 2 || d.Scores[0].Node != d.Node || d.Scores[0].Total < d.Scores[1].Total || len(d.Scores[0].Plugins) == 0 {
		t.Errorf("scores are %+v", d.Scores)
	}
	if d.Outcome != trace.OutcomeBound && d.Outcome != trace.OutcomeBinding { // the answer to the binding may still be on its way
		t.Errorf("outcome is %s", d.Outcome)
	}

	got = explained(t, c, "pilot")
	d = got.Decisions[0]
	if d.Outcome != trace.OutcomeUnschedulable || !strings.HasPrefix(d.Message, "0/2 nodes are available: ") || d.Node != "" {
		t.Errorf("told of a pod that fits nowhere: %+v", d)
	}
	if len(d.Filtered) != 1 || d.Filtered[0].Plugin != "NodeAffinity" || d.Filtered[0].Count != 2 || len(d.Filtered[0].Nodes) != 2 {
		t.Errorf("left out: %+v", d.Filtered)
	}
	if got.Place == nil || got.Place.Where != trace.PlaceUnschedulable || strings.Join(got.Place.Plugins, " ") != "NodeAffinity" ||
		got.Place.Until == "" {
		t.Errorf("place is %+v", got.Place)
	}

	addPod(t, c, "gated", "100m", func(s *corev1.PodSpec) { s.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g.example.com/x"}} })
	awaitPod(t, c, "gated", func(p *corev1.Pod) bool { return condition(p).Reason == corev1.PodReasonSchedulingGated })
	addPod(t, c, "after", "100m", nil)
	awaitPod(t, c, "after", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" }) // so the scheduler has heard of the one before
	if got = explained(t, c, "gated"); got.Place == nil || got.Place.Where != trace.PlaceGated ||
		strings.Join(got.Place.Plugins, " ") != "SchedulingGates" {
		t.Errorf("place of a gated pod is %+v", got.Place)
	}
	addPod(t, c, "foreign", "1", func(s *corev1.PodSpec) { s.SchedulerName = "somebody-else" })
	if _, err := ask(t, c, "foreign"); err == nil || !strings.Contains(err.Error(), "the pod names the scheduler somebody-else") {
		t.Errorf("of another scheduler's pod: %v", err)
	}
	if _, err := ask(t, c, "nosuch"); err == nil || !strings.Contains(err.Error(), `pods \"nosuch\" not found`) {
		t.Errorf("of a pod that does not exist: %v", err)
	}
}

// TestPreemptionIsExplained: who had to go, and for which node.
func TestPreemptionIsExplained(t *testing.T) {
	s := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, APIServer: options.APIServer{Explain: options.Explain{Enabled: true}}})
	c := s.Client()
	addNode(t, c, "a", "2")
	makeClass(t, c, "high", 100)
	addPod(t, c, "victim", "2", nil) // without a node's agent it does not end
	victim := awaitPod(t, c, "victim", on("a"))
	addPod(t, c, "important", "2", func(s *corev1.PodSpec) { s.PriorityClassName = "high" })
	awaitPod(t, c, "important", func(p *corev1.Pod) bool { return p.Status.NominatedNodeName == "a" })
	got := explained(t, c, "important")
	first := got.Decisions[len(got.Decisions)-1]
	if len(first.Victims) != 1 || first.Victims[0].UID != string(victim.UID) || first.Nominated != "a" ||
		first.Outcome != trace.OutcomeUnschedulable {
		t.Errorf("told of the preemption: %+v", first)
	}
	if got.Place == nil || got.Place.Nominated != "a" {
		t.Errorf("place is %+v", got.Place)
	}
}

func makeClass(t *testing.T, c kubernetes.Interface, name string, value int32) {
	t.Helper()
	if _, err := c.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestWhoMayAskForDecisions: as for traces, it takes a role with the path.
func TestWhoMayAskForDecisions(t *testing.T) {
	s := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, APIServer: options.APIServer{Explain: options.Explain{Enabled: true}}})
	c := s.Client()
	addNode(t, c, "a", "2")
	addPod(t, c, "p", "1", nil)
	awaitPod(t, c, "p", on("a"))
	config := rest.CopyConfig(s.Config())
	config.Impersonate.UserName = "jane"
	jane := kubernetes.NewForConfigOrDie(config)
	if _, err := ask(t, jane, "p"); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("who has no right is answered %v", err)
	}
	if _, err := c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "asks"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{trace.Route}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "asks"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "asks"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "jane"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := explained(t, jane, "p"); len(got.Decisions) == 0 || got.Decisions[0].Node != "a" {
		t.Errorf("told %+v", got)
	}
	for query, want := range map[string]string{
		"scheduling=perhaps":                                      "neither true nor false",
		"scheduling=true&namespace=default":                       "need the namespace and name of a pod",
		"scheduling=true&namespace=a&name=b&resource=deployments": "pods alone are scheduled",
		"scheduling=true&namespace=a&name=b&field=spec":           "about a pod, not about a write or a field",
	} {
		err := c.CoreV1().RESTClient().Get().RequestURI(trace.Route + "?" + query).Do(t.Context()).Error()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("?%s is answered %v, want %s", query, err, want)
		}
	}
}
