// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// consumer owns the status of flow schemas.
const consumer = "api-priority-and-fairness-config-consumer-v1"

// flowSchema sets the condition Dangling of a flow schema, by whether its priority level exists.
func (k *Reconciler) flowSchema(ctx context.Context, b Backend, name string) error {
	obj, err := b.Get(ctx, flowSchemas, "", name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	s, ok := obj.(*flowcontrolv1.FlowSchema)
	if !ok {
		return fmt.Errorf("keep flow schema: %T is none", obj)
	}
	level := s.Spec.PriorityLevelConfiguration.Name
	_, err = b.Get(ctx, priorityLevels, "", level)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	status, reason, end := flowcontrolv1.ConditionFalse, "Found", "and it exists"
	if err != nil {
		status, reason, end = flowcontrolv1.ConditionTrue, "NotFound", "but there is no such object"
	}
	message := fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q %s", level, end)
	for _, c := range s.Status.Conditions {
		if c.Type == flowcontrolv1.FlowSchemaConditionDangling && c.Status == status && c.Reason == reason && c.Message == message {
			return nil
		}
	}
	err = b.ApplyStatus(ctx, flowSchemas, "", name, consumer, map[string]any{"conditions": []any{map[string]any{
		"type": string(flowcontrolv1.FlowSchemaConditionDangling), "status": string(status), "reason": reason, "message": message,
		"lastTransitionTime": k.now().UTC().Format(time.RFC3339),
	}}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// enqueueFlowSchemas enqueues the flow schemas that match.
func (k *Reconciler) enqueueFlowSchemas(ctx context.Context, b Backend, match func(*flowcontrolv1.FlowSchema) bool) error {
	all, err := b.List(ctx, flowSchemas, "")
	if apierrors.IsNotFound(err) {
		return nil // a server without flow schemas
	} else if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, obj := range all {
		if s, ok := obj.(*flowcontrolv1.FlowSchema); ok && match(s) {
			k.add(key{flowSchemas, s.Name})
		}
	}
	return nil
}
