// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinder

import (
	"slices"
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

// The metrics have the names and labels of kube-controller-manager 1.37 (pkg/controller/volume/persistentvolume/metrics).
func TestMetrics(t *testing.T) {
	for scenario, want := range map[string][]string{
		"classes": {
			"pv_collector_total_pv_count{plugin_name=kubernetes.io/host-path,volume_mode=Filesystem} 1",
			"pv_collector_unbound_pv_count{storage_class=waits} 1",
			"pv_collector_unbound_pvc_count{namespace=default,storage_class=at-once,volume_attributes_class=} 1",
			"pv_collector_unbound_pvc_count{namespace=default,storage_class=missing,volume_attributes_class=} 1",
			"pv_collector_unbound_pvc_count{namespace=default,storage_class=usual,volume_attributes_class=} 1",
			"retroactive_storageclass_errors_total{} 0", "retroactive_storageclass_total{} 1",
		},
		"prebound": {
			"pv_collector_bound_pv_count{storage_class=another} 1",
			"pv_collector_bound_pvc_count{namespace=default,storage_class=missing,volume_attributes_class=} 1",
			"pv_collector_total_pv_count{plugin_name=kubernetes.io/host-path,volume_mode=Filesystem} 1",
			"retroactive_storageclass_errors_total{} 0", "retroactive_storageclass_total{} 0",
		},
	} {
		t.Run(scenario, func(t *testing.T) {
			meters, from := controllertest.Meters(t)
			controllertest.Run(t, "testdata/"+scenario+".txtar", controllers.Options{Metrics: meters}, Controller())
			var got []string
			for _, prefix := range []string{"pv_collector_", "retroactive_", "volume_operation_"} {
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
