// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// growing are sources with a claim that has grown.
type growing struct {
	*volumetest.Sources
	claim *corev1.PersistentVolumeClaim
}

func (g *growing) Claim(context.Context, string, string) (*corev1.PersistentVolumeClaim, error) {
	return g.claim.DeepCopy(), nil
}

// PatchClaimStatus keeps the patches, and changes nothing.
func (g *growing) PatchClaimStatus(_ context.Context, _, _ string, patch []byte) (*corev1.PersistentVolumeClaim, error) {
	g.claim.Annotations["patches"] += string(patch) + "\n"
	return g.claim.DeepCopy(), nil
}

// A volume is expanded when it is published, and while it is in use, and the claim's status shows the outcome.
func TestExpand(t *testing.T) {
	size := func(s string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(s)}
	}
	for name, c := range map[string]struct {
		state    corev1.ClaimResourceStatus
		err      error
		calls    int
		patches  []string
		fails    string
		atOnline bool
		asked    string // the storage that the claim requests; empty: none
		failed   bool   // the node has failed before
	}{
		"old controller": {calls: 1, patches: []string{`"capacity":{"storage":"2Gi"}`}},
		"recovers": {state: corev1.PersistentVolumeClaimNodeResizePending, calls: 1, patches: []string{
			`"allocatedResourceStatuses":{"storage":"NodeResizeInProgress"}`, `"capacity":{"storage":"2Gi"}`,
		}},
		"controller is busy": {state: corev1.PersistentVolumeClaimControllerResizeInProgress},
		"infeasible": {
			state: corev1.PersistentVolumeClaimNodeResizePending, err: status.Error(codes.OutOfRange, "too much"), calls: 1,
			patches: []string{"NodeResizeInProgress", `NodeResizeInfeasible`},
			fails: `MountVolume.Setup failed while expanding volume for volume "pv" : Expander.NodeExpand failed to expand the volume : ` +
				`rpc error: code = OutOfRange desc = too much (CSI driver d.example.com)`,
		},
		"failed, the claim the same": {
			state: corev1.PersistentVolumeClaimNodeResizeInProgress, err: errInternal, calls: 1, asked: "2Gi", failed: true,
			fails: `MountVolume.Setup failed while expanding volume for volume "pv" : Expander.NodeExpand failed to expand the volume : ` +
				`rpc error: code = Internal desc = no luck (CSI driver d.example.com)`,
		},
		"failed, the claim smaller": {
			state: corev1.PersistentVolumeClaimNodeResizeInProgress, err: errInternal, calls: 1, asked: "1536Mi", failed: true,
			patches: []string{`NodeResizeInfeasible`},
			fails: `MountVolume.Setup failed while expanding volume for volume "pv" : Expander.NodeExpand failed to expand the volume : ` +
				`rpc error: code = Internal desc = no luck (CSI driver d.example.com)`,
		},
		"in use": {state: corev1.PersistentVolumeClaimNodeResizePending, err: status.Error(codes.FailedPrecondition, "in use"), calls: 1,
			patches: []string{"NodeResizeInProgress", `"type":"NodeResizeError"`}},
		"online": {calls: 1, atOnline: true, patches: []string{`"capacity":{"storage":"2Gi"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDriver()
			m, sources, _ := machine(t, d, persistentVolume(corev1.ReadWriteOnce))
			g := &growing{sources, &corev1.PersistentVolumeClaim{}}
			g.claim.Annotations = map[string]string{}
			g.claim.Spec.VolumeName = "pv"
			g.claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size("1Gi")}
			if c.asked != "" {
				g.claim.Spec.Resources.Requests = size(c.asked)
			}
			if c.failed {
				g.claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{
					Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue,
				}}
			}
			m.Sources, m.Claims = g, g
			var events []string
			m.Event = func(_ runtime.Object, _, reason, _ string) { events = append(events, reason) }
			grow := func() {
				sources.PV.Spec.Capacity = size("2Gi")
				if c.state != "" {
					g.claim.Status.AllocatedResources = size("2Gi")
					g.claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: c.state}
				}
			}
			if !c.atOnline {
				grow()
			}
			d.fail["expand"] = c.err
			set := func() error { return m.SetUp(t.Context(), podOf(types.UID("u")), nil) }
			err := set()
			if c.atOnline {
				grow()
				err = set()
			}
			if c.fails == "" && err != nil || c.fails != "" && (err == nil || err.Error() != c.fails) {
				t.Errorf("error %v, want %s", err, c.fails)
			}
			calls := 0
			for _, call := range d.calls {
				if call == "expand" {
					calls++
				}
			}
			patches := strings.Split(strings.TrimSpace(g.claim.Annotations["patches"]), "\n")
			if c.patches == nil {
				patches = nil
			}
			if calls != c.calls || !slices.EqualFunc(patches, c.patches, strings.Contains) {
				t.Errorf("%d calls, patches %q", calls, patches)
			}
			if c.err == nil && c.calls > 0 && !slices.Equal(events, []string{resizeDone, resizeDone}) {
				t.Errorf("events %q", events)
			}
		})
	}
}
