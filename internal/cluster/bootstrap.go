// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/discovery"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
	"github.com/mortise-dev/mortise/resource"
)

// bootstrapper creates the bootstrap objects and repairs them.
type bootstrapper struct {
	server     *apiserver.Server
	self       components
	encryption encrypting
	log        *slog.Logger
}

// makeObjects creates the bootstrap objects in one commit, and repairs those that were changed while the server did not run. It reports
// whether the ConfigMap that tracks legacy tokens existed.
func (b *bootstrapper) makeObjects(ctx context.Context, objects []bootstrap.Object) (tracked bool, err error) {
	found, err := b.server.CreateMissing(ctx, bootstrapObjects(objects))
	if err != nil && b.encryption.ill(ctx) { // perhaps only the ConfigMaps cannot be encrypted or read; they are restored later
		b.log.WarnContext(ctx, "Could not create the objects of every cluster, retrying without the ConfigMaps", "error", err)
		objects = slices.DeleteFunc(objects, func(o bootstrap.Object) bool { return o.Resource == configMaps })
		found, err = b.server.CreateMissing(ctx, bootstrapObjects(objects))
	}
	if err != nil {
		return false, fmt.Errorf("create the objects of every cluster: %w", err)
	}
	b.repairAll(ctx, objects, found)
	return slices.ContainsFunc(found, func(is resource.Object) bool {
		m, ok := is.(*corev1.ConfigMap)
		return ok && m.Name == bootstrap.TrackingName
	}), nil
}

func bootstrapObjects(objects []bootstrap.Object) []registry.BootstrapObject {
	out := make([]registry.BootstrapObject, len(objects))
	for i, o := range objects {
		out[i] = registry.BootstrapObject{Resource: o.Resource, Object: o.Object, Finish: o.Finish, Fields: o.Fields}
	}
	return out
}

// keep restores some of the objects whenever they change. Roles, registrations and the rest are reconciled when a server starts.
func (b *bootstrapper) keep(objects func() []bootstrap.Object) {
	b.server.Repair(func(ctx context.Context) error {
		var kept []bootstrap.Object
		for _, o := range objects() {
			switch o.Object.(type) {
			case *flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration, *networkingv1.ServiceCIDR:
				kept = append(kept, o)
			}
		}
		plants := bootstrapObjects(kept)
		found, err := b.server.CreateMissing(ctx, plants)
		b.repairAll(ctx, kept, found)
		return errors.Join(err, b.dropFormer(ctx, kept))
	})
}

// repairAll repairs the objects that existed.
func (b *bootstrapper) repairAll(ctx context.Context, objects []bootstrap.Object, found []resource.Object) {
	for i, is := range found {
		if is == nil {
			continue
		}
		if err := b.repair(ctx, objects[i], is); err != nil {
			b.log.ErrorContext(ctx, "Could not reconcile a bootstrap object", "resource", objects[i].Resource, "name", is.GetName(), "error", err)
		}
	}
}

// identity returns a server's name among those of its store, derived from the host's name as upstream does.
func identity(hostname string) string {
	var named []byte
	for _, part := range []string{hostname, "kube-apiserver"} {
		named = append(binary.BigEndian.AppendUint16(named, uint16(len(part))), part...)
	}
	hash := sha256.Sum256(named)
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:16]))
}

// builtInOf returns the kinds that a server has without definitions.
func builtInOf(server *apiserver.Server) []*resource.Descriptor {
	custom := map[*resource.Descriptor]bool{}
	for _, d := range server.Definitions().Descriptors() {
		custom[d] = true
	}
	return slices.DeleteFunc(slices.Clone(server.Kinds()), func(d *resource.Descriptor) bool { return custom[d] })
}

// served returns the group-versions that the server serves itself, except the group of APIServices, which is not registered,
// and groups that give way to other servers.
func served(server *apiserver.Server) []bootstrap.GroupVersion {
	var out []bootstrap.GroupVersion
	seen := map[schema.GroupVersion]bool{{Group: apiregistrationv1.GroupName, Version: "v1"}: true}
	for _, d := range builtInOf(server) {
		for _, v := range d.Versions {
			gv := schema.GroupVersion{Group: d.Group, Version: v.Name}
			if v.Unserved || seen[gv] || v.Derived != nil { // the administrator registers servers of metrics.k8s.io

				continue
			}
			seen[gv] = true
			group, version := discovery.Priorities(gv)
			out = append(out, bootstrap.GroupVersion{GroupVersion: gv, GroupPriority: int32(group), VersionPriority: int32(version)})
		}
	}
	return out
}

