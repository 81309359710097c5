// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/servingkey"
	"github.com/mortise-dev/mortise/internal/version"
)

// leaseNamespace is where the node's heartbeat is.
const leaseNamespace = "kube-node-lease"

// readiness is why the node is not ready; empty when it is.
type readiness struct {
	reason    string
	unplugged bool // the runtime says that it has no network
}

// object is the Node as it should be; conditions of before keep their times.
func (n *node) object(old *corev1.Node) *corev1.Node {
	node := &corev1.Node{}
	if old != nil {
		node = old.DeepCopy()
	}
	node.Name = n.NodeName
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	maps.Copy(node.Labels, map[string]string{
		corev1.LabelHostname: n.NodeName, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
		"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
	})
	maps.Copy(node.Labels, n.Labels)
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	if *n.Kubelet.EnableControllerAttachDetach {
		node.Annotations["volumes.kubernetes.io/controller-managed-attach-detach"] = "true"
	}
	delete(node.Annotations, servingkey.Annotation)
	if key := servingkey.Published(n.TLS); key != "" {
		node.Annotations[servingkey.Annotation] = key
	}
	if old == nil {
		node.Spec.ProviderID, node.Spec.Taints = n.Kubelet.ProviderID, n.Kubelet.RegisterWithTaints
	}

	s := &node.Status
	s.Capacity, s.Allocatable, s.DeclaredFeatures = n.resources.Capacity(), n.resources.Allocatable(), kubeletconfig.Features(n.Kubelet)
	s.Addresses = nil
	for _, ip := range n.ips() {
		s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: n.NodeName})
	s.DaemonEndpoints.KubeletEndpoint.Port = n.port
	s.NodeInfo = corev1.NodeSystemInfo{
		MachineID: n.machine.MachineID, SystemUUID: n.machine.SystemUUID, BootID: n.machine.BootID,
		KernelVersion: n.machine.Kernel, OSImage: n.machine.OSImage,
		ContainerRuntimeVersion: n.cri.Name + "://" + strings.TrimPrefix(n.cri.Version, "v"),
		KubeletVersion:          version.Get().GitVersion, OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
	}
	if n.machine.Swap > 0 { // a capacity of nothing is refused
		s.NodeInfo.Swap = &corev1.NodeSwapStatus{Capacity: &n.machine.Swap}
	}
	n.setConditions(s)
	n.mu.Lock()
	s.Images = slices.Clone(n.listed)
	s.RuntimeHandlers, s.Features = slices.Clone(n.handlers), &corev1.NodeFeatures{SupplementalGroupsPolicy: new(n.strictGroups)}
	n.mu.Unlock()
	return node
}

