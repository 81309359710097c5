// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Priorities of groups and versions that are not built in.
const (
	customGroup   = 1000
	customVersion = 100
	// unlistedVersion is the priority of a built-in version that is not listed.
	unlistedVersion = 15
)

// groupPriority orders the built-in groups: higher ones first, equal ones by name.
func groupPriority(group string) int {
	switch group {
	case "apiregistration.k8s.io":
		return 20001
	case "":
		return 18000
	case "apps":
		return 17800
	case "events.k8s.io":
		return 17750
	case "authentication.k8s.io":
		return 17700
	case "authorization.k8s.io":
		return 17600
	case "autoscaling":
		return 17500
	case "batch":
		return 17400
	case "certificates.k8s.io":
		return 17300
	case "networking.k8s.io":
		return 17200
	case "policy":
		return 17100
	case "rbac.authorization.k8s.io":
		return 17000
	case "storage.k8s.io":
		return 16800
	case "apiextensions.k8s.io", "admissionregistration.k8s.io":
		return 16700
	case "scheduling.k8s.io":
		return 16600
	case "coordination.k8s.io":
		return 16500
	case "node.k8s.io":
		return 16300
	case "discovery.k8s.io", "resource.k8s.io":
		return 16200
	case "flowcontrol.apiserver.k8s.io":
		return 16100
	case "internal.apiserver.k8s.io":
		return 16000
	case "storagemigration.k8s.io":
		return 15800
	case "lifecycle.k8s.io":
		return 15700
	}
	return customGroup
}

// versionPriority orders the versions of a built-in group. Versions with equal priority are ordered by name.
func versionPriority(gv schema.GroupVersion) int {
	switch gv.Group + "/" + gv.Version {
	case "autoscaling/v2":
		return 30
	case "flowcontrol.apiserver.k8s.io/v1", "resource.k8s.io/v1":
		return 21
	case "flowcontrol.apiserver.k8s.io/v1beta3":
		return 18
	case "flowcontrol.apiserver.k8s.io/v1beta2", "resource.k8s.io/v1beta2":
		return 15
	case "coordination.k8s.io/v1beta1":
		return 13
	case "admissionregistration.k8s.io/v1beta1", "coordination.k8s.io/v1alpha2", "discovery.k8s.io/v1beta1",
		"flowcontrol.apiserver.k8s.io/v1beta1":
		return 12
	case "admissionregistration.k8s.io/v1alpha1", "internal.apiserver.k8s.io/v1alpha1", "flowcontrol.apiserver.k8s.io/v1alpha1":
		return 9
	case "events.k8s.io/v1beta1":
		return 5
	case "scheduling.k8s.io/v1alpha3":
		return 3
	case "/v1":
		return 1
	}
	switch {
	case strings.Contains(gv.Version, "alpha"):
		return 1
	case strings.Contains(gv.Version, "beta"):
		return 9
	}
	return unlistedVersion
}

// Priorities returns the priorities of a built-in group and of a version in it, as in an APIService.
func Priorities(gv schema.GroupVersion) (group, version int) {
	return groupPriority(gv.Group), versionPriority(gv)
}
