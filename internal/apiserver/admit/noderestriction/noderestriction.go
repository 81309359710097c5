// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package noderestriction is the NodeRestriction plug-in: a kubelet may only write its own objects. It complements the
// Node authorizer with the checks that need the objects: mirror pods and their node, labels and taints of nodes, the
// pod of a token or a certificate.
package noderestriction

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/node"
	"github.com/mortise-dev/mortise/internal/podrefs"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return &plugin{} }

type plugin struct{ host *admit.Host }

func (*plugin) Name() string { return "NodeRestriction" }

// Join implements [admit.Hosted].
func (p *plugin) Join(h *admit.Host) error {
	p.host = h
	return nil
}

// Handles implements [admit.Filter].
func (*plugin) Handles(a *admit.Attributes) bool {
	_, ok := node.Identity(a.User)
	return ok && a.Operation != admit.Connect
}

// request is a request of a node.
type request struct {
	*admit.Attributes
	plugin  *plugin
	backend resource.Backend
	node    string
}

// Mutate rejects writes to objects of others, and changes nothing. The errors are upstream's words.
func (p *plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if a.Operation == admit.Connect {
		return nil
	}
	name, ok := node.Identity(a.User)
	if !ok {
		return nil
	}
	r := &request{a, p, b, name}
	if name == "" {
		return r.refuse("could not determine node from user %q", a.User.GetName())
	}
	switch a.Descriptor.GroupResource() {
	case schema.GroupResource{Resource: "pods"}:
		switch a.Subresource {
		case "":
			return r.pod(ctx)
		case "status":
			return r.podStatus()
		case "eviction":
			return r.eviction(ctx)
		}
		return r.refuse("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", a.Subresource)
	case schema.GroupResource{Resource: "nodes"}:
		return r.itself()
	case schema.GroupResource{Resource: "persistentvolumeclaims"}:
		if a.Subresource != "status" {
			return r.refuse("may only update PVC status")
		}
		return r.claimStatus()
	case schema.GroupResource{Resource: "serviceaccounts"}:
		if a.Operation == admit.Create && a.Subresource == "token" {
			return r.token(ctx)
		}
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:
		return r.podCertificate(ctx)
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}:
		if a.Operation == admit.Create {
			return r.certificate()
		}
	case schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		return r.lease()
	case schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}:
		return r.csiNode()
	case schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}:
		return r.slice()
	}
	return nil
}

func (r *request) refuse(format string, args ...any) error {
	return admit.Forbidden(r.Attributes, fmt.Errorf(format, args...))
}

func (r *request) unexpected(obj any) error { return r.refuse("unexpected type %T", obj) }

// find reads an object. It returns a NotFound error as it is and any other error as a rejection.
func find[T resource.Object](ctx context.Context, r *request, in schema.GroupResource, namespace, name string) (obj T, err error) {
	obj, err = get[T](ctx, r, in, namespace, name)
	if err == nil || apierrors.IsNotFound(err) {
		return obj, err
	}
	return obj, admit.Forbidden(r.Attributes, err)
}

// get reads an object.
func get[T resource.Object](ctx context.Context, r *request, in schema.GroupResource, namespace, name string) (obj T, err error) {
	o, err := r.backend.Get(ctx, in, namespace, name)
	if apierrors.IsNotFound(err) { // upstream's caches report the kind here, not the resource
		return obj, apierrors.NewNotFound(schema.GroupResource{Group: in.Group, Resource: strings.TrimSuffix(in.Resource, "s")}, name)
	}
	if err != nil {
		return obj, err
	}
	obj, ok := o.(T)
	if !ok {
		return obj, fmt.Errorf("unexpected type %T", o)
	}
	return obj, nil
}

func (r *request) findPod(ctx context.Context, name string) (*corev1.Pod, error) {
	return find[*corev1.Pod](ctx, r, schema.GroupResource{Resource: "pods"}, r.Namespace, name)
}

func (r *request) pod(ctx context.Context) error {
	switch r.Operation {
	case admit.Create:
		return r.mirror(ctx)
	case admit.Delete:
		pod, err := r.findPod(ctx, r.Name)
		if err != nil {
			return err
		}
		if pod.Spec.NodeName != r.node {
			return r.refuse("node %q can only delete pods with spec.nodeName set to itself", r.node)
		}
		return nil
	}
	return r.refuse("unexpected operation %q, node %q can only create and delete mirror pods", r.Operation, r.node)
}

