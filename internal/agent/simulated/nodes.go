// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/servingkey"
)

// leaseNamespace is the namespace of the nodes' Leases.
const leaseNamespace = "kube-node-lease"

// uninitialized is the taint of nodes that no cloud's controller manager has initialized.
const uninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

// reportEvery is the interval at which a node's conditions are written without a change.
const reportEvery = 5 * time.Minute

// node is one simulated node. Only the worker that took its name from the queue may use the fields below size.
type node struct {
	name     string
	index    int    // among all
	turn     int    // among its group
	group    *Group // nil for guests
	address  netip.Addr
	pool     *pool
	room     room
	meters   meters
	capacity corev1.ResourceList
	size     corev1.ResourceList // allocatable

	registered func() // signals that the Node object exists; it may be called repeatedly
	known      bool
	object     *corev1.Node
	lease      *coordinationv1.Lease
	reported   time.Time
}

// beatAll is one worker: it registers nodes and renews their Leases when they are due.
func (f *fleet) beatAll(ctx context.Context) {
	for {
		name, shutdown := f.due.Get()
		if shutdown {
			return
		}
		n := f.nodes.get(name)
		if n == nil { // a guest that is gone
			f.due.Forget(name)
			f.due.Done(name)
			continue
		}
		first := !n.known
		err := f.beat(ctx, n)
		f.due.Done(name)
		switch {
		case err != nil && ctx.Err() == nil:
			if n := f.due.NumRequeues(name); seldom(n) {
				f.log.Warn("Could not renew the Lease of a simulated node, retrying", "node", name, "error", err, "failures", n+1)
			}
			f.due.AddRateLimited(name)
		case first:
			f.due.Forget(name)
			n.registered()
			f.due.AddAfter(name, f.o.Heartbeat/2+f.o.Heartbeat/2*time.Duration(n.index%f.turns())/time.Duration(f.turns()))
		default:
			f.due.Forget(name)
			f.due.AddAfter(name, f.o.Heartbeat)
		}
	}
}

// seldom reports whether to log a failure after that many others in a row: the first, the second, and each that doubles their number.
func seldom(others int) bool { return others&(others-1) == 0 }

// together is about how many nodes send heartbeats at once: not all, which the server would feel, and not each alone, because many
// heartbeats share a wake-up of the CPU and a sync of the disk.
const together = 32

// turns returns the number of groups of nodes that send heartbeats one after the other.
func (f *fleet) turns() int { return min(max(f.own/together, 1), 16) }

func (f *fleet) beat(ctx context.Context, n *node) error {
	ctx = asNode(ctx, n.name)
	if !n.known {
		register := f.register
		if n.group == nil {
			register = f.welcome
		}
		if err := register(ctx, n); err != nil || n.object == nil {
			return err
		}
		n.known, n.reported = true, f.clock.Now()
	}
	if err := f.renew(ctx, n); err != nil {
		return err
	}
	if f.clock.Since(n.reported) < reportEvery {
		return nil
	}
	fresh, err := f.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) { // someone deleted it: as with a kubelet, only a restart creates it again
		return nil
	}
	if err != nil {
		return fmt.Errorf("read node: %w", err)
	}
	if err := f.report(ctx, n, fresh); err != nil {
		return err
	}
	n.reported = f.clock.Now()
	return nil
}

// register creates the Node object, or updates an existing one.
func (f *fleet) register(ctx context.Context, n *node) error {
	want := f.nodeObject(n)
	got, err := f.client.CoreV1().Nodes().Create(ctx, want, metav1.CreateOptions{})
	switch {
	case err == nil:
		n.object = got
		return f.settle(ctx, n)
	case !apierrors.IsAlreadyExists(err):
		return fmt.Errorf("create node: %w", err)
	}
	if got, err = f.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("read node: %w", err)
	}
	if p, err := netip.ParsePrefix(got.Spec.PodCIDR); err == nil {
		n.pool.move(p.Masked())
	} else if err := f.settle(ctx, n); err != nil {
		return err
	}
	changed := got.DeepCopy()
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	maps.Copy(changed.Labels, want.Labels)
	if len(want.Annotations) > 0 && changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}
	delete(changed.Annotations, servingkey.Annotation)
	maps.Copy(changed.Annotations, want.Annotations)
	if changed.Spec.PodCIDR == "" {
		changed.Spec.PodCIDR, changed.Spec.PodCIDRs = want.Spec.PodCIDR, want.Spec.PodCIDRs
	}
	if !equality.Semantic.DeepEqual(changed, got) {
		if got, err = f.client.CoreV1().Nodes().Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update node: %w", err)
		}
	}
	return f.report(ctx, n, got)
}

