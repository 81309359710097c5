// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"fmt"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

// liar is a driver that answers otherwise than it was asked, as the parameters of the class say.
type liar struct{ csipb.ControllerServer }

func (l liar) CreateVolume(ctx context.Context, q *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	answer, err := l.ControllerServer.CreateVolume(ctx, q)
	if err != nil {
		return nil, err
	}
	answer = proto.Clone(answer).(*csipb.CreateVolumeResponse)
	switch q.GetParameters()["lie"] {
	case "smaller":
		answer.Volume.CapacityBytes /= 2
	case "nameless":
		answer.Volume.VolumeId = ""
	case "shared":
		answer.Volume.VolumeId = "shared"
	}
	return answer, nil
}

func (l liar) ControllerPublishVolume(
	ctx context.Context, q *csipb.ControllerPublishVolumeRequest,
) (*csipb.ControllerPublishVolumeResponse, error) {
	if q.GetVolumeId() == "shared" { // the mock driver does not know it
		return &csipb.ControllerPublishVolumeResponse{}, nil
	}
	return l.ControllerServer.ControllerPublishVolume(ctx, q)
}

// A driver that creates volumes otherwise than it was asked. Claims that it cannot fulfil stay pending, with an event of its provisioner;
// two volumes with one handle are one volume, which is not attached to two nodes; claims of its other classes are bound.
func TestHostileDriver(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	mock := service.New(service.Config{DriverName: driverName})
	c.sidecars(c.serve(driver.CSIDriverServers{Controller: liar{mock}, Identity: mock, Node: mock}), "csi-attacher", "csi-provisioner")
	for _, lie := range []string{"smaller", "nameless", "shared"} {
		c.apply(fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %[1]s}
provisioner: %[2]s
parameters: {lie: %[1]s}
---
`, lie, driverName) + strings.Replace(claim(lie, "1Gi", ""), "mock", lie, 1))
	}
	c.heard("smaller", "ProvisioningFailed", func(message string) bool {
		return strings.Contains(message, "created volume capacity 536870912 less than requested capacity 1073741824")
	})
	if from := c.kubectl("get", "events", "--field-selector", "involvedObject.name=smaller,reason=ProvisioningFailed", "-o",
		"jsonpath={.items[0].source.component}"); !strings.HasPrefix(from, driverName) {
		t.Errorf("the event comes from %s", from)
	}

	c.apply(strings.Replace(claim("shared-too", "1Gi", ""), "mock", "shared", 1))
	c.wait("jsonpath={.status.phase}=Bound", "pvc/shared", "pvc/shared-too")
	c.apply(pod("first", "node-0", "shared"))
	c.wait("jsonpath={.status.volumesAttached[0].name}=kubernetes.io/csi/"+driverName+"^shared", "node/node-0")
	c.apply(pod("second", "node-1", "shared-too"))
	c.heard("second", "FailedAttachVolume", func(message string) bool { return strings.Contains(message, "already") })
	if got := c.kubectl("get", "volumeattachment", "-o", "jsonpath={.items[*].spec.nodeName}"); got != "node-0" {
		t.Errorf("the volume is attached to %s", got)
	}

	c.apply(claim("right", "1Gi", "") + "---\n" + pod("other", "node-1", "right"))
	c.wait("condition=Ready", "pod/other")

	// The API server refuses a volume without a handle; the stock provisioner tells that in its log alone.
	c.heard("nameless", "Provisioning", func(string) bool { return true })
	for _, lie := range []string{"smaller", "nameless"} {
		if got := c.kubectl("get", "pvc", lie, "-o", "jsonpath={.status.phase} {.spec.volumeName}"); got != "Pending" {
			t.Errorf("claim %s is %s", lie, got)
		}
		c.heard(lie, "ExternalProvisioning", func(message string) bool { return strings.Contains(message, "'"+driverName+"'") })
	}
	if got := c.kubectl("get", "pv", "-o", "jsonpath={.items[*].spec.claimRef.name}"); len(strings.Fields(got)) != 3 {
		t.Errorf("there are volumes for %s", got)
	}
}