// mirror decides on a pod that a node creates. It must be a mirror pod, of a pod that the node has from another source.
func (r *request) mirror(ctx context.Context) error {
	pod, ok := r.Object.(*corev1.Pod)
	if !ok {
		return r.unexpected(r.Object)
	}
	if _, is := pod.Annotations[corev1.MirrorPodAnnotationKey]; !is {
		return r.refuse("pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, r.node)
	}
	if pod.Spec.NodeName != r.node {
		return r.refuse("node %q can only create pods with spec.nodeName set to itself", r.node)
	}
	switch len(pod.OwnerReferences) {
	case 0:
		return r.refuse("node %q can only create pods with an owner reference set to itself", r.node)
	case 1:
	default:
		return r.refuse("node %q can only create pods with a single owner reference set to itself", r.node)
	}
	owner := &pod.OwnerReferences[0]
	switch {
	case owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != r.node:
		return r.refuse("node %q can only create pods with an owner reference set to itself", r.node)
	case owner.Controller == nil || !*owner.Controller:
		return r.refuse("node %q can only create pods with a controller owner reference set to itself", r.node)
	case owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion:
		return r.refuse("node %q must not set blockOwnerDeletion on an owner reference", r.node)
	}
	n, err := get[*corev1.Node](ctx, r, schema.GroupResource{Resource: "nodes"}, "", r.node)
	if apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		return r.refuse("error looking up node %s to verify uid: %w", r.node, err) // upstream's words
	}
	if owner.UID != n.UID {
		return r.refuse("node %s UID mismatch: expected %s got %s", r.node, owner.UID, n.UID)
	}
	what, err := apiObjects(pod)
	if err != nil {
		return r.refuse("error checking mirror pod for API references: %w", err) // upstream's words
	}
	if what != "" {
		return r.refuse("node %q can not create pods that reference %s", r.node, what)
	}
	return nil
}

// apiObjects returns a kind of API objects that a pod refers to; empty: it refers to none.
func apiObjects(pod *corev1.Pod) (string, error) {
	switch {
	case pod.Spec.ServiceAccountName != "":
		return "serviceaccounts", nil
	case podrefs.HasSecrets(pod):
		return "secrets", nil
	case podrefs.HasConfigMaps(pod):
		return "configmaps", nil
	case len(pod.Spec.ResourceClaims) > 0:
		return "resourceclaims", nil
	}
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.AWSElasticBlockStore != nil, v.AzureDisk != nil, v.CephFS != nil, v.Cinder != nil, v.DownwardAPI != nil, v.EmptyDir != nil,
			v.FC != nil, v.FlexVolume != nil, v.Flocker != nil, v.GCEPersistentDisk != nil, v.GitRepo != nil, v.HostPath != nil, v.Image != nil,
			v.ISCSI != nil, v.NFS != nil, v.PhotonPersistentDisk != nil, v.PortworxVolume != nil, v.Quobyte != nil, v.RBD != nil,
			v.ScaleIO != nil, v.StorageOS != nil, v.VsphereVolume != nil:
		case v.ConfigMap != nil:
			return "configmaps (via configmap volumes)", nil
		case v.Secret != nil:
			return "secrets (via secret volumes)", nil
		case v.CSI != nil:
			return "csidrivers (via CSI volumes)", nil
		case v.Glusterfs != nil:
			return "endpoints (via glusterFS volumes)", nil
		case v.PersistentVolumeClaim != nil:
			return "persistentvolumeclaims", nil
		case v.Ephemeral != nil:
			return "persistentvolumeclaims (via ephemeral volumes)", nil
		case v.AzureFile != nil:
			return "secrets (via azureFile volumes)", nil
		case v.Projected != nil:
			if what, err := projected(v); what != "" || err != nil {
				return what, err
			}
		default:
			return "", fmt.Errorf("unknown volume type for volume  %q", v.Name) // upstream's words
		}
	}
	return "", nil
}

func projected(v *corev1.Volume) (string, error) {
	for i := range v.Projected.Sources {
		switch s := &v.Projected.Sources[i]; {
		case s.ConfigMap != nil:
			return "configmaps (via projected volumes)", nil
		case s.Secret != nil:
			return "secrets (via projected volumes)", nil
		case s.ServiceAccountToken != nil:
			return "serviceaccounts (via projected volumes)", nil
		case s.ClusterTrustBundle != nil:
			return "clustertrustbundles", nil
		case s.PodCertificate != nil:
			return "podcertificates", nil
		case s.DownwardAPI != nil:
		default:
			return "", fmt.Errorf("unknown source for projected volume %q", v.Name) // upstream's words
		}
	}
	return "", nil
}

