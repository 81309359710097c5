// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

// StorageVersions knows for which resources the server has yet to report the version in which it stores them (KEP-2339).
type StorageVersions interface {
	// Pending reports whether a resource's version has yet to be reported, with the error of the last attempt.
	Pending(resource schema.GroupResource) (pending bool, last error)
}

// storageVersionsStage refuses writes of resources whose storage version is not reported yet: a migrator that finds that all servers store
// in the same version relies on it. As kube-apiserver, it passes writes of the reports themselves and of Leases in kube-system. The stage
// exists only with the feature gate StorageVersionAPI.
func storageVersionsStage(s *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	info := recordOf(r.Context()).info
	if !info.IsResourceRequest || !requestinfo.Writes(info) ||
		info.APIGroup == "internal.apiserver.k8s.io" && info.Resource == "storageversions" ||
		info.APIGroup == "coordination.k8s.io" && info.Resource == "leases" && info.Namespace == metav1.NamespaceSystem {
		next.ServeHTTP(w, r)
		return
	}
	gr := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	pending, last := s.opts.Features.StorageVersions.Pending(gr)
	if !pending {
		next.ServeHTTP(w, r)
		return
	}
	status.Write(w, r, apierrors.NewServiceUnavailable(
		fmt.Sprintf("wait for storage version registration to complete for resource: %v, last seen error: %v", gr, last)))
}
