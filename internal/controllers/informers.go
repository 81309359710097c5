// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// Informer returns the shared informer of a resource's full objects if a selected controller watches them; otherwise nil.
//
// It names the resources that controllers here watch. The factory has ForResource for this, which names every version of every kind: with
// it, the program has the informers, listers and clients of them all, 6 MB more. A resource of a controller from outside that is not named
// here has no full objects for others, who watch its metadata.
func (d *Deps) Informer(gvr schema.GroupVersionResource) cache.SharedIndexInformer {
	if !d.Typed[gvr] {
		return nil
	}
	f := d.Informers
	switch gvr.GroupVersion() {
	case corev1.SchemeGroupVersion:
		return coreInformer(f, gvr.Resource)
	case appsv1.SchemeGroupVersion, batchv1.SchemeGroupVersion, autoscalingv2.SchemeGroupVersion, policyv1.SchemeGroupVersion:
		return workloadInformer(f, gvr.GroupResource())
	case resourcev1.SchemeGroupVersion, storagev1.SchemeGroupVersion:
		return storageInformer(f, gvr.GroupResource())
	}
	switch gvr {
	case admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies"):
		return f.Admissionregistration().V1().ValidatingAdmissionPolicies().Informer()
	case certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"):
		return f.Certificates().V1().CertificateSigningRequests().Informer()
	case certificatesv1.SchemeGroupVersion.WithResource("clustertrustbundles"):
		return f.Certificates().V1().ClusterTrustBundles().Informer()
	case certificatesv1.SchemeGroupVersion.WithResource("podcertificaterequests"):
		return f.Certificates().V1().PodCertificateRequests().Informer()
	case coordinationv1.SchemeGroupVersion.WithResource("leases"):
		return f.Coordination().V1().Leases().Informer()
	case discoveryv1.SchemeGroupVersion.WithResource("endpointslices"):
		return f.Discovery().V1().EndpointSlices().Informer()
	case networkingv1.SchemeGroupVersion.WithResource("ipaddresses"):
		return f.Networking().V1().IPAddresses().Informer()
	case networkingv1.SchemeGroupVersion.WithResource("servicecidrs"):
		return f.Networking().V1().ServiceCIDRs().Informer()
	case rbacv1.SchemeGroupVersion.WithResource("clusterroles"):
		return f.Rbac().V1().ClusterRoles().Informer()
	case storagemigrationv1.SchemeGroupVersion.WithResource("storageversionmigrations"):
		return f.Storagemigration().V1().StorageVersionMigrations().Informer()
	}
	return nil
}

func coreInformer(f informers.SharedInformerFactory, resource string) cache.SharedIndexInformer {
	core := f.Core().V1()
	switch resource {
	case "configmaps":
		return core.ConfigMaps().Informer()
	case "endpoints":
		return core.Endpoints().Informer()
	case "namespaces":
		return core.Namespaces().Informer()
	case "nodes":
		return core.Nodes().Informer()
	case "persistentvolumeclaims":
		return core.PersistentVolumeClaims().Informer()
	case "persistentvolumes":
		return core.PersistentVolumes().Informer()
	case "pods":
		return core.Pods().Informer()
	case "replicationcontrollers":
		return core.ReplicationControllers().Informer()
	case "resourcequotas":
		return core.ResourceQuotas().Informer()
	case "secrets":
		return core.Secrets().Informer()
	case "serviceaccounts":
		return core.ServiceAccounts().Informer()
	case "services":
		return core.Services().Informer()
	}
	return nil
}

func workloadInformer(f informers.SharedInformerFactory, resource schema.GroupResource) cache.SharedIndexInformer {
	switch resource {
	case appsv1.Resource("controllerrevisions"):
		return f.Apps().V1().ControllerRevisions().Informer()
	case appsv1.Resource("daemonsets"):
		return f.Apps().V1().DaemonSets().Informer()
	case appsv1.Resource("deployments"):
		return f.Apps().V1().Deployments().Informer()
	case appsv1.Resource("replicasets"):
		return f.Apps().V1().ReplicaSets().Informer()
	case appsv1.Resource("statefulsets"):
		return f.Apps().V1().StatefulSets().Informer()
	case batchv1.Resource("cronjobs"):
		return f.Batch().V1().CronJobs().Informer()
	case batchv1.Resource("jobs"):
		return f.Batch().V1().Jobs().Informer()
	case autoscalingv2.Resource("horizontalpodautoscalers"):
		return f.Autoscaling().V2().HorizontalPodAutoscalers().Informer()
	case policyv1.Resource("poddisruptionbudgets"):
		return f.Policy().V1().PodDisruptionBudgets().Informer()
	}
	return nil
}

func storageInformer(f informers.SharedInformerFactory, resource schema.GroupResource) cache.SharedIndexInformer {
	switch resource {
	case resourcev1.Resource("devicetaintrules"):
		return f.Resource().V1().DeviceTaintRules().Informer()
	case resourcev1.Resource("resourceclaims"):
		return f.Resource().V1().ResourceClaims().Informer()
	case resourcev1.Resource("resourceclaimtemplates"):
		return f.Resource().V1().ResourceClaimTemplates().Informer()
	case resourcev1.Resource("resourceslices"):
		return f.Resource().V1().ResourceSlices().Informer()
	case storagev1.Resource("csidrivers"):
		return f.Storage().V1().CSIDrivers().Informer()
	case storagev1.Resource("storageclasses"):
		return f.Storage().V1().StorageClasses().Informer()
	case storagev1.Resource("volumeattachments"):
		return f.Storage().V1().VolumeAttachments().Informer()
	case storagev1.Resource("volumeattributesclasses"):
		return f.Storage().V1().VolumeAttributesClasses().Informer()
	}
	return nil
}