// setConditions looks at the machine and the runtime.
func (n *node) setConditions(s *corev1.NodeStatus) {
	now := metav1.NewTime(n.Clock.Now()).Rfc3339Copy()
	set := func(t corev1.NodeConditionType, status bool, yesReason, yesMessage, noReason, noMessage string) {
		c := corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse, Reason: noReason, Message: noMessage, LastHeartbeatTime: now, LastTransitionTime: now}
		if status {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, yesReason, yesMessage
		}
		for i := range s.Conditions {
			if s.Conditions[i].Type == t {
				if s.Conditions[i].Status == c.Status {
					c.LastTransitionTime = s.Conditions[i].LastTransitionTime
				}
				s.Conditions[i] = c
				return
			}
		}
		s.Conditions = append(s.Conditions, c)
	}
	n.mu.Lock()
	short := slices.Clone(n.pressure.conditions)
	n.mu.Unlock()
	set(corev1.NodeMemoryPressure, slices.Contains(short, corev1.NodeMemoryPressure), "KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "KubeletHasSufficientMemory", "kubelet has sufficient memory available")
	set(corev1.NodeDiskPressure, slices.Contains(short, corev1.NodeDiskPressure), "KubeletHasDiskPressure", "kubelet has disk pressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
	set(corev1.NodePIDPressure, slices.Contains(short, corev1.NodePIDPressure), "KubeletHasInsufficientPID", "kubelet has insufficient PID available", "KubeletHasSufficientPID", "kubelet has sufficient PID available")
	n.mu.Lock()
	why := n.ready.reason
	if n.leaving {
		why = shutdownReason
	}
	n.mu.Unlock()
	set(corev1.NodeReady, why == "", "KubeletReady", "kubelet is posting ready status", "KubeletNotReady", why)
}

// askRuntime finds out whether the runtime and its network are ready. It returns whether
// that has changed.
func (n *node) askRuntime(ctx context.Context) bool {
	var problems []string
	unplugged := false
	resp, err := n.cri.Runtime.Status(cri.Quiet(ctx), false)
	if ctx.Err() != nil {
		return false
	}
	switch {
	case err != nil:
		problems = append(problems, "container runtime status check may not have completed yet: "+cri.Message(err))
	default:
		seen := map[string]*runtimeapi.RuntimeCondition{}
		for _, c := range resp.GetStatus().GetConditions() {
			seen[c.Type] = c
		}
		for _, want := range []struct{ kind, text string }{{runtimeapi.RuntimeReady, "container runtime not ready"}, {runtimeapi.NetworkReady, "container runtime network not ready"}} {
			switch c := seen[want.kind]; {
			case c == nil:
				problems = append(problems, fmt.Sprintf("%s: %s not reported", want.text, want.kind))
			case !c.Status:
				unplugged = unplugged || want.kind == runtimeapi.NetworkReady
				problems = append(problems, fmt.Sprintf("%s: %s=false reason:%s message:%s", want.text, c.Type, c.Reason, c.Message))
			}
		}
	}
	if n.wantsRange() {
		problems = append(problems, "container runtime network not ready: the node has no podCIDR yet")
	}
	images := n.images.List(ctx)
	why := strings.Join(problems, ", ")
	n.mu.Lock()
	defer n.mu.Unlock()
	if images != nil {
		n.listed = images
	}
	if err == nil {
		n.handlers, n.able, n.strictGroups = nil, resp.GetRuntimeHandlers(), resp.GetFeatures().GetSupplementalGroupsPolicy()
		for _, h := range n.able {
			// Recursive read-only mounts are not the node's, whatever the runtime can.
			n.handlers = append(n.handlers, corev1.NodeRuntimeHandler{Name: h.Name, Features: &corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: new(false), UserNamespaces: new(h.GetFeatures().GetUserNamespaces())}})
		}
	}
	changed := n.ready.reason != why
	n.ready.reason, n.ready.unplugged = why, unplugged
	return changed
}

// networkReady says whether pods with a network of their own can be made.
func (n *node) networkReady() (bool, string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ready.reason == "", n.ready.reason
}

// register makes the Node, or takes over the one that is there.
func (n *node) register(ctx context.Context) error {
	n.askRuntime(ctx)
	nodes := n.client.CoreV1().Nodes()
	made, err := (*corev1.Node)(nil), error(nil)
	if *n.Kubelet.RegisterNode {
		made, err = nodes.Create(ctx, n.object(nil), metav1.CreateOptions{})
	} else if made, err = nodes.Get(ctx, n.NodeName, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return nil // somebody else is to make it; heartbeats look for it
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("register node %s: %w", n.NodeName, err)
	}
	if err == nil {
		n.Logger.Info("node registered", "node", n.NodeName)
	} else {
		made, err = nodes.Get(ctx, n.NodeName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("find node %s: %w", n.NodeName, err)
		}
	}
	if err := n.network(ctx, made); err != nil {
		return err
	}
	if err := n.writeNode(ctx, made, true); err != nil {
		return err
	}
	return n.renewLease(ctx)
}

// wantsRange says whether the node waits for the range of its pods' addresses. Until then a configuration that is there, if it is ours, is of
// another node or of an earlier one: pods that got addresses of it would lose their gateway when the right one comes.
func (n *node) wantsRange() bool {
	return n.PodCIDR == "" && n.CNIConfDir != "-" && n.installed == nil && cni.Other(n.CNIConfDir) == ""
}

// network installs the pod network that the API server has given to the node, if it has
// none of its own.
func (n *node) network(ctx context.Context, node *corev1.Node) error {
	if n.PodCIDR != "" {
		return nil
	}
	cidrs := node.Spec.PodCIDRs
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs = []string{node.Spec.PodCIDR}
	}
	if len(cidrs) == 0 || slices.Equal(cidrs, n.installed) {
		return nil
	}
	if err := n.installCNI(false, cidrs...); err != nil {
		return err
	}
	n.installed = cidrs
	n.askRuntime(ctx)
	return nil
}

// remind writes the configuration of the pod network again where the runtime still says that it has none. A runtime watches the directory,
// and may miss a change: without another it would never look again. The configuration may also have been removed.
func (n *node) remind() {
	n.mu.Lock()
	unplugged := n.ready.unplugged
	n.mu.Unlock()
	cidrs := n.installed
	if n.PodCIDR != "" {
		cidrs = []string{n.PodCIDR}
	}
	if !unplugged || len(cidrs) == 0 {
		return
	}
	if err := n.installCNI(true, cidrs...); err != nil {
		n.Logger.Error("remind the runtime of the pod network", "err", err)
	}
}