func (r *request) podStatus() error {
	if r.Operation != admit.Update {
		return r.refuse("unexpected operation %q", r.Operation)
	}
	pod, old, ok := admit.ObjectsOf[*corev1.Pod](r.Attributes)
	if old == nil {
		return r.unexpected(r.Old)
	}
	if old.Spec.NodeName != r.node {
		return r.refuse("node %q can only update pod status for pods with spec.nodeName set to itself", r.node)
	}
	if !ok {
		return r.unexpected(r.Object)
	}
	switch {
	case !labels.Equals(old.Labels, pod.Labels):
		return r.refuse("node %q cannot update labels through pod status", r.node)
	case !equal(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses):
		return r.refuse("node %q cannot update resource claim statues", r.node)
	case !sameExtended(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus):
		return r.refuse("node %q cannot update extended resource claim status", r.node)
	case !equal(old.Status.NodeAllocatableResourceClaimStatuses, pod.Status.NodeAllocatableResourceClaimStatuses):
		return r.refuse("node %q cannot update node allocatable resource claim statuses", r.node)
	}
	return nil
}

// equal compares lists in order. A nil list equals an empty one.
func equal[E any](a, b []E) bool {
	return slices.EqualFunc(a, b, func(x, y E) bool { return apiequality.Semantic.DeepEqual(x, y) })
}

func sameExtended(a, b *corev1.PodExtendedResourceClaimStatus) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ResourceClaimName == b.ResourceClaimName && slices.Equal(a.RequestMappings, b.RequestMappings)
}

func (r *request) eviction(ctx context.Context) error {
	if r.Operation != admit.Create {
		return r.refuse("unexpected operation %s", r.Operation)
	}
	eviction, ok := r.Object.(*policyv1.Eviction)
	if !ok {
		return r.unexpected(r.Object)
	}
	name := r.Name
	if name == "" {
		name = eviction.Name
	}
	if name == "" {
		return r.refuse("could not determine pod from request data")
	}
	pod, err := r.findPod(ctx, name)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != r.node {
		return r.refuse("node %s can only evict pods with spec.nodeName set to itself", r.node)
	}
	return nil
}

// claimStatus lets a node report a volume's size and conditions, and nothing else of its claim.
func (r *request) claimStatus() error {
	if r.Operation != admit.Update {
		return r.refuse("unexpected operation %q", r.Operation)
	}
	claim, old, ok := admit.ObjectsOf[*corev1.PersistentVolumeClaim](r.Attributes)
	if old == nil {
		return r.unexpected(r.Old)
	}
	if !ok {
		return r.unexpected(r.Object)
	}
	bare := func(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
		c = c.DeepCopy()
		c.ResourceVersion, c.ManagedFields = "", nil
		c.Status.Capacity, c.Status.Conditions = nil, nil
		c.Status.AllocatedResourceStatuses, c.Status.AllocatedResources = nil, nil
		return c
	}
	claim, old = bare(claim), bare(old)
	if !apiequality.Semantic.DeepEqual(old, claim) {
		return r.refuse("node %q is not allowed to update fields other than status.quantity and status.conditions: %v", r.node,
			diff.Diff(old, claim))
	}
	return nil
}

// itself decides on the node's own object. With other labels and taints the node could attract pods.
func (r *request) itself() error {
	name := r.Name
	if name == "" && r.Object != nil && r.Operation == admit.Create {
		name = r.Object.GetName()
	}
	if name != r.node {
		return r.refuse("node %q is not allowed to modify node %q", r.node, name)
	}
	if r.Operation != admit.Create && r.Operation != admit.Update {
		return nil
	}
	is, old, ok := admit.ObjectsOf[*corev1.Node](r.Attributes)
	if !ok {
		return r.unexpected(r.Object)
	}
	if r.Operation == admit.Create {
		if is.Spec.ConfigSource != nil {
			return r.refuse("node %q is not allowed to create pods with a non-nil configSource", r.node)
		}
		if bad := forbidden(is.Labels, nil); len(bad) > 0 {
			return r.refuse("node %q is not allowed to set the following labels: %s", r.node, strings.Join(bad, ", "))
		}
		return nil
	}
	if old == nil {
		return r.unexpected(r.Object)
	}
	switch {
	case is.Spec.ConfigSource != nil && !apiequality.Semantic.DeepEqual(is.Spec.ConfigSource, old.Spec.ConfigSource):
		return r.refuse("node %q is not allowed to update configSource to a new non-nil configSource", r.node)
	case !apiequality.Semantic.DeepEqual(is.Spec.Taints, old.Spec.Taints):
		return r.refuse("node %q is not allowed to modify taints", r.node)
	case !apiequality.Semantic.DeepEqual(is.OwnerReferences, old.OwnerReferences):
		return r.refuse("node %q is not allowed to modify ownerReferences", r.node)
	}
	if bad := forbidden(is.Labels, old.Labels); len(bad) > 0 {
		return r.refuse("is not allowed to modify labels: %s", strings.Join(bad, ", "))
	}
	return nil
}

