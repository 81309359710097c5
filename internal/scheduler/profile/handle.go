// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"
)

// handle is the part of [framework.Handle] that is not running plug-ins.
type handle struct {
	clients Clients
	profile *Profile
}

func (h *handle) SnapshotSharedLister() framework.SharedLister { return h.clients.Lister }

// MutableSnapshotSharedLister is nil unless the snapshot can be changed for the sake of argument.
func (h *handle) MutableSnapshotSharedLister() framework.MutableSnapshotSharedLister {
	m, _ := h.clients.Lister.(framework.MutableSnapshotSharedLister)
	return m
}

func (h *handle) ClientSet() kubernetes.Interface                        { return h.clients.Client }
func (h *handle) KubeConfig() *rest.Config                               { return h.clients.Config }
func (h *handle) EventRecorder() events.EventRecorderLogger              { return h.clients.Recorder }
func (h *handle) SharedInformerFactory() informers.SharedInformerFactory { return h.clients.Informers }
func (h *handle) SharedDRAManager() framework.SharedDRAManager           { return h.clients.Devices }
func (h *handle) Extenders() []framework.Extender                        { return h.clients.Extenders }
func (h *handle) APIDispatcher() framework.APIDispatcher                 { return nil }
func (h *handle) APICacher() framework.APICacher                         { return nil }
func (h *handle) ProfileName() string                                    { return h.profile.name }
func (h *handle) PodGroupManager() framework.PodGroupManager             { return noGroups{} }
func (h *handle) Parallelizer() framework.Parallelizer {
	return parallelizer(cmp.Or(h.clients.Parallelism, 16))
}

// SharedCSIManager is nil where there are no informers.
func (h *handle) SharedCSIManager() framework.CSIManager {
	if h.clients.Informers == nil {
		return nil
	}
	return csi{h.clients.Informers}
}

// IterateOverWaitingPods goes through the pods that wait for Permit, those of other profiles of this scheduler too.
func (h *handle) IterateOverWaitingPods(callback func(framework.WaitingPod)) {
	h.clients.Waiting.each(callback)
}

func (h *handle) GetWaitingPod(uid types.UID) framework.WaitingPod {
	if w := h.clients.Waiting.get(uid); w != nil {
		return w
	}
	return nil
}

func (h *handle) RejectWaitingPod(uid types.UID) bool {
	w := h.clients.Waiting.get(uid)
	return w != nil && w.Reject("", "removed")
}

func (h *handle) AddPodInPreBind(uid types.UID, cancel context.CancelCauseFunc) {
	h.clients.Waiting.addPreBind(uid, cancel)
}

func (h *handle) GetPodInPreBind(uid types.UID) framework.PodInPreBind {
	if p := h.clients.Waiting.inPreBind(uid); p != nil {
		return p
	}
	return nil
}

func (h *handle) RemovePodInPreBind(uid types.UID) { h.clients.Waiting.removePreBind(uid) }

// The nominator and the activator are the queue's.

func (h *handle) AddNominatedPod(logger klog.Logger, pod framework.PodInfo, info *framework.NominatingInfo) {
	if h.clients.Nominator != nil {
		h.clients.Nominator.AddNominatedPod(logger, pod, info)
	}
}

func (h *handle) DeleteNominatedPodIfExists(pod *corev1.Pod) {
	if h.clients.Nominator != nil {
		h.clients.Nominator.DeleteNominatedPodIfExists(pod)
	}
}

func (h *handle) UpdateNominatedPod(logger klog.Logger, oldPod *corev1.Pod, pod framework.PodInfo) {
	if h.clients.Nominator != nil {
		h.clients.Nominator.UpdateNominatedPod(logger, oldPod, pod)
	}
}

func (h *handle) NominatedPodsForNode(node string) []framework.PodInfo {
	if h.clients.Nominator == nil {
		return nil
	}
	return h.clients.Nominator.NominatedPodsForNode(node)
}

