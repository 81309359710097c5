// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubescheduler

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
)

// The storage of a cluster: what of it there is follows from its seed, and stays.
var (
	classes = []string{"made", "local", "at-once"}
	driver  = "csi.example.com"
)

const (
	claimed = 8 // claims a namespace
	volumes = 14
)

// storage gives the informers a cluster's storage, in the place of the last cluster's.
func (d *dice) storage(f informers.SharedInformerFactory, nodes int) error {
	wait, now := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	made := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "made"}, Provisioner: driver, VolumeBindingMode: &wait}
	if d.in(40) {
		made.AllowedTopologies = []corev1.TopologySelectorTerm{
			{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelTopologyZone, Values: d.some(2, zones...)}}}}
	}
	kinds := []any{
		made,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: volume.NotSupportedProvisioner,
			VolumeBindingMode: &wait},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "at-once"}, Provisioner: driver, VolumeBindingMode: &now},
	}
	drivers := []any{&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{
		StorageCapacity: new(d.in(50)), PreventPodSchedulingIfMissing: new(d.in(30)),
	}}}
	var rooms, csiNodes, pvs, pvcs, attachments []any
	for i := range 3 {
		c := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("room-", i)},
			StorageClassName: "made",
			NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelTopologyZone: zones[i]}}, Capacity: d.size(20)}
		if d.in(30) {
			c.MaximumVolumeSize = d.size(8)
		}
		rooms = append(rooms, c)
	}
	for i := range nodes {
		if d.in(70) {
			c := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%03d", i)}}
			if d.in(80) {
				c.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driver, NodeID: c.Name}}
				if d.in(60) {
					c.Spec.Drivers[0].Allocatable = &storagev1.VolumeNodeResources{Count: new(int32(1 + d.IntN(3)))}
				}
			}
			csiNodes = append(csiNodes, c)
		}
	}
	for i := range volumes {
		pv := d.volume(i, nodes)
		pvs = append(pvs, pv)
		if d.in(15) {
			attachments = append(attachments, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a-" + pv.Name},
				Spec: storagev1.VolumeAttachmentSpec{
					Attacher: driver, NodeName: fmt.Sprintf("node-%03d", d.IntN(nodes)),
					Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name},
				}})
		}
	}
	for _, namespace := range []string{"default", "other"} {
		for i := range claimed {
			if d.in(92) {
				pvcs = append(pvcs, d.claim(namespace, i))
			}
		}
	}
	core, storage := f.Core().V1(), f.Storage().V1()
	for _, of := range []struct {
		informer cache.SharedIndexInformer
		objects  []any
	}{
		{storage.StorageClasses().Informer(), kinds}, {storage.CSIDrivers().Informer(), drivers},
		{storage.CSIStorageCapacities().Informer(), rooms},
		{storage.CSINodes().Informer(), csiNodes}, {storage.VolumeAttachments().Informer(), attachments},
		{core.PersistentVolumes().Informer(), pvs}, {core.PersistentVolumeClaims().Informer(), pvcs},
	} {
		if err := of.informer.GetIndexer().Replace(of.objects, ""); err != nil {
			return fmt.Errorf("replace storage: %w", err)
		}
	}
	return nil
}

func (d *dice) size(most int) *resource.Quantity {
	return resource.NewQuantity(int64(1+d.IntN(most))<<30, resource.BinarySI)
}

func (d *dice) modes() []corev1.PersistentVolumeAccessMode {
	return []corev1.PersistentVolumeAccessMode{pick(d, corev1.ReadWriteOnce, corev1.ReadWriteOnce, corev1.ReadWriteOnce, corev1.ReadWriteOnce,
		corev1.ReadWriteOnce, corev1.ReadWriteMany, corev1.ReadWriteOncePod)}
}

func (d *dice) volume(i, nodes int) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pv-%02d", i), Labels: map[string]string{}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: pick(d, classes...), Capacity: corev1.ResourceList{corev1.ResourceStorage: *d.size(12)},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteOncePod},
		},
		Status: corev1.PersistentVolumeStatus{Phase: pick(d, corev1.VolumeAvailable, corev1.VolumeAvailable, corev1.VolumePending)},
	}
	if d.in(75) {
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: fmt.Sprint("handle-", i)}
	} else {
		pv.Spec.Local = &corev1.LocalVolumeSource{Path: "/x"}
	}
	if d.in(40) {
		term := d.nodeTerm()
		if d.in(40) {
			term = corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname,
				Operator: corev1.NodeSelectorOpIn, Values: []string{fmt.Sprintf("node-%03d", d.IntN(nodes))}}}}
		}
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}}
	}
	if d.in(25) {
		pv.Labels[pick(d, corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone)] = pick(d, "a", "b", "a__b", "c", "")
	}
	return pv
}

func (d *dice) claim(namespace string, i int) *corev1.PersistentVolumeClaim {
	name := fmt.Sprint("claim-", i)
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Annotations: map[string]string{}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new(pick(d, "made", "local", "made", "local", "made", "local", "made", "local", "at-once")), AccessModes: d.modes(),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *d.size(10)}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	switch {
	case d.in(45):
		c.Spec.VolumeName = fmt.Sprintf("pv-%02d", d.IntN(volumes+1))
		if d.in(97) {
			c.Annotations[volume.AnnBindCompleted] = "yes"
		}
		c.Status.Phase = corev1.ClaimBound
		if d.in(4) {
			c.Status.Phase = corev1.ClaimLost
		}
	case d.in(15):
		c.Annotations[volume.AnnSelectedNode] = fmt.Sprintf("node-%03d", d.IntN(6))
	}
	return c
}

// use gives a pod volumes.
func (d *dice) use(p *corev1.Pod) {
	for i := range 1 + d.IntN(2) {
		v := corev1.Volume{Name: fmt.Sprint("v", i)}
		switch n := d.IntN(10); {
		case n < 8:
			v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("claim-", d.IntN(claimed))}
		case n < 9:
			v.ISCSI = &corev1.ISCSIVolumeSource{IQN: pick(d, "one", "two"), ReadOnly: d.in(30)}
		default:
			v.EmptyDir = &corev1.EmptyDirVolumeSource{}
		}
		p.Spec.Volumes = append(p.Spec.Volumes, v)
	}
}
