// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package clusterdoctor

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// simulated is the label of nodes without containers.
const simulated = "mortise.dev/simulated"

// checkNodes finds nodes that take no pods.
func checkNodes(ctx context.Context, e *examination) ([]Finding, error) {
	nodes, err := e.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	if len(nodes.Items) == 0 {
		return []Finding{{State: Wrong, What: "there is no node, so that no pod runs",
			Do: "mortise token create --print-join-command, and run what it prints on a machine; or mortise up without --node none"}}, nil
	}
	var out []Finding
	for _, n := range nodes.Items {
		ready := corev1.NodeCondition{Status: corev1.ConditionUnknown, Message: "the node has not reported yet"}
		for _, c := range n.Status.Conditions {
			switch {
			case c.Type == corev1.NodeReady:
				ready = c
			case c.Status == corev1.ConditionTrue && c.Type == corev1.NodeDiskPressure:
				out = append(out, Finding{State: Wrong, What: n.Name + " has little space on its disk: " + c.Message,
					Do: "on the node: df -h, and remove what is not needed; mortise kubectl describe node " + n.Name})
			case c.Status == corev1.ConditionTrue && (c.Type == corev1.NodeMemoryPressure || c.Type == corev1.NodePIDPressure):
				out = append(out, Finding{State: Wrong, What: n.Name + ": " + string(c.Type) + ": " + c.Message,
					Do: "mortise kubectl top pods -A --sort-by memory"})
			}
		}
		if ready.Status != corev1.ConditionTrue {
			out = append(out, Finding{State: Wrong, What: n.Name + " is not ready: " + ready.Message,
				Do: "on the node: systemctl start mortise-node, and mortise node doctor"})
		}
		if n.Spec.Unschedulable {
			out = append(out, Finding{State: Note, What: n.Name + " is cordoned", Do: "mortise kubectl uncordon " + n.Name})
		}
	}
	return out, nil
}

// checkDNS finds clusters with real nodes in which names of Services are not resolved.
func checkDNS(ctx context.Context, e *examination) ([]Finding, error) {
	_, err := e.client.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, "kube-dns", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return nil, err
	}
	nodes, err := e.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: simulated + "!=true"})
	if err != nil {
		return nil, err
	}
	if len(nodes.Items) == 0 {
		return []Finding{{State: OK, What: "no node runs containers, so that none is needed"}}, nil
	}
	return []Finding{{State: Wrong, What: "there is no Service kube-system/kube-dns: pods do not resolve names of Services",
		Do: "mortise token create --cluster-dns, which creates it; or install CoreDNS"}}, nil
}
