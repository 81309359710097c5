// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Controller())
}

// TestMeters: one of three nodes of a zone is emptied, and the numbers say so until the nodes are gone.
func TestMeters(t *testing.T) {
	metrics, counted := controllertest.Meters(t)
	for _, c := range []struct {
		scenario string
		want     []string
	}{
		{"testdata/meters/lost.txtar", []string{
			"evictions_total{zone=:\x00:z} 1", "unhealthy_nodes_in_zone{zone=:\x00:z} 1", "zone_health{zone=:\x00:z} 50",
			"zone_size{zone=:\x00:z} 2",
		}},
		{"testdata/meters/gone.txtar", []string{
			"evictions_total{zone=:\x00:z} 1", "unhealthy_nodes_in_zone{zone=:\x00:z} 0", "zone_health{zone=:\x00:z} 100",
			"zone_size{zone=:\x00:z} 0",
		}},
	} {
		controllertest.Run(t, c.scenario, controllers.Options{Metrics: metrics}, Controller())
		got := slices.DeleteFunc(controllertest.Counted(t, counted, "node_collector_"),
			func(line string) bool { return strings.HasPrefix(line, "update_") })
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.scenario, diff)
		}
	}
}
