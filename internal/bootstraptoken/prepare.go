// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package bootstraptoken

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	watchtools "k8s.io/client-go/tools/watch"
)

// The ConfigMap by which clients without credentials find the cluster.
const (
	InfoName = "cluster-info"
	InfoKey  = "kubeconfig"

	signaturePrefix = "jws-kubeconfig-"
)

// SignatureKey is the key in a ConfigMap of the signature by the token with that ID.
func SignatureKey(id string) string { return signaturePrefix + id }

// Roles of ours. Those of the bindings otherwise are Kubernetes' own, and the bindings have the names that its documents
// give them.
const (
	nodeNames   = "mortise:get-nodes"
	nodeNetwork = "mortise:node-network"
	readInfo    = "mortise:cluster-info"
)

// Prepare creates the objects that joining needs, if they are missing: bootstrapping users may request nodes' certificates,
// which are approved, as are those with which nodes rotate their own; nodes may read the objects that proxy and DNS follow;
// all users may read the ConfigMap cluster-info, which has the given URL and CAs.
func Prepare(ctx context.Context, client kubernetes.Interface, url string, authorities []byte) error {
	const bootstrappers, nodes = "system:bootstrappers", "system:nodes"
	roles := []*rbacv1.ClusterRole{
		{ObjectMeta: metav1.ObjectMeta{Name: nodeNames}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""},
			Resources: []string{"nodes"}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: nodeNetwork}, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"namespaces", "nodes", "services"}},
			{Verbs: []string{"list", "watch"}, APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}},
			{Verbs: []string{"list", "watch"}, APIGroups: []string{"networking.k8s.io"}, Resources: []string{"servicecidrs"}},
		}},
	}
	for _, r := range roles {
		if _, err := client.RbacV1().ClusterRoles().Create(ctx, r, metav1.CreateOptions{}); there(err) != nil {
			return fmt.Errorf("make role %s: %w", r.Name, err)
		}
	}
	for _, b := range []struct{ name, role, group string }{
		{"create-csrs-for-bootstrapping", "system:node-bootstrapper", bootstrappers},
		{"auto-approve-csrs-for-group", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", bootstrappers},
		{"auto-approve-renewals-for-nodes", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", nodes},
		{nodeNames, nodeNames, bootstrappers},
		{nodeNetwork, nodeNetwork, nodes},
	} {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: b.name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: b.role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: b.group}},
		}
		if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); there(err) != nil {
			return fmt.Errorf("bind role %s: %w", b.role, err)
		}
	}
	return publish(ctx, client, url, authorities)
}

// there takes what is there for what was made.
func there(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// publish creates the ConfigMap and lets all users read it.
func publish(ctx context.Context, client kubernetes.Interface, url string, authorities []byte) error {
	config := clientcmdapi.NewConfig()
	config.Clusters[""] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: authorities}
	text, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("write %s: %w", InfoName, err)
	}
	info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: InfoName, Namespace: metav1.NamespacePublic},
		Data: map[string]string{InfoKey: string(text)}}
	if _, err := client.CoreV1().ConfigMaps(metav1.NamespacePublic).Create(ctx, info, metav1.CreateOptions{}); there(err) != nil {
		return fmt.Errorf("make config map %s: %w", InfoName, err)
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: readInfo, Namespace: metav1.NamespacePublic}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{InfoName}},
	}}
	if _, err := client.RbacV1().Roles(metav1.NamespacePublic).Create(ctx, role, metav1.CreateOptions{}); there(err) != nil {
		return fmt.Errorf("make role %s: %w", readInfo, err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: readInfo, Namespace: metav1.NamespacePublic},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: readInfo},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:anonymous"}},
	}
	if _, err := client.RbacV1().RoleBindings(metav1.NamespacePublic).Create(ctx, binding, metav1.CreateOptions{}); there(err) != nil {
		return fmt.Errorf("bind role %s: %w", readInfo, err)
	}
	return nil
}

// AwaitSignature waits until cluster-info is signed with the token, so that a node can join from then on.
func AwaitSignature(ctx context.Context, client kubernetes.Interface, id string) error {
	only := fields.OneTermEqualSelector("metadata.name", InfoName).String()
	maps := client.CoreV1().ConfigMaps(metav1.NamespacePublic)
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			return maps.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return maps.Watch(ctx, o)
		},
	}
	_, err := watchtools.UntilWithSync(ctx, cache.ToListWatcherWithWatchListSemantics(source, client), &corev1.ConfigMap{}, nil,
		func(e watch.Event) (bool, error) {
			m, ok := e.Object.(*corev1.ConfigMap)
			if !ok || e.Type == watch.Deleted {
				return false, nil
			}
			_, signed := m.Data[SignatureKey(id)]
			return signed, nil
		})
	if err != nil {
		return errors.Join(fmt.Errorf("await signature of %s with token %s", InfoName, id), err)
	}
	return nil
}
