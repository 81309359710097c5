// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"
)

// lease is the node's heartbeat.
type lease struct {
	client  kubernetes.Interface
	clock   clock.PassiveClock
	node    string
	seconds int32 // until the control plane considers the node dead
}

// renew renews the lease. Another part of the node renews it too, while it announces addresses: a conflict means that it just did.
func (l *lease) renew(ctx context.Context) error {
	err := l.update(ctx)
	if apierrors.IsConflict(err) {
		err = l.update(ctx)
	}
	return err
}

func (l *lease) update(ctx context.Context) error {
	leases := l.client.CoordinationV1().Leases(leaseNamespace)
	now := metav1.NewMicroTime(l.clock.Now())
	have, err := leases.Get(ctx, l.node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		have = &coordinationv1.Lease{}
		have.Name, have.Namespace = l.node, leaseNamespace
		if node, err := l.client.CoreV1().Nodes().Get(ctx, l.node, metav1.GetOptions{}); err == nil {
			have.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: l.node, UID: node.UID}}
		}
		have.Spec = coordinationv1.LeaseSpec{HolderIdentity: &l.node, LeaseDurationSeconds: &l.seconds, RenewTime: &now}
		_, err = leases.Create(ctx, have, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) {
			// The namespace does not exist yet; the API server creates it.
			return nil
		}
	} else if err == nil {
		have = have.DeepCopy()
		have.Spec.HolderIdentity, have.Spec.LeaseDurationSeconds, have.Spec.RenewTime = &l.node, &l.seconds, &now
		_, err = leases.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renew lease of node %s: %w", l.node, err)
	}
	return nil
}

// renewal returns the interval between renewals: a quarter of the lease's duration.
func renewal(k *configv1beta1.KubeletConfiguration) time.Duration {
	return time.Duration(k.NodeLeaseDurationSeconds) * time.Second / 4
}
