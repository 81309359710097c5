// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicetaint

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// counts are the numbers in a rule's status.
type counts struct {
	pods, namespaces     int // that are to be evicted, or would be
	published, allocated int // devices that the rule selects
	evicted              int
}

func (c *controller) syncRule(ctx context.Context, ruleName string) error {
	rule, err := c.rules.Get(ruleName)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get rule: %w", err)
	}
	var was metav1.Condition
	now := metav1.NewTime(c.clock.Now())
	if at := slices.IndexFunc(rule.Status.Conditions, func(
		c metav1.Condition) bool {
		return c.Type == resourcev1.DeviceTaintConditionEvictionInProgress
	}); at >= 0 {
		was = rule.Status.Conditions[at]
		if since := now.Sub(was.LastTransitionTime.Time); was.ObservedGeneration == rule.Generation && since < statusPeriod {
			c.queue.AddAfter(key{true, controllers.Key(rule)}, statusPeriod-since)
			return nil
		}
	}
	n, err := c.count(rule)
	if err != nil {
		return err
	}
	is := condition(rule, n)
	if is.LastTransitionTime = was.LastTransitionTime; is == was {
		return nil
	}
	is.LastTransitionTime = now
	err = controllers.Apply(ctx, c.client.ResourceV1().DeviceTaintRules().Patch, name, controllers.Applied{
		Kind: resourcev1.SchemeGroupVersion.WithKind("DeviceTaintRule"), Name: rule.Name, UID: rule.UID,
		Fields: map[string]any{"status": resourcev1.DeviceTaintRuleStatus{Conditions: []metav1.Condition{is}}},
	}, "status")
	if err != nil {
		return fmt.Errorf("write the rule's status: %w", err)
	}
	if n.pods > 0 && rule.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNoExecute {
		c.queue.AddAfter(key{true, controllers.Key(rule)}, statusPeriod)
	}
	return nil
}

// count counts what a rule selects. It treats the effect None as NoExecute.
func (c *controller) count(rule *resourcev1.DeviceTaintRule) (counts, error) {
	c.mu.Lock()
	n := counts{evicted: c.evicted[rule.UID]}
	c.mu.Unlock()
	if rule.Spec.Taint.Effect != resourcev1.DeviceTaintEffectNoExecute && rule.Spec.Taint.Effect != resourcev1.DeviceTaintEffectNone {
		return n, nil
	}
	v, err := c.view()
	if err != nil {
		return n, err
	}
	acting := rule.DeepCopy()
	acting.Spec.Taint.Effect = resourcev1.DeviceTaintEffectNoExecute
	v.rules = []*resourcev1.DeviceTaintRule{acting}
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return n, fmt.Errorf("list pods: %w", err)
	}
	namespaces := map[string]bool{}
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil || len(pod.Spec.ResourceClaims) == 0 {
			continue
		}
		if _, by := v.eviction(pod); len(by) > 0 {
			n.pods++
			namespaces[pod.Namespace] = true
		}
	}
	n.namespaces = len(namespaces)
	if rule.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNone {
		err = c.countDevices(rule, v, &n)
	}
	return n, err
}

func (c *controller) countDevices(rule *resourcev1.DeviceTaintRule, v view, n *counts) error {
	for _, obj := range c.slices.List() {
		s, ok := obj.(*resourcev1.ResourceSlice)
		if !ok || slices.ContainsFunc(v.pool(s.Spec.Driver, s.Spec.Pool.Name),
			func(o *resourcev1.ResourceSlice) bool { return o.Spec.Pool.Generation > s.Spec.Pool.Generation }) {
			continue
		}
		for i := range s.Spec.Devices {
			if selects(rule, s.Spec.Driver, s.Spec.Pool.Name, s.Spec.Devices[i].Name) {
				n.published++
			}
		}
	}
	claims, err := c.claims.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list claims: %w", err)
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if selects(rule, r.Driver, r.Pool, r.Device) {
				n.allocated++
			}
		}
	}
	return nil
}

// condition returns the condition for a rule's progress, with upstream's message.
func condition(rule *resourcev1.DeviceTaintRule, n counts) metav1.Condition {
	is := metav1.Condition{Type: resourcev1.DeviceTaintConditionEvictionInProgress, Status: metav1.ConditionFalse,
		ObservedGeneration: rule.Generation}
	number := func(n int, one, more string) string {
		if n == 1 {
			return "1 " + one
		}
		return fmt.Sprintf("%d %s", n, more)
	}
	var words []string
	switch rule.Spec.Taint.Effect {
	case resourcev1.DeviceTaintEffectNoExecute:
		switch {
		case n.pods > 0:
			is.Reason, is.Status = "PodsPendingEviction", metav1.ConditionTrue
			words = append(words, number(n.pods, "pod needs", "pods need")+" to be evicted in "+
				number(n.namespaces, "namespace", "different namespaces")+".")
		case n.evicted > 0:
			is.Reason = "Completed"
		default:
			is.Reason = "NotStarted"
		}
	case resourcev1.DeviceTaintEffectNone:
		is.Reason = "NoEffect"
		words = append(words, number(n.published, "published device", "published devices")+" selected.",
			number(n.allocated, "allocated device", "allocated devices")+" selected.",
			number(n.pods, "pod", "pods")+" would be evicted in "+number(n.namespaces, "namespace", "different namespaces")+
				" if the effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.")
	default:
		is.Reason = "OtherEffect"
		words = append(words, "Eviction only happens for the NoExecute effect.")
	}
	if n.evicted > 0 {
		words = append(words, number(n.evicted, "pod", "pods")+" evicted since starting the controller.")
	}
	is.Message = strings.Join(words, " ")
	return is
}
