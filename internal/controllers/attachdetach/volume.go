// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	translation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// Names of the indexes.
const (
	byName  = "attachdetach volume" // persistent volumes, by the name of [disk.name]
	byPlain = "attachdetach inline" // pods, by the names of volumes that they hold inline
	bySpec  = "attachdetach source" // VolumeAttachments, by PersistentVolume
	byNode  = "node"                // pods, by node
)

// plugin is the beginning of the names of CSI volumes in nodes' statuses.
const plugin = "kubernetes.io/csi"

// disk is a volume of a CSI driver.
type disk struct {
	driver, handle string
	pv             *corev1.PersistentVolume // as CSI sees it
	inline         bool                     // the pod holds it inline, in the form of a former in-tree driver
	migrated       bool
}

// name returns the volume's name in nodes' statuses: kubernetes.io/csi/DRIVER^HANDLE.
func (d *disk) name() string { return plugin + "/" + d.driver + "^" + d.handle }

// exclusive reports whether the volume can be attached to one node only. Without access modes, the driver decides.
func (d *disk) exclusive() bool {
	modes := d.pv.Spec.AccessModes
	return len(modes) > 0 && !slices.Contains(modes, corev1.ReadWriteMany) && !slices.Contains(modes, corev1.ReadOnlyMany)
}

// parseName returns the driver and the handle of a volume's name.
func parseName(name string) (driver, handle string, ok bool) {
	rest, ok := strings.CutPrefix(name, plugin+"/")
	if !ok {
		return "", "", false
	}
	driver, handle, ok = strings.Cut(rest, "^")
	return driver, handle, ok && driver != ""
}

// attachmentName returns the name of the VolumeAttachment of a volume on a node; drivers' nodes look for it.
func attachmentName(volume, node string) string {
	driver, handle, _ := parseName(volume)
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// translator finds the CSI volumes behind those of former in-tree drivers.
type translator struct{ translation.CSITranslator }

func newTranslator() translator { return translator{translation.New()} }

// diskOf returns the CSI volume of a PersistentVolume; nil if it is of another kind.
func (t translator) diskOf(pv *corev1.PersistentVolume) *disk {
	if source := pv.Spec.CSI; source != nil {
		return &disk{driver: source.Driver, handle: source.VolumeHandle, pv: pv}
	}
	if !t.IsPVMigratable(pv) {
		return nil
	}
	csi, err := t.TranslateInTreePVToCSI(klog.Logger{}, pv)
	if err != nil || csi.Spec.CSI == nil {
		return nil
	}
	return &disk{driver: csi.Spec.CSI.Driver, handle: csi.Spec.CSI.VolumeHandle, pv: csi, migrated: true}
}

// inlineOf returns the CSI volume of a pod's inline volume; nil if there is none that is attached.
func (t translator) inlineOf(volume *corev1.Volume, namespace string) *disk {
	if volume.CSI != nil || !t.IsInlineMigratable(volume) {
		return nil
	}
	csi, err := t.TranslateInTreeInlineVolumeToCSI(klog.Logger{}, volume, namespace)
	if err != nil || csi.Spec.CSI == nil {
		return nil
	}
	return &disk{driver: csi.Spec.CSI.Driver, handle: csi.Spec.CSI.VolumeHandle, pv: csi, inline: true, migrated: true}
}

// catalog finds volumes, and the pods that use them, in the caches.
type catalog struct {
	pods     cache.Indexer
	claims   corelisters.PersistentVolumeClaimLister
	volumes  cache.Indexer // persistent volumes
	volume   corelisters.PersistentVolumeLister
	drivers  storagelisters.CSIDriverLister
	migrated translator
}

// index adds the indexes that the catalog and the controller use.
func (c *catalog) index(pods, volumes, attachments cache.SharedIndexInformer) error {
	return errors.Join(
		controllers.Index(volumes, byName, func(obj any) ([]string, error) {
			if pv, ok := obj.(*corev1.PersistentVolume); ok {
				if d := c.migrated.diskOf(pv); d != nil {
					return []string{d.name()}, nil
				}
			}
			return nil, nil
		}),
		workload.IndexByPersistentVolumeClaim(pods),
		controllers.Index(pods, byPlain, func(obj any) ([]string, error) {
			var names []string
			if pod, ok := obj.(*corev1.Pod); ok {
				for i := range pod.Spec.Volumes {
					if d := c.migrated.inlineOf(&pod.Spec.Volumes[i], pod.Namespace); d != nil {
						names = append(names, d.name())
					}
				}
			}
			return names, nil
		}),
		controllers.Index(pods, byNode, func(obj any) ([]string, error) {
			if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
				return []string{pod.Spec.NodeName}, nil
			}
			return nil, nil
		}),
		controllers.Index(attachments, bySpec, func(obj any) ([]string, error) {
			if a, ok := obj.(*storagev1.VolumeAttachment); ok && a.Spec.Source.PersistentVolumeName != nil {
				return []string{*a.Spec.Source.PersistentVolumeName}, nil
			}
			return nil, nil
		}),
	)
}

