// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/scheduler"
	"github.com/mortise-dev/mortise/internal/scheduler/config"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// TestGroupsOfPodsAreOff: as 1.37 is by default. Nothing of groups is served, a pod's group is dropped, and it is scheduled alone.
func TestGroupsOfPodsAreOff(t *testing.T) {
	_, c := cluster(t)
	groups, err := c.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups.Groups {
		if g.Name == "scheduling.k8s.io" && (len(g.Versions) != 1 || g.Versions[0].Version != "v1") {
			t.Errorf("the versions of %s are %v, want v1 alone", g.Name, g.Versions)
		}
	}
	addNode(t, c, "a", "4")
	addPod(t, c, "p", "1", func(s *corev1.PodSpec) {
		s.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("none")}
	})
	if pod := awaitPod(t, c, "p", on("a")); pod.Spec.SchedulingGroup != nil {
		t.Errorf("the pod has a group: %+v", pod.Spec.SchedulingGroup)
	}
}

// TestConfigurationsMayNameGroups: kube-scheduler takes such a file with its gates off, and so it is taken here. The plug-ins that do
// nothing then are left out.
func TestConfigurationsMayNameGroups(t *testing.T) {
	c, err := config.Parse([]byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    multiPoint: {enabled: [{name: GangScheduling}, {name: TopologyPlacementGenerator}, {name: PodGroupPodsCount, weight: 2}, {name: DeferredPodScheduling}]}
    podGroupPostFilter: {enabled: [{name: DynamicResources}, {name: DefaultPreemption}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	own := builtin.SchedulerPlugins()
	if left := c.Without(func(name string) bool {
		return slices.ContainsFunc(own, func(r profile.Registration) bool { return r.Name == name })
	}); len(left) != 4 {
		t.Errorf("left out are %q", left)
	}
	if err := scheduler.Check(t.Context(), c, own, own); err != nil {
		t.Error(err)
	}
}