// repair adds what is lacks of want. Roles and bindings keep additions, and are repaired unless their annotation forbids it; flow schemas
// and levels are repaired if theirs allows it.
func (b *bootstrapper) repair(ctx context.Context, want bootstrap.Object, is resource.Object) error {
	switch w := want.Object.(type) {
	case *rbacv1.ClusterRole:
		return b.repairRole(w, is.(*rbacv1.ClusterRole))
	case *rbacv1.Role:
		if r := is.(*rbacv1.Role); apiequality.Semantic.DeepEqual(w.Rules, r.Rules) && says(&w.ObjectMeta, r) {
			return nil
		}
		c := b.self.ownClient()
		o := reconciliation.ReconcileRoleOptions{
			Role: reconciliation.RoleRuleOwner{Role: w.DeepCopy()}, Confirm: true,
			Client: reconciliation.RoleModifier{Client: c.RbacV1(), NamespaceClient: c.CoreV1().Namespaces()},
		}
		_, err := o.Run()
		return err
	case *rbacv1.ClusterRoleBinding:
		if is := is.(*rbacv1.ClusterRoleBinding); apiequality.Semantic.DeepEqual(w.Subjects, is.Subjects) && w.RoleRef == is.RoleRef &&
			says(&w.ObjectMeta, is) {
			return nil
		}
		o := reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: w.DeepCopy()}, Confirm: true,
			Client: reconciliation.ClusterRoleBindingClientAdapter{Client: b.self.ownClient().RbacV1().ClusterRoleBindings()},
		}
		_, err := o.Run()
		return err
	case *rbacv1.RoleBinding:
		if is := is.(*rbacv1.RoleBinding); apiequality.Semantic.DeepEqual(w.Subjects, is.Subjects) && w.RoleRef == is.RoleRef &&
			says(&w.ObjectMeta, is) {
			return nil
		}
		c := b.self.ownClient()
		o := reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.RoleBindingAdapter{RoleBinding: w.DeepCopy()}, Confirm: true,
			Client: reconciliation.RoleBindingClientAdapter{Client: c.RbacV1(), NamespaceClient: c.CoreV1().Namespaces()},
		}
		_, err := o.Run()
		return err
	case *flowcontrolv1.FlowSchema:
		return b.repairFlowSchema(ctx, w, is.(*flowcontrolv1.FlowSchema))
	case *flowcontrolv1.PriorityLevelConfiguration:
		return b.repairPriorityLevel(ctx, w, is.(*flowcontrolv1.PriorityLevelConfiguration))
	case *coordinationv1.Lease:
		l := is.(*coordinationv1.Lease).DeepCopy()
		l.Labels, l.Annotations, l.Spec = w.Labels, w.Annotations, w.Spec
		_, err := b.self.ownClient().CoordinationV1().Leases(l.Namespace).Update(ctx, l, metav1.UpdateOptions{})
		return err
	case *apiregistrationv1.APIService:
		if a := is.(*apiregistrationv1.APIService); a.Labels[automanaged] == "" || apiequality.Semantic.DeepEqual(w.Spec, a.Spec) {
			return nil
		}
		_, err := b.server.Backend().Update(ctx, want.Resource, "", is.GetName(), false, func(obj resource.Object) error {
			obj.(*apiregistrationv1.APIService).Spec = w.Spec
			return nil
		})
		return err
	}
	return nil
}

func (b *bootstrapper) repairRole(w, r *rbacv1.ClusterRole) error {
	same := apiequality.Semantic.DeepEqual(w.AggregationRule, r.AggregationRule) &&
		(w.AggregationRule != nil || apiequality.Semantic.DeepEqual(w.Rules, r.Rules)) // the rules of an aggregate are computed
	if same && says(&w.ObjectMeta, r) {
		return nil
	}
	o := reconciliation.ReconcileRoleOptions{
		Role: reconciliation.ClusterRoleRuleOwner{ClusterRole: w.DeepCopy()}, Confirm: true,
		Client: reconciliation.ClusterRoleModifier{Client: b.self.ownClient().RbacV1().ClusterRoles()},
	}
	_, err := o.Run()
	return err
}

// says reports whether is has all labels and annotations of want.
func says(want, is metav1.Object) bool {
	for key, value := range want.GetLabels() {
		if is.GetLabels()[key] != value {
			return false
		}
	}
	for key := range want.GetAnnotations() {
		if _, ok := is.GetAnnotations()[key]; !ok {
			return false
		}
	}
	return true
}