// diskOf returns the CSI volume behind a pod's volume, which must be bound; nil if it is of another kind.
func (c *catalog) diskOf(pod *corev1.Pod, volume *corev1.Volume) (*disk, error) {
	name := workload.ClaimName(pod, volume)
	if name == "" {
		return c.migrated.inlineOf(volume, pod.Namespace), nil
	}
	claim, err := c.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
	if err != nil {
		return nil, fmt.Errorf("get claim: %w", err)
	}
	if volume.Ephemeral != nil && !metav1.IsControlledBy(claim, pod) {
		return nil, fmt.Errorf("claim %s was not created for pod %s", name, pod.Name)
	}
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return nil, fmt.Errorf("claim %s is not bound", name)
	}
	pv, err := c.volume.Get(claim.Spec.VolumeName)
	if err != nil {
		return nil, fmt.Errorf("get volume: %w", err)
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return nil, fmt.Errorf("volume %s is not bound to claim %s", pv.Name, name)
	}
	return c.migrated.diskOf(pv), nil
}

// volumeOf returns the name of the volume that a VolumeAttachment is for; empty if another client created it, or the volume is gone.
func (c *controller) volumeOf(attachment *storagev1.VolumeAttachment) string {
	if name := c.registry.ofAttachment(attachment.Name); name != "" {
		return name
	}
	var d *disk
	switch source := attachment.Spec.Source; {
	case source.PersistentVolumeName != nil:
		pv, err := c.catalog.volume.Get(*source.PersistentVolumeName)
		if err != nil {
			return ""
		}
		d = c.catalog.migrated.diskOf(pv)
	case source.InlineVolumeSpec != nil && source.InlineVolumeSpec.CSI != nil:
		csi := source.InlineVolumeSpec.CSI
		d = &disk{driver: csi.Driver, handle: csi.VolumeHandle}
	}
	if d == nil || attachmentName(d.name(), attachment.Spec.NodeName) != attachment.Name {
		return ""
	}
	return d.name()
}

// attachable reports whether a driver's volumes are attached: they are unless its CSIDriver says otherwise.
func (c *catalog) attachable(driver string) (bool, error) {
	d, err := c.drivers.Get(driver)
	if apierrors.IsNotFound(err) {
		return true, nil
	} else if err != nil {
		return false, fmt.Errorf("get driver: %w", err)
	}
	return d.Spec.AttachRequired == nil || *d.Spec.AttachRequired, nil
}

// demand returns a volume, and the pods by node that use it. The volume is nil if no PersistentVolume and no pod holds it.
func (c *catalog) demand(name string) (*disk, map[string][]*corev1.Pod, error) {
	var of *disk
	pods := map[string][]*corev1.Pod{}
	add := func(pod *corev1.Pod) {
		node := pod.Spec.NodeName
		if node != "" && !terminated(pod) && !slices.ContainsFunc(pods[node], func(p *corev1.Pod) bool { return p.UID == pod.UID }) {
			pods[node] = append(pods[node], pod)
		}
	}
	volumes, err := c.volumes.ByIndex(byName, name)
	if err != nil {
		return nil, nil, fmt.Errorf("find volumes: %w", err)
	}
	for _, obj := range volumes {
		pv, ok := obj.(*corev1.PersistentVolume)
		if !ok {
			continue
		}
		if d := c.migrated.diskOf(pv); d != nil && (of == nil || pv.Spec.ClaimRef != nil) {
			of = d
		}
		if pv.Spec.ClaimRef == nil {
			continue
		}
		users, err := c.pods.ByIndex(workload.ByPersistentVolumeClaim, pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name)
		if err != nil {
			return nil, nil, fmt.Errorf("find pods: %w", err)
		}
		for _, obj := range users {
			if pod, ok := obj.(*corev1.Pod); ok && c.uses(pod, name) {
				add(pod)
			}
		}
	}
	holders, err := c.pods.ByIndex(byPlain, name)
	if err != nil {
		return nil, nil, fmt.Errorf("find pods: %w", err)
	}
	for _, obj := range holders {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			continue
		}
		add(pod)
		for i := range pod.Spec.Volumes {
			if d := c.migrated.inlineOf(&pod.Spec.Volumes[i], pod.Namespace); of == nil && d != nil && d.name() == name {
				of = d
			}
		}
	}
	return of, pods, nil
}

// uses reports whether a pod uses a volume by a claim.
func (c *catalog) uses(pod *corev1.Pod, name string) bool {
	for i := range pod.Spec.Volumes {
		if d, err := c.diskOf(pod, &pod.Spec.Volumes[i]); err == nil && d != nil && d.name() == name {
			return true
		}
	}
	return false
}

// users returns the pods that use a volume on a node, with those that used it before and still run: their claim or volume may be gone.
func (c *catalog) users(a *attachment, node string, pods []*corev1.Pod) []*corev1.Pod {
	for uid, name := range a.pods {
		if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.UID == uid }) {
			continue
		}
		obj, ok, err := c.pods.GetByKey(name.namespace + "/" + name.name)
		if pod, is := obj.(*corev1.Pod); err == nil && ok && is && pod.UID == uid && pod.Spec.NodeName == node && !terminated(pod) {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return pods
}

// terminated reports whether a pod needs its volumes no longer: it has finished, or it is deleted and none of its containers runs.
func terminated(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	s := &pod.Status
	return pod.DeletionTimestamp != nil && idle(s.InitContainerStatuses) && idle(s.ContainerStatuses) && idle(s.EphemeralContainerStatuses)
}

// idle reports whether no container runs.
func idle(all []corev1.ContainerStatus) bool {
	return !slices.ContainsFunc(all, func(s corev1.ContainerStatus) bool { return s.State.Terminated == nil && s.State.Waiting == nil })
}
