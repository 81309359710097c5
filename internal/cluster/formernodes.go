// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/agent/simulated"
	"github.com/mortise-dev/mortise/internal/apiserver"
)

// dropSimulatedNodes deletes the simulated nodes of an earlier start, for a start without any. Nobody renews their Leases, but the scheduler
// would place pods on them until the node lifecycle controller notices that. Servers that share a store keep them: they may be another
// server's.
func dropSimulatedNodes(ctx context.Context, server *apiserver.Server, log *slog.Logger) error {
	r := schema.GroupResource{Group: corev1.GroupName, Resource: "nodes"}
	all, err := server.Backend().List(ctx, r, "")
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	for _, obj := range all {
		if obj.GetLabels()[simulated.Label] != "true" || obj.GetAnnotations()[simulated.AnnotationInProcess] != "true" {
			continue
		}
		if err := server.Backend().Delete(ctx, r, "", obj.GetName(), nil); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete simulated node %s: %w", obj.GetName(), err)
		}
		log.InfoContext(ctx, "Deleted a simulated node of an earlier start", "node", obj.GetName())
	}
	return nil
}