// report writes the node's status.
func (f *fleet) report(ctx context.Context, n *node, current *corev1.Node) error {
	next := current.DeepCopy()
	was := next.Status
	next.Status = f.nodeObject(n).Status
	next.Status.VolumesAttached, next.Status.VolumesInUse = was.VolumesAttached, was.VolumesInUse
	for name, q := range was.Capacity { // extended resources that clients added to the node
		if _, ours := next.Status.Capacity[name]; !ours {
			next.Status.Capacity[name], next.Status.Allocatable[name] = q, was.Allocatable[name]
		}
	}
	for _, old := range was.Conditions {
		i := slices.IndexFunc(next.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == old.Type })
		if i < 0 { // another component's, such as the node problem detector's
			next.Status.Conditions = append(next.Status.Conditions, old)
		} else if c := &next.Status.Conditions[i]; c.Status == old.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	if f.o.ExternalCloud && len(was.Addresses) > 0 {
		next.Status.Addresses, was.Addresses = was.Addresses, nil
	}
	for _, old := range was.Addresses {
		if old.Type != corev1.NodeInternalIP && old.Type != corev1.NodeHostName {
			next.Status.Addresses = append(next.Status.Addresses, old)
		}
	}
	got, err := f.client.CoreV1().Nodes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update node's status: %w", err)
	}
	n.object = got
	return nil
}

// renew renews the Lease, or creates it.
func (f *fleet) renew(ctx context.Context, n *node) error {
	leases := f.client.CoordinationV1().Leases(leaseNamespace)
	now := metav1.NewMicroTime(f.clock.Now())
	if n.lease != nil {
		next := n.lease.DeepCopy()
		next.Spec.RenewTime = &now
		got, err := leases.Update(ctx, next, metav1.UpdateOptions{})
		if err == nil {
			n.lease = got
			return nil
		}
		n.lease = nil
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("renew lease: %w", err)
		}
	}
	seconds := int32(max(4*f.o.Heartbeat/time.Second, 40))
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.name, Namespace: leaseNamespace,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.name, UID: n.object.UID}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &n.name, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
	got, err := leases.Create(ctx, lease, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if got, err = leases.Get(ctx, n.name, metav1.GetOptions{}); err == nil {
			got = got.DeepCopy()
			got.Spec, got.OwnerReferences = lease.Spec, lease.OwnerReferences
			got, err = leases.Update(ctx, got, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("make lease: %w", err)
	}
	n.lease = got
	return nil
}

// capacity returns a node's capacity and allocatable resources, with no more pods than it has addresses.
func (f *fleet) capacity(n *node) (capacity, allocatable corev1.ResourceList) {
	capacity = f.o.Capacity.DeepCopy()
	maps.Copy(capacity, n.group.Capacity)
	cidr := n.pool.cidr()
	room := uint64(1) << min(cidr.Addr().BitLen()-cidr.Bits(), 30)
	if pods, ok := capacity[corev1.ResourcePods]; ok && pods.Value() > int64(room-3) {
		capacity[corev1.ResourcePods] = *resource.NewQuantity(int64(room-3), resource.DecimalSI)
	}
	allocatable = capacity.DeepCopy()
	for name, q := range n.group.Allocatable {
		if has, ok := capacity[name]; ok && q.Cmp(has) < 0 {
			allocatable[name] = q
		}
	}
	return capacity, allocatable
}

// nodeObject returns the Node object of a node.
func (f *fleet) nodeObject(n *node) *corev1.Node {
	now := metav1.NewTime(f.clock.Now()).Rfc3339Copy()
	cidr := n.pool.cidr()
	condition := func(t corev1.NodeConditionType, s corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: s, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	out := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{
			Label: "true", corev1.LabelHostname: n.name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH,
			"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": runtime.GOARCH,
		}},
		Spec: corev1.NodeSpec{PodCIDR: cidr.String(), PodCIDRs: []string{cidr.String()}},
		Status: corev1.NodeStatus{
			Capacity: n.capacity.DeepCopy(), Allocatable: n.size.DeepCopy(),
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
				condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "simulated node: pods have no containers"),
			},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.address.String()},
				{Type: corev1.NodeHostName, Address: n.name}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: f.port}},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: n.name, SystemUUID: n.name, BootID: n.name, KernelVersion: "simulated", OSImage: "simulated",
				ContainerRuntimeVersion: "simulated://" + f.o.Version, KubeletVersion: f.o.Version,
				OperatingSystem: "linux", Architecture: runtime.GOARCH,
			},
		},
	}
	n.group.describe(out, n.turn)
	if f.o.ExternalCloud {
		out.Spec.Taints = append(out.Spec.Taints, corev1.Taint{Key: uninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule})
		out.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.name}}
	}
	if f.o.Alone == "" {
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, AnnotationInProcess, "true")
	} else { // the cluster assigns it
		out.Spec.PodCIDR, out.Spec.PodCIDRs = "", nil
	}
	if key := servingkey.Published(f.o.TLS); key != "" {
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, servingkey.Annotation, key)
	}
	return out
}
