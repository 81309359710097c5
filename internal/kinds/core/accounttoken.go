// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// apiAudience is the default audience of a token.
const apiAudience = "https://kubernetes.default.svc.cluster.local"

var tokenRequest = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")

// accountToken is serviceaccounts/token: a POST returns a signed token.
func accountToken() resource.Subresource {
	return resource.Subresource{
		Name:             "token",
		GroupVersionKind: tokenRequest,
		Verbs:            []string{"create"},
		Create: &resource.Create{
			New:     func() resource.Object { return &authenticationv1.TokenRequest{} },
			Default: func(obj resource.Object) { upstream.Default(obj) },
			Do:      issueToken,
		},
	}
}

// issueToken signs a token for an account, bound to a pod, node or secret if the request names one.
func issueToken(ctx context.Context, b resource.Backend, namespace, name string, obj resource.Object,
	_ *metav1.CreateOptions) (runtime.Object, error) {
	in, ok := obj.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a TokenRequest: %T", obj))
	}
	req := in.DeepCopy()
	if req.Name != "" && req.Name != name {
		return nil, apierrors.NewInvalid(tokenRequest.GroupKind(), name, kind.Invalid(
			field.Invalid(field.NewPath("metadata", "name"), req.Name, "must match the service account name if specified")))
	}
	if req.Namespace != "" && req.Namespace != namespace {
		return nil, apierrors.NewInvalid(tokenRequest.GroupKind(), name, kind.Invalid(
			field.Invalid(field.NewPath("metadata", "namespace"), req.Namespace, "must match the service account namespace if specified")))
	}
	account, err := b.Get(ctx, schema.GroupResource{Resource: "serviceaccounts"}, namespace, name)
	if err != nil {
		return nil, err
	}
	if req.UID != "" && req.UID != account.GetUID() {
		return nil, apierrors.NewConflict(schema.GroupResource{Group: tokenRequest.Group, Resource: tokenRequest.Kind}, name,
			fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", req.UID, account.GetUID()))
	}
	unset := len(req.Spec.Audiences) == 0
	if unset { // the server's own audiences, which the signer knows
		req.Spec.Audiences = []string{apiAudience}
	}
	req.Name, req.Namespace, req.UID = name, namespace, account.GetUID()
	req.Status = authenticationv1.TokenRequestStatus{}
	if errs := upstream.TokenRequest(req); len(errs) > 0 {
		return nil, apierrors.NewInvalid(tokenRequest.GroupKind(), "", errs)
	}
	claims := resource.TokenClaims{
		Namespace:         namespace,
		ServiceAccount:    name,
		ServiceAccountUID: string(account.GetUID()),
	}
	if !unset {
		claims.Audiences = slices.Clone(req.Spec.Audiences)
	}
	if req.Spec.ExpirationSeconds != nil {
		claims.Seconds = *req.Spec.ExpirationSeconds
	}
	if req.Spec.BoundObjectRef != nil {
		if err := bindToken(ctx, b, req.Spec.BoundObjectRef, &claims); err != nil {
			return nil, err
		}
	}
	issued, err := b.IssueToken(ctx, claims)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("failed to generate token: %w", err)) // upstream's words
	}
	req.Spec.Audiences, req.Spec.ExpirationSeconds = issued.Audiences, &issued.Seconds
	req.CreationTimestamp = metav1.Now()
	req.Status = authenticationv1.TokenRequestStatus{Token: issued.Token, ExpirationTimestamp: issued.Expires}
	return req, nil
}

// bindToken binds the token to an object: the token is invalid once the object is deleted.
func bindToken(ctx context.Context, b resource.Backend, ref *authenticationv1.BoundObjectReference, claims *resource.TokenClaims) error {
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	var uid types.UID
	switch gvk.GroupKind() {
	case schema.GroupKind{Kind: "Pod"}:
		obj, err := b.Get(ctx, schema.GroupResource{Resource: "pods"}, claims.Namespace, ref.Name)
		if err != nil {
			return err
		}
		pod, ok := obj.(*corev1.Pod)
		if !ok || pod.Spec.ServiceAccountName != claims.ServiceAccount {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.",
				claims.ServiceAccount))
		}
		uid = pod.UID
		claims.PodName, claims.PodUID, claims.NodeName = pod.Name, string(pod.UID), pod.Spec.NodeName
		if pod.Spec.NodeName == "" {
			break
		}
		switch node, err := b.Get(ctx, schema.GroupResource{Resource: "nodes"}, "", pod.Spec.NodeName); {
		case err == nil:
			claims.NodeUID = string(node.GetUID())
		case !apierrors.IsNotFound(err):
			return apierrors.NewInternalError(err)
		}
	case schema.GroupKind{Kind: "Node"}:
		node, err := b.Get(ctx, schema.GroupResource{Resource: "nodes"}, "", ref.Name)
		if err != nil {
			return err
		}
		uid = node.GetUID()
		claims.NodeName, claims.NodeUID = ref.Name, string(uid)
	case schema.GroupKind{Kind: "Secret"}:
		secret, err := b.Get(ctx, schema.GroupResource{Resource: "secrets"}, claims.Namespace, ref.Name)
		if err != nil {
			return err
		}
		uid = secret.GetUID()
		claims.SecretName, claims.SecretUID = ref.Name, string(uid)
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk.String()))
	}
	if ref.UID != "" && uid != ref.UID {
		return apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, ref.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return nil
}
