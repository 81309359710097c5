// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// ledgerDriver is a driver whose publications are entered in a ledger, as the node enters all calls.
type ledgerDriver struct {
	*fakeDriver
	ledger *extension.Ledger
}

func (d *ledgerDriver) Node(string) (csipb.NodeClient, error) { return d, nil }

func (d *ledgerDriver) NodePublishVolume(
	ctx context.Context, r *csipb.NodePublishVolumeRequest, o ...grpc.CallOption,
) (out *csipb.NodePublishVolumeResponse, err error) {
	ref := extension.Ref{Point: extension.StorageDriver, Name: "d.example.com"}
	err = d.ledger.Call(extension.Calling(ctx, "NodePublishVolume"), ref, extension.Policy{}, func(ctx context.Context) error {
		out, err = d.fakeDriver.NodePublishVolume(ctx, r, o...)
		return err
	})
	return out, err
}

// A call is a span of the pod for which it is made, and of the volume.
func TestSpansOfPodAndVolume(t *testing.T) {
	d := &ledgerDriver{newDriver(), extension.NewLedger(clock.RealClock{})}
	m, sources, _, _ := volumetest.New(t, func(host *volumes.Host) volumes.Plugin {
		plugin := d.factory(host)
		host.Drivers = d
		return plugin
	})
	sources.PV = persistentVolume()
	pod := podOf("u")
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	for of, spans := range map[string][]extension.Span{
		"pod": d.ledger.Spans(pod.Namespace, pod.Name), "volume": d.ledger.SpansOfVolume("pv"),
	} {
		if len(spans) != 1 || spans[0].Method != "NodePublishVolume" {
			t.Errorf("spans of the %s: %+v, want one publication", of, spans)
		}
	}
}
