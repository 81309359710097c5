// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package clusterdoctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// uninitialized is the taint of nodes that no cloud's controller manager has initialized.
const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

// cloudLease is the name of the Lease by which cloud controller managers elect their leader.
const cloudLease = "cloud-controller-manager"

// checkClouds finds nodes that wait for a cloud's controller manager, and pods of it or of the network that wait for these nodes.
func checkClouds(ctx context.Context, e *examination) ([]Finding, error) {
	nodes, err := e.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods, err := e.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Pending"})
	if err != nil {
		return nil, err
	}
	lease, err := e.client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, cloudLease, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	return diagnoseStart(nodes.Items, pods.Items, lease, e.clock.Now()), nil
}

// diagnoseStart finds what keeps nodes from starting, from the pending pods and the Lease of the cloud's
// controller manager, or nil.
func diagnoseStart(nodes []corev1.Node, pods []corev1.Pod, lease *coordinationv1.Lease, now time.Time) (out []Finding) {
	var waiting, unready, forgotten []string
	initialized := 0
	for i := range nodes {
		n := &nodes[i]
		tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == uninitialized })
		switch {
		case tainted:
			waiting = append(waiting, n.Name)
		case n.Spec.ProviderID != "":
			initialized++
		default:
			forgotten = append(forgotten, n.Name)
		}
		if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			unready = append(unready, n.Name)
		}
	}
	running := lease != nil && beats(lease, now)
	if len(waiting) > 0 {
		s := Finding{State: Wrong,
			What: fmt.Sprintf("%s: the taint %s, which a cloud's controller manager removes", some(waiting), uninitialized),
			Do:   "start the cloud's controller manager; without a cloud, start nodes without --cloud-provider external and remove the taint"}
		if running {
			s.Do = "its controller manager runs: see what it logs about these nodes"
		}
		out = append(out, s)
	}
	if (running || initialized > 0 || len(waiting) > 0) && len(forgotten) > 0 {
		out = append(out, Finding{State: Wrong,
			What: fmt.Sprintf("%s: neither a providerID nor the taint %s, so that no controller manager initializes them", some(forgotten), uninitialized),
			Do:   "start the nodes with --cloud-provider external, and delete their Nodes so that they register again"})
	}
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.NodeName != "" || !isEssential(pod) {
			continue
		}
		var missing []string
		if len(waiting) > 0 && !tolerates(pod, corev1.Taint{Key: uninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule}) {
			missing = append(missing, uninitialized)
		}
		if len(unready) > 0 && !tolerates(pod, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}) {
			missing = append(missing, corev1.TaintNodeNotReady)
		}
		if len(missing) > 0 {
			out = append(out, Finding{State: Wrong,
				What: fmt.Sprintf("pod %s/%s, which nodes need to start, waits for a node to start: it does not tolerate %s", pod.Namespace, pod.Name,
					strings.Join(missing, " and ")),
				Do: "add the tolerations to its DaemonSet or Deployment"})
		}
	}
	return out
}

// beats reports whether the holder of a lease has renewed it in time.
func beats(lease *coordinationv1.Lease, now time.Time) bool {
	s := lease.Spec
	return s.HolderIdentity != nil && *s.HolderIdentity != "" && s.RenewTime != nil && s.LeaseDurationSeconds != nil &&
		now.Before(s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds)*time.Second))
}

// isEssential reports whether nodes may need a pod to start: it uses the host's network, as network plug-ins and controller managers do
// before there is one, or has the priority of node-critical pods, or the name of a cloud's controller manager.
func isEssential(pod *corev1.Pod) bool {
	return pod.Spec.HostNetwork || pod.Spec.PriorityClassName == "system-node-critical" || strings.Contains(pod.Name, "cloud-controller")
}

func tolerates(pod *corev1.Pod, taint corev1.Taint) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return (t.Effect == "" || t.Effect == taint.Effect) && (t.Key == "" && t.Operator == corev1.TolerationOpExists || t.Key == taint.Key) &&
			(t.Operator == corev1.TolerationOpExists || t.Value == taint.Value)
	})
}

// some returns the first names of a list.
func some(names []string) string {
	const shown = 3
	slices.Sort(names)
	if len(names) <= shown {
		return "node " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("node %s and %d others", strings.Join(names[:shown], ", "), len(names)-shown)
}