// writeNode writes labels and status where they differ from what is there.
func (n *node) writeNode(ctx context.Context, have *corev1.Node, heartbeat bool) error {
	want := n.object(have)
	if !equality.Semantic.DeepEqual(have.Labels, want.Labels) || !equality.Semantic.DeepEqual(have.Annotations, want.Annotations) {
		annotations := map[string]any{}
		for name := range have.Annotations {
			annotations[name] = nil // unless it is wanted
		}
		for name, value := range want.Annotations {
			annotations[name] = value
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": want.Labels, "annotations": annotations}})
		if err != nil {
			return fmt.Errorf("encode node's labels: %w", err)
		}
		if _, err := n.client.CoreV1().Nodes().Patch(ctx, n.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("label node %s: %w", n.NodeName, err)
		}
	}
	if !heartbeat && sameStatus(have.Status, want.Status) {
		return nil
	}
	before, err := json.Marshal(corev1.Node{Status: have.Status})
	if err != nil {
		return fmt.Errorf("encode node's status: %w", err)
	}
	after, err := json.Marshal(corev1.Node{Status: want.Status})
	if err != nil {
		return fmt.Errorf("encode node's status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Node{})
	if err != nil {
		return fmt.Errorf("compare node's status: %w", err)
	}
	if patch, err = replaceAddresses(patch, have.Status.Addresses, want.Status.Addresses); err != nil {
		return err
	}
	if string(patch) == "{}" {
		return nil
	}
	if _, err := n.client.CoreV1().Nodes().Patch(ctx, n.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("write status of node %s: %w", n.NodeName, err)
	}
	return nil
}

// sameStatus compares without the times of heartbeats.
func sameStatus(a, b corev1.NodeStatus) bool {
	strip := func(s corev1.NodeStatus) corev1.NodeStatus {
		s = *s.DeepCopy()
		for i := range s.Conditions {
			s.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
		return s
	}
	return equality.Semantic.DeepEqual(strip(a), strip(b))
}

// heartbeat renews the lease (every ten seconds if nothing else was said), and writes the status when it has changed
// or has not been written for long (five minutes). What fails is said and tried again with the next beat.
func (n *node) heartbeat(ctx context.Context) error {
	ticker, renew := n.Clock.NewTicker(n.Kubelet.NodeStatusUpdateFrequency.Duration), n.Clock.NewTicker(n.renewal())
	defer ticker.Stop()
	defer renew.Stop()
	written := n.Clock.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-renew.C():
			if err := n.renewLease(ctx); err != nil && ctx.Err() == nil {
				n.Logger.Error("heartbeat", "err", err)
			}
			continue
		case <-ticker.C():
			n.remind()
			n.askRuntime(ctx)
		case <-n.changed:
			n.askRuntime(ctx)
		}
		due := n.Clock.Since(written) >= n.Kubelet.NodeStatusReportFrequency.Duration
		have, err := n.client.CoreV1().Nodes().Get(ctx, n.NodeName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			err = n.register(ctx)
		} else if err == nil {
			err = errors.Join(n.network(ctx, have), n.writeNode(ctx, have, due))
		}
		if err != nil {
			if ctx.Err() == nil {
				n.Logger.Error("node status", "err", err)
			}
			continue
		}
		if due {
			written = n.Clock.Now()
		}
	}
}

// renewLease says that the node is alive.
func (n *node) renewLease(ctx context.Context) error {
	leases := n.client.CoordinationV1().Leases(leaseNamespace)
	now := metav1.NewMicroTime(n.Clock.Now())
	seconds := n.Kubelet.NodeLeaseDurationSeconds
	lease, err := leases.Get(ctx, n.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease = &coordinationv1.Lease{}
		lease.Name, lease.Namespace = n.NodeName, leaseNamespace
		if node, err := n.client.CoreV1().Nodes().Get(ctx, n.NodeName, metav1.GetOptions{}); err == nil {
			lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.NodeName, UID: node.UID}}
		}
		lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &n.NodeName, LeaseDurationSeconds: &seconds, RenewTime: &now}
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) {
			// The namespace is not there yet; whoever makes namespaces makes it.
			return nil
		}
	} else if err == nil {
		lease = lease.DeepCopy()
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &n.NodeName, &seconds, &now
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renew lease of node %s: %w", n.NodeName, err)
	}
	return nil
}