// forbidden returns the labels that differ and that a node may not set, sorted.
func forbidden(is, old map[string]string) []string {
	var bad []string
	differ := func(from, to map[string]string) {
		for label, value := range from {
			if v, ok := to[label]; (!ok || v != value) && !nodeLabel(label) {
				bad = append(bad, label)
			}
		}
	}
	differ(is, old)
	differ(old, is)
	slices.Sort(bad)
	return slices.Compact(bad)
}

// nodeLabel reports whether a node may set a label of itself.
func nodeLabel(label string) bool {
	domain, _, ok := strings.Cut(label, "/")
	if !ok {
		return true
	}
	within := func(of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }
	if within(corev1.LabelNamespaceNodeRestriction) {
		return false
	}
	return !within("kubernetes.io") && !within("k8s.io") || kubeletapis.IsKubeletLabel(label)
}

func (r *request) lease() error {
	if r.Namespace != corev1.NamespaceNodeLease {
		return r.refuse("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	name := r.Name
	if r.Operation == admit.Create {
		lease, ok := r.Object.(*coordinationv1.Lease)
		if !ok {
			return r.unexpected(r.Object)
		}
		name = lease.Name
	}
	if name != r.node {
		return r.refuse("can only access node lease with the same name as the requesting node")
	}
	return nil
}

func (r *request) csiNode() error {
	name := r.Name
	if r.Operation == admit.Create {
		name = r.Object.GetName()
	}
	if name != r.node {
		return r.refuse("can only access CSINode with the same name as the requesting node")
	}
	if r.Subresource == "status" {
		return r.refuse("CSIVolumeHealth feature gate is disabled")
	}
	return nil
}

func (r *request) slice() error {
	obj, what := r.Object, "create"
	switch r.Operation {
	case admit.Create:
	case admit.Delete:
		obj, what = r.Old, "delete"
	default:
		return nil
	}
	if obj == nil && r.Operation == admit.Delete {
		return nil // each object of a deletecollection is checked separately
	}
	slice, ok := obj.(*resourcev1.ResourceSlice)
	if !ok {
		return r.unexpected(obj)
	}
	if slice.Spec.NodeName == nil || *slice.Spec.NodeName != r.node {
		return r.refuse("can only %s ResourceSlice with the same NodeName as the requesting node", what)
	}
	return nil
}

func (r *request) certificate() error {
	csr, ok := r.Object.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return r.unexpected(r.Object)
	}
	if csr.Spec.SignerName != certificatesv1.KubeletServingSignerName &&
		csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	cn, err := commonName(csr.Spec.Request)
	if err != nil {
		return r.refuse("unable to parse csr: %w", err) // upstream's words
	}
	if cn != "system:node:"+r.node {
		return r.refuse("can only create a node CSR with CN=system:node:%s", r.node)
	}
	return nil
}

func commonName(request []byte) (string, error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return "", errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return "", err
	}
	return csr.Subject.CommonName, nil
}

// may asks the authorizer whether an administrator granted the node more than its pods mount.
func (r *request) may(ctx context.Context, verb, what, name string) (bool, error) {
	if r.plugin.host == nil {
		return false, nil
	}
	d, _, err := r.plugin.host.Authorize(ctx, authorizer.AttributesRecord{
		User: r.User, Verb: verb, APIGroup: r.Descriptor.Group, APIVersion: r.Version, Resource: what, Namespace: r.Namespace, Name: name,
		ResourceRequest: true,
	})
	if d == authorizer.DecisionAllow {
		return true, nil
	}
	return false, err
}

// token decides on a service account's token, which must be for a pod of the node.
func (r *request) token(ctx context.Context) error {
	t, ok := r.Object.(*authenticationv1.TokenRequest)
	if !ok {
		return r.unexpected(r.Object)
	}
	ref := t.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return r.refuse("node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return r.refuse("node requested token with a pod binding without a uid")
	}
	pod, err := r.findPod(ctx, ref.Name)
	if err != nil {
		return err
	}
	if ref.UID != pod.UID {
		return r.refuse("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	}
	if pod.Spec.NodeName != r.node {
		return r.refuse("node requested token bound to a pod scheduled on a different node")
	}
	if err := r.audience(ctx, t, pod); err != nil {
		return admit.Forbidden(r.Attributes, err)
	}
	return nil
}