// Nominations are the pods nominated to a node, shared and read-only, and a number that no other set of them has; 0 where that says nothing
// of who is ahead of the pod: it is not known, or the pod is one of them itself.
func (h *handle) Nominations(node string, pod *corev1.Pod) (pods []framework.PodInfo, version uint64) {
	n, ok := h.clients.Nominator.(interface {
		Nominations(node string) ([]framework.PodInfo, uint64)
	})
	if !ok {
		return h.NominatedPodsForNode(node), 0
	}
	pods, version = n.Nominations(node)
	if slices.ContainsFunc(pods, func(n framework.PodInfo) bool { return n.GetPod().UID == pod.UID }) {
		version = 0
	}
	return pods, version
}

// Alike is equal for pods of equal priority that the filters treat alike as long as a node and the pods nominated to it are the same; empty
// where filters that look beyond the node concern this one, or nothing is known of it.
func (h *handle) Alike(ctx context.Context, state framework.CycleState, pod *corev1.Pod) string {
	signature := h.profile.Signature(ctx, pod)
	if len(signature) == 0 || len(h.profile.OtherFilters(state)) > 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", corev1helpers.PodPriority(pod), signature)
}

func (h *handle) Activate(logger klog.Logger, pods map[string]*corev1.Pod) {
	if h.clients.Activator != nil {
		h.clients.Activator.Activate(logger, pods)
	}
}

// parallelizer is the maximum number of goroutines.
type parallelizer int

// Until does all pieces concurrently.
func (n parallelizer) Until(ctx context.Context, pieces int, do workqueue.DoWorkPieceFunc, _ string) {
	workqueue.ParallelizeUntil(ctx, int(n), pieces, do, workqueue.WithChunkSize(max(1, pieces/(4*int(n)))))
}

// csi tells of the storage drivers of nodes. The informer is there from the first question on: a plug-in's factory is the
// place to ask it.
type csi struct {
	informers informers.SharedInformerFactory
}

func (c csi) CSINodes() framework.CSINodeLister {
	return csiNodes{c.informers.Storage().V1().CSINodes().Lister()}
}

type csiNodes struct{ storagelisters.CSINodeLister }

func (c csiNodes) List() ([]*storagev1.CSINode, error) {
	return c.CSINodeLister.List(labels.Everything())
}

// noGroups is the groups of pods where pods are not scheduled in groups, as is the default of 1.37: there are none.
type noGroups struct{}

func (noGroups) PodGroupStates() framework.PodGroupStateLister { return groupStates{} }
func (noGroups) PodGroups() framework.PodGroupLister           { return groups{} }
func (noGroups) CompositePodGroupStates() framework.CompositePodGroupStateLister {
	return compositeStates{}
}
func (noGroups) CompositePodGroups() framework.CompositePodGroupLister { return composites{} }

func (g noGroups) BuildHierarchySnapshotFromPod(*corev1.Pod) (framework.PodGroupManager, error) {
	return g, nil
}

func (noGroups) GetRootKeyForGroup(key framework.EntityKey) (framework.EntityKey, bool, error) {
	return key, false, nil
}

type (
	groupStates     struct{}
	groups          struct{}
	compositeStates struct{}
	composites      struct{}
)

func noGroup(kind, namespace, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: "scheduling.k8s.io", Resource: kind}, namespace+"/"+name)
}

func (groupStates) Get(namespace, name string) (framework.PodGroupState, error) {
	return nil, noGroup("podgroups", namespace, name)
}

func (groups) Get(namespace, name string) (*schedulingv1beta1.PodGroup, error) {
	return nil, noGroup("podgroups", namespace, name)
}

func (compositeStates) Get(namespace, name string) (framework.CompositePodGroupState, error) {
	return nil, noGroup("compositepodgroups", namespace, name)
}

func (composites) Get(namespace, name string) (*schedulingv1alpha3.CompositePodGroup, error) {
	return nil, noGroup("compositepodgroups", namespace, name)
}
