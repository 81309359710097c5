// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/internal/agent/csi"
	"github.com/mortise-dev/mortise/internal/agent/localstorage"
)

// openStorage makes what knows the CSI drivers, and gives it to the volumes.
func openStorage(n *node) error {
	n.volumes.Event = func(object runtime.Object, kind, reason, message string) {
		n.recorder.Event(object, kind, reason, message)
	}
	n.storage = csi.New(csi.Options{
		NodeName: n.NodeName, RootDir: n.Host.RootDir, UsualDir: n.Host.Links, Client: n.client, Pods: n.workers,
		Resync: func() { n.nodeStatus.Resync() }, Event: n.volumes.Event,
		Ledger: n.Ledger, Metrics: n.Metrics.storage, Clock: n.Clock, Logger: n.Logger,
	})
	n.storage.OnRegister(n.volumes.DriverRegistered)
	n.volumes.Drivers, n.volumes.Attachments = n.storage, n.storage.Attachments()
	n.volumes.Claims, n.volumes.Operations = claimStatus{n.client}, n.Metrics.storage
	n.volumes.NodeName, n.volumes.Expected = n.NodeName, n.Host.CSIDrivers
	if n.Host.LocalStorage != "" {
		n.local = localstorage.NewDeleter(localstorage.New(localstorage.Options{
			Dir: n.Host.LocalStorage, Root: n.Host.RootDir, NodeName: n.NodeName, Mounter: n.Host.Mounter, Logger: n.Logger,
		}), n.client)
	}
	return n.volumes.Restore()
}

// runLocalStorage runs the driver of local volumes, as soon as there is a Node that can name it. A node without it still runs its pods.
func runLocalStorage(ctx context.Context, local *localstorage.Deleter) error {
	if local == nil || !local.AwaitNode(ctx) {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return local.Driver.Run(ctx) })
	group.Go(func() error { return local.Run(ctx) })
	if err := group.Wait(); err != nil {
		local.Driver.Logger.Error("The driver of local storage has ended", "driver", localstorage.Name, "err", err)
	}
	return nil
}

// attachedVolumes is what the node's status knows of volumes. It passes newer Nodes on.
type attachedVolumes struct {
	*csi.Attachments
	local *localstorage.Deleter // nil: none
}

// Saw implements nodestatus.Volumes.
func (a attachedVolumes) Saw(node *corev1.Node) {
	a.Attachments.Saw(node)
	if a.local != nil {
		a.local.Saw(node)
	}
}

// claimStatus writes the status of claims.
type claimStatus struct{ client kubernetes.Interface }

// PatchClaimStatus implements volumes.Claims.
func (c claimStatus) PatchClaimStatus(ctx context.Context, namespace, name string, patch []byte) (*corev1.PersistentVolumeClaim, error) {
	return c.client.CoreV1().PersistentVolumeClaims(namespace).Patch(
		ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}
