// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension/scheduler"
	"github.com/mortise-dev/mortise/test/scheduling/seats"
)

const label = "example.com/seats"

// seating is a configuration with the plug-in in one of two profiles.
const seating = `
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint: {enabled: [{name: Seats, weight: 50}]}
  pluginConfig:
  - {name: Seats, args: {label: example.com/seats}}
- schedulerName: plain
`

var plugins = map[string]scheduler.Factory{seats.Name: seats.New}

// allow lets the scheduler annotate pods, as its administrator has to for this plug-in.
func allow(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "seats"}
	if _, err := c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"patch"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "seats"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:kube-scheduler"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func seated(p *corev1.Pod) { p.Labels = map[string]string{label: ""} }

// party makes a pod one of a party of three.
func party(p *corev1.Pod) {
	seated(p)
	p.Annotations = map[string]string{seats.Party: "birthday", seats.Size: "3"}
}

func TestThePluginKnowsTheFrameworkAlone(t *testing.T) {
	data, err := os.ReadFile("seats/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, "mortise") && !strings.HasPrefix(line, "module ") || strings.Contains(line, "k8s.io/kubernetes") {
			t.Errorf("the plug-in needs %s", line)
		}
	}
}

func TestAPluginFromOutsideDecides(t *testing.T) {
	_, c := start(t, seating, plugins)
	allow(t, c)
	// Left alone, the scheduler prefers the wide node; the plug-in the one with fewer seats.
	addNode(t, c, "narrow", "1", map[string]string{label: "2"})
	addNode(t, c, "wide", "16", map[string]string{label: "3"})
	known(t, c, "narrow", "plain")
	known(t, c, "wide", "plain")
	addPod(t, c, "plain", func(p *corev1.Pod) { p.Spec.SchedulerName = "plain" })
	if got := awaitPod(t, c, "plain", bound).Spec.NodeName; got != "wide" {
		t.Errorf("a pod of the profile without the plug-in is on %s", got)
	}
	awaitEvent(t, c, "plain", "Scheduled", "plain", "Successfully assigned default/plain to wide")
	for _, step := range []struct{ pod, node string }{{"one", "narrow"}, {"two", "narrow"}, {"three", "wide"}, {"four", "wide"},
		{"five", "wide"}} {
		addPod(t, c, step.pod, seated)
		p := awaitPod(t, c, step.pod, bound)
		if p.Spec.NodeName != step.node || p.Annotations[seats.Seat] != step.node {
			t.Errorf("pod %s is on %s, its seat on %q, want %s", step.pod, p.Spec.NodeName, p.Annotations[seats.Seat], step.node)
		}
	}
	awaitEvent(t, c, "one", "Scheduled", "default-scheduler", "Successfully assigned default/one to narrow")
	// All seats are taken: the pod waits, and is told why, until the plug-in's hints say that something may help.
	addPod(t, c, "six", seated)
	awaitPod(t, c, "six", refused("0/2 nodes are available: 2 node(s) had no free seat."))
	awaitEvent(t, c, "six", "FailedScheduling", "default-scheduler", "0/2 nodes are available: 2 node(s) had no free seat.")
	more := []byte(`{"metadata":{"labels":{"` + label + `":"3"}}}`)
	if _, err := c.CoreV1().Nodes().Patch(t.Context(), "narrow", types.MergePatchType, more, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := awaitPod(t, c, "six", bound).Spec.NodeName; got != "narrow" {
		t.Errorf("pod six is on %s", got)
	}
}

func TestAPluginFromOutsideHasPodsWaitForEachOther(t *testing.T) {
	_, c := start(t, seating, plugins)
	allow(t, c)
	addNode(t, c, "n", "4", map[string]string{label: "9"})
	addPod(t, c, "one", party)
	addPod(t, c, "two", party)
	for _, name := range []string{"one", "two"} {
		// While a pod waits for Permit, others can see where it is to come to.
		if p := awaitPod(t, c, name, func(p *corev1.Pod) bool { return p.Status.NominatedNodeName == "n" }); bound(p) {
			t.Errorf("pod %s is bound before the party is complete", name)
		}
	}
	addPod(t, c, "three", party)
	for _, name := range []string{"one", "two", "three"} {
		awaitPod(t, c, name, bound)
	}
}

func TestConfigurationsThatCannotBeAreRefusedAtOnce(t *testing.T) {
	for _, c := range []struct{ name, config, want string }{
		{"an unknown plug-in", "profiles:\n- plugins: {filter: {enabled: [{name: Chairs}]}}\n", `plugin "Chairs" does not exist`},
		{"an unknown field", "profils: []\n", `unknown field "profils"`},
		{"an argument out of range", "profiles:\n- pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]\n",
			"profiles[0].pluginConfig[0].args.hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := t.TempDir() + "/scheduler.yaml"
			if err := os.WriteFile(file, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+c.config),
				0o600); err != nil {
				t.Fatal(err)
			}
			s := &embed.Server{Node: embed.NodeNone, APIServer: options.APIServer{Scheduler: options.Scheduler{ConfigFile: file}},
				Extensions: embed.Extensions{SchedulerPlugins: plugins}}
			err := s.Start(t.Context())
			if err == nil {
				_ = s.Stop()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %s", err, c.want)
			}
		})
	}
}
