// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetesservice

import (
	"net/netip"
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{Cluster: controllers.Cluster{
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"), AdvertiseAddress: netip.MustParseAddr("192.0.2.7"),
	}}, Controller())
}
