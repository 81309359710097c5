// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// uninitialized is the taint of nodes that no cloud's controller manager has initialized.
const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

// cloudLease is the name of the Lease by which cloud controller managers elect their leader.
const cloudLease = "cloud-controller-manager"

// runClusterDoctor examines the start of a cluster's nodes: what waits for what.
func runClusterDoctor(ctx context.Context, p Program, args []string) int {
	f := pflag.NewFlagSet("doctor", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	f.SortFlags = false
	kubeconfig := f.String("kubeconfig", "", "File of the server's kubeconfig. Default: $KUBECONFIG, then ~/.kube/config.")
	output := f.StringP("output", "o", "", "Output format: json.")
	f.Usage = func() {
		fmt.Fprintf(f.Output(), `Usage: mortise doctor [flags]

Diagnoses a cluster whose nodes do not start: nodes that wait for a cloud's controller manager, and pods of it or of the network that wait
for these nodes. It changes nothing. Exit codes: 0 if nothing is wrong, 1 if something is, 2 if the command line is invalid. `+"`mortise node\ndoctor`"+` diagnoses a node.

%s`, f.FlagUsages())
	}
	if code, done := parse(p, f, "doctor", args); done {
		return code
	}
	if f.NArg() > 0 || *output != "" && *output != "json" {
		f.Usage()
		return 2
	}
	found, err := askCluster(ctx, *kubeconfig)
	if err != nil {
		return fail(p, err)
	}
	if *output == "json" {
		err = printJSON(p.Out, found)
	} else {
		err = printSymptoms(p.Out, found)
	}
	if err != nil {
		return fail(p, fmt.Errorf("write findings: %w", err))
	}
	if slices.ContainsFunc(found, func(s Symptom) bool { return s.State == "wrong" }) {
		return 1
	}
	return 0
}

// askCluster reads what diagnoseStart needs.
func askCluster(ctx context.Context, kubeconfig string) ([]Symptom, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.Timeout = 30 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Pending"})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	lease, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, cloudLease, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease, err = nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get lease of the cloud controller manager: %w", err)
	}
	return diagnoseStart(nodes.Items, pods.Items, lease, time.Now()), nil
}

// diagnoseStart finds what keeps nodes from starting. Pods are those that are pending; the lease is that of the cloud's
// controller manager, or nil.
func diagnoseStart(nodes []corev1.Node, pods []corev1.Pod, lease *coordinationv1.Lease, now time.Time) (out []Symptom) {
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
		s := Symptom{Check: "cloud", State: "wrong",
			What: fmt.Sprintf("%s: the taint %s, which a cloud's controller manager removes", some(waiting), uninitialized),
			Do:   "start the cloud's controller manager; without a cloud, start nodes without --cloud-provider external and remove the taint"}
		if running {
			s.Do = "its controller manager runs: see what it logs about these nodes"
		}
		out = append(out, s)
	}
	if (running || initialized > 0 || len(waiting) > 0) && len(forgotten) > 0 {
		out = append(out, Symptom{Check: "cloud", State: "wrong",
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
			out = append(out, Symptom{Check: "deadlock", State: "wrong",
				What: fmt.Sprintf("pod %s/%s, which nodes need to start, waits for a node to start: it does not tolerate %s", pod.Namespace, pod.Name,
					strings.Join(missing, " and ")),
				Do: "add the tolerations to its DaemonSet or Deployment"})
		}
	}
	if len(out) == 0 {
		out = append(out, Symptom{Check: "start", State: "ok", What: fmt.Sprintf("no node of %d waits for a cloud or for a pod that waits for it", len(nodes))})
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
