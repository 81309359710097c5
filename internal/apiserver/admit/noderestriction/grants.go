// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
)

// audience allows a node tokens for the audiences that the pod's volumes request, and for those that it was granted.
func (r *request) audience(ctx context.Context, t *authenticationv1.TokenRequest, pod *corev1.Pod) error {
	want := ""
	switch len(t.Spec.Audiences) {
	case 0:
	case 1:
		want = t.Spec.Audiences[0]
	default:
		return errors.New("node may only request 0 or 1 audiences")
	}
	mounted, err := r.mounts(ctx, pod, want)
	if err != nil {
		return fmt.Errorf("error validating audience %q: %w", want, err) // upstream's words
	}
	if mounted {
		return nil
	}
	ok, err := r.may(ctx, "request-serviceaccounts-token-audience", want, r.Name)
	if ok {
		return nil
	}
	if err != nil {
		return fmt.Errorf("error authorizing %s to request tokens for audience %q: %w", r.User.GetName(), want, err) // upstream's words
	}
	return fmt.Errorf("%s is not authorized to request tokens for audience %q", r.User.GetName(), want)
}

// mounts reports whether some volume of the pod is for tokens of an audience: by itself, or by the CSI driver behind it.
func (r *request) mounts(ctx context.Context, pod *corev1.Pod, audience string) (bool, error) {
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Projected != nil {
			for _, s := range v.Projected.Sources {
				if s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == audience {
					return true, nil
				}
			}
		}
		driver, err := r.driver(ctx, pod, v)
		if err == nil && driver != "" {
			var has bool
			if has, err = r.wants(ctx, driver, audience); has {
				return true, nil
			}
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return false, utilerrors.NewAggregate(errs)
}

// driver returns the CSI driver of a volume; empty: none.
func (r *request) driver(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (string, error) {
	switch {
	case v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil:
		return r.claimDriver(ctx, pod.Namespace, pod.Name+"-"+v.Name)
	case v.PersistentVolumeClaim != nil:
		return r.claimDriver(ctx, pod.Namespace, v.PersistentVolumeClaim.ClaimName)
	case v.CSI != nil:
		return v.CSI.Driver, nil
	}
	return migrated(inTree{
		ebs: v.AWSElasticBlockStore != nil, gce: v.GCEPersistentDisk != nil, disk: v.AzureDisk != nil, file: v.AzureFile != nil,
		cinder: v.Cinder != nil, vsphere: v.VsphereVolume != nil, portworx: v.PortworxVolume != nil,
	}), nil
}

// inTree says which of the in-tree volume sources that CSI drivers replace a volume has.
type inTree struct{ ebs, gce, disk, file, cinder, vsphere, portworx bool }

// migrated returns the CSI driver that replaces an in-tree volume source.
func migrated(source inTree) string {
	switch {
	case source.ebs:
		return "ebs.csi.aws.com"
	case source.gce:
		return "pd.csi.storage.gke.io"
	case source.disk:
		return "disk.csi.azure.com"
	case source.file:
		return "file.csi.azure.com"
	case source.cinder:
		return "cinder.csi.openstack.org"
	case source.vsphere:
		return "csi.vsphere.vmware.com"
	case source.portworx:
		return "pxd.portworx.com"
	}
	return ""
}

func (r *request) claimDriver(ctx context.Context, namespace, name string) (string, error) {
	claim, err := get[*corev1.PersistentVolumeClaim](ctx, r, schema.GroupResource{Resource: "persistentvolumeclaims"}, namespace, name)
	if err != nil {
		return "", err
	}
	volume, err := get[*corev1.PersistentVolume](ctx, r, schema.GroupResource{Resource: "persistentvolumes"}, "", claim.Spec.VolumeName)
	if err != nil {
		return "", err
	}
	s := &volume.Spec.PersistentVolumeSource
	if s.CSI != nil {
		return s.CSI.Driver, nil
	}
	return migrated(inTree{
		ebs: s.AWSElasticBlockStore != nil, gce: s.GCEPersistentDisk != nil, disk: s.AzureDisk != nil, file: s.AzureFile != nil,
		cinder: s.Cinder != nil, vsphere: s.VsphereVolume != nil, portworx: s.PortworxVolume != nil,
	}), nil
}

func (r *request) wants(ctx context.Context, driver, audience string) (bool, error) {
	d, err := get[*storagev1.CSIDriver](ctx, r, schema.GroupResource{Group: "storage.k8s.io", Resource: "csidrivers"}, "", driver)
	if err != nil {
		return false, err
	}
	for _, t := range d.Spec.TokenRequests {
		if t.Audience == audience {
			return true, nil
		}
	}
	return false, nil
}

// podCertificate decides on a request for a pod's certificate. The pod must currently run on the node.
func (r *request) podCertificate(ctx context.Context) error {
	if r.Operation != admit.Create {
		return r.refuse("unexpected operation %v", r.Operation)
	}
	if r.Subresource != "" {
		return r.refuse("unexpected subresource %v", r.Subresource)
	}
	req, ok := r.Object.(*certificatesv1.PodCertificateRequest)
	if !ok {
		return r.unexpected(r.Object)
	}
	s := &req.Spec
	if string(s.NodeName) != r.node {
		return r.refuse("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", s.NodeName, r.node)
	}
	// a missing object (perhaps not created yet) is no 403: a retry may succeed
	missing := func(err error, format string, args ...any) error {
		err = fmt.Errorf("while retrieving "+format+" named in the PodCertificateRequest: %w", append(args, err)...) // upstream's words
		if apierrors.IsNotFound(err) {
			return err
		}
		return admit.Forbidden(r.Attributes, err)
	}
	name := r.Namespace + "/" + s.PodName
	n, err := get[*corev1.Node](ctx, r, schema.GroupResource{Resource: "nodes"}, "", string(s.NodeName))
	if err != nil {
		return missing(err, "node %q", s.NodeName)
	}
	if n.UID != s.NodeUID {
		return fmt.Errorf("PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node (%q)", name, s.NodeUID, n.UID)
	}
	pod, err := get[*corev1.Pod](ctx, r, schema.GroupResource{Resource: "pods"}, r.Namespace, s.PodName)
	if err != nil {
		return missing(err, "pod %q", name)
	}
	if s.PodUID != pod.UID {
		return fmt.Errorf("PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", name, s.PodUID,
			string(pod.UID))
	}
	if pod.Spec.NodeName != string(s.NodeName) {
		return r.refuse("pod %q is not running on node %q named in the PodCertificateRequest", name, s.NodeName)
	}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return r.refuse("pod %q is a mirror pod", name)
	}
	if s.ServiceAccountName != pod.Spec.ServiceAccountName {
		return r.refuse("PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod (%q)", name,
			s.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	account, err := get[*corev1.ServiceAccount](ctx, r, schema.GroupResource{Resource: "serviceaccounts"}, r.Namespace, s.ServiceAccountName)
	if err != nil {
		return missing(err, "service account %q", r.Namespace+"/"+s.ServiceAccountName)
	}
	if s.ServiceAccountUID != account.UID {
		return fmt.Errorf("PodCertificateRequest for pod %q names service account UID %q, which differs from the running service account (%q)",
			name, s.ServiceAccountUID, account.UID)
	}
	if signs(pod, s.SignerName) {
		return nil
	}
	// names in roles cannot contain a slash
	ok, err = r.may(ctx, "request-serviceaccounts-podcertificate-signer", strings.ReplaceAll(s.SignerName, "/", ":"), s.ServiceAccountName)
	switch {
	case ok:
		return nil
	case err != nil:
		// upstream's words
		return r.refuse("error authorizing %s to request podcertificaterequests for signer %q: %w", r.User.GetName(), s.SignerName, err)
	}
	return r.refuse("pod %q does not mount a podCertificate projected volume for signer %q", name, s.SignerName)
}

func signs(pod *corev1.Pod, signer string) bool {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Projected == nil {
			continue
		}
		for _, s := range pod.Spec.Volumes[i].Projected.Sources {
			if s.PodCertificate != nil && s.PodCertificate.SignerName == signer {
				return true
			}
		}
	}
	return false
}
