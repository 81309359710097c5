// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetesservice

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

var cluster = controllers.Cluster{
	ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"), AdvertiseAddress: netip.MustParseAddr("192.0.2.7"),
}

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{Cluster: cluster}, Controller())
}

// TestSharedStore has scenarios of a server that is not alone.
func TestSharedStore(t *testing.T) {
	shared := cluster
	shared.Servers = growing{}
	controllertest.Run(t, "testdata/shared/*.txtar", controllers.Options{Cluster: shared}, Controller())
}

// growing are two servers, and three after 5 s.
type growing struct{}

func (growing) Hold(ctx context.Context, own netip.Addr, changed func([]netip.Addr)) {
	all := []netip.Addr{own, netip.MustParseAddr("192.0.2.9")}
	changed(all)
	select {
	case <-time.After(5 * time.Second):
		changed(append(all[:2:2], netip.MustParseAddr("fd00::1")))
	case <-ctx.Done():
	}
	<-ctx.Done()
}
