// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

// Manager is the user that all controllers together are: who reads for the shared informers, and writes for those that
// have no account of their own.
const Manager = "system:kube-controller-manager"

// Account is the service account of kube-system that a controller of Kubernetes acts as: its roles are written for these
// names, which are older than those of --controllers. It is empty for one that acts as [Manager]; ok is false for those
// that Kubernetes does not have.
func Account(controller string) (account string, ok bool) {
	switch controller {
	case "serviceaccount-token-controller":
		return "", true
	case "clusterrole-aggregation-controller", "cronjob-controller", "deployment-controller", "disruption-controller",
		"endpointslice-controller", "ephemeral-volume-controller", "job-controller", "namespace-controller",
		"replicaset-controller", "resourcequota-controller", "statefulset-controller", "storage-version-migrator-controller",
		"ttl-after-finished-controller", "ttl-controller", "validatingadmissionpolicy-status-controller", "webhook-trust-controller":
		return controller, true
	}
	account, ok = map[string]string{
		"bootstrap-signer-controller":                                    "bootstrap-signer",
		"certificatesigningrequest-approving-controller":                 "certificate-controller",
		"certificatesigningrequest-cleaner-controller":                   "certificate-controller",
		"certificatesigningrequest-signing-controller":                   "certificate-controller",
		"daemonset-controller":                                           "daemon-set-controller",
		"device-taint-eviction-controller":                               "device-taint-eviction-controller",
		"endpoints-controller":                                           "endpoint-controller",
		"endpointslice-mirroring-controller":                             "endpointslicemirroring-controller",
		"garbage-collector-controller":                                   "generic-garbage-collector",
		"horizontal-pod-autoscaler-controller":                           "horizontal-pod-autoscaler",
		"legacy-serviceaccount-token-cleaner-controller":                 "legacy-service-account-token-cleaner",
		"node-ipam-controller":                                           "node-controller",
		"node-lifecycle-controller":                                      "node-controller",
		"persistentvolume-attach-detach-controller":                      "attachdetach-controller",
		"persistentvolume-binder-controller":                             "persistent-volume-binder",
		"persistentvolume-expander-controller":                           "expand-controller",
		"persistentvolume-protection-controller":                         "pv-protection-controller",
		"persistentvolumeclaim-protection-controller":                    "pvc-protection-controller",
		"pod-garbage-collector-controller":                               "pod-garbage-collector",
		"podcertificaterequest-cleaner-controller":                       "podcertificaterequestcleaner",
		"replicationcontroller-controller":                               "replication-controller",
		"resourceclaim-controller":                                       "resource-claim-controller",
		"root-ca-certificate-publisher-controller":                       "root-ca-cert-publisher",
		"service-cidr-controller":                                        "service-cidrs-controller",
		"serviceaccount-controller":                                      "service-account-controller",
		"storageversion-garbage-collector-controller":                    "storage-version-garbage-collector",
		"taint-eviction-controller":                                      "node-controller",
		"token-cleaner-controller":                                       "token-cleaner",
		"volumeattributesclass-protection-controller":                    "volumeattributesclass-protection-controller",
		"kube-apiserver-serving-clustertrustbundle-publisher-controller": "kube-apiserver-serving-clustertrustbundle-publisher",
	}[controller]
	return account, ok
}
