// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"slices"
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

// The metrics have the names, labels and values of kube-controller-manager 1.37 (pkg/controller/volume/attachdetach/metrics and
// pkg/volume/util).
func TestMetrics(t *testing.T) {
	const driver = "kubernetes.io/csi:d.example.com"
	operation := func(name, status, count string) string {
		return "storage_operation_duration_seconds{migrated=false,operation_name=" + name + ",status=" + status + ",volume_plugin=" + driver + "} " +
			count
	}
	for scenario, want := range map[string][]string{
		"failed": { // two pods of one node have the volume
			"attachdetach_controller_total_volumes{plugin_name=" + driver + ",state=actual_state_of_world} 1",
			"attachdetach_controller_total_volumes{plugin_name=" + driver + ",state=desired_state_of_world} 1",
			"storage_count_attachable_volumes_in_use{node=n1,volume_plugin=" + driver + "} 2",
			operation("volume_attach", "fail-unknown", "4"), operation("volume_attach", "success", "1"),
		},
		"silent": { // it is detached by force
			"attach_detach_controller_attachdetach_controller_forced_detaches{reason=timeout} 1",
			operation("volume_attach", "success", "1"), operation("volume_detach", "success", "1"),
		},
	} {
		t.Run(scenario, func(t *testing.T) {
			meters, from := controllertest.Meters(t)
			controllertest.Run(t, "testdata/"+scenario+".txtar", controllers.Options{Metrics: meters}, Controller())
			var got []string
			for _, prefix := range []string{"attachdetach_controller_", "storage_count_", "attach_detach_controller_", "storage_operation_"} {
				for _, line := range controllertest.Counted(t, from, prefix) {
					got = append(got, prefix+line)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %q", got)
			}
		})
	}
}
