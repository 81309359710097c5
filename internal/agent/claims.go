// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
	"github.com/mortise-dev/mortise/internal/agent/dra"
)

// openClaims reads the claims that a former process has prepared.
func (n *node) openClaims() (err error) {
	on := func(gate string) bool { return componentconfig.GateOn(n.Kubelet.FeatureGates, gate) }
	n.claims, err = dra.New(dra.Options{
		Dir: n.Host.RootDir, BootID: n.settings.bootID, API: claimAPI{n.client, n.NodeName}, Pods: n.workers,
		SkipOperations: on("DRAOptionalNodeOperations"), PodGroups: on("DRAWorkloadResourceClaims"),
		NoHealth: !on("ResourceHealthStatus"), NoMessages: !on("ResourceHealthStatusMessage"),
		Ledger: n.Ledger, Metrics: n.Metrics.claims, Clock: n.Clock, Logger: n.Logger,
	})
	return err
}

// claimAPI is the API server as resource claims need it.
type claimAPI struct {
	client kubernetes.Interface
	node   string
}

// ResourceClaim implements [dra.API].
func (a claimAPI) ResourceClaim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return a.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// DeleteSlices implements [dra.API].
func (a claimAPI) DeleteSlices(ctx context.Context, driver string) error {
	selected := fields.Set{resourceapi.ResourceSliceSelectorNodeName: a.node}
	if driver != "" {
		selected[resourceapi.ResourceSliceSelectorDriver] = driver
	}
	list := metav1.ListOptions{FieldSelector: selected.String()}
	return a.client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, list)
}
