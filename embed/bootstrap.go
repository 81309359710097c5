// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/discovery"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
	"github.com/mortise-dev/mortise/resource"
)

// makeObjects makes the objects that every cluster has, in one commit, and gives those that were changed while the server
// was away what they must at least say.
func makeObjects(ctx context.Context, p *parts, o *settled) error {
	now := time.Now()
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("find the host's name: %w", err)
	}
	known, err := p.trusts().combine(nil, now)
	if err != nil {
		return err
	}
	objects := bootstrap.Objects(bootstrap.Options{
		ServiceCIDR: o.serviceCIDRs, Served: p.served(), Now: now, Authentication: known, Trusting: !o.bare,
		Identity: identity(hostname), Hostname: hostname, AdvertiseAddress: netip.AddrPortFrom(o.advertise(), uint16(p.port())).String(),
	})
	plants := make([]registry.BootstrapObject, len(objects))
	for i, obj := range objects {
		plants[i] = registry.BootstrapObject{Resource: obj.Resource, Object: obj.Object, Finish: obj.Finish, Fields: obj.Fields}
	}
	found, err := p.api.CreateMissing(ctx, plants)
	if err != nil && p.encryption.ill(ctx) { // config maps may be what cannot be sealed or read yet; they are kept below
		o.log.WarnContext(ctx, "make what every cluster has; now without the config maps", "error", err)
		objects = slices.DeleteFunc(objects, func(o bootstrap.Object) bool { return o.Resource == configMaps })
		plants = slices.DeleteFunc(plants, func(p registry.BootstrapObject) bool { return p.Resource == configMaps })
		found, err = p.api.CreateMissing(ctx, plants)
	}
	if err != nil {
		return fmt.Errorf("make what every cluster has: %w", err)
	}
	p.repairAll(ctx, o, objects, found)
	// Roles, registrations and the rest are looked at when a server starts; these whenever somebody changes them.
	var kept []bootstrap.Object
	var keep []registry.BootstrapObject
	for i, obj := range objects {
		switch obj.Object.(type) {
		case *flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration, *networkingv1.ServiceCIDR:
			kept, keep = append(kept, obj), append(keep, plants[i])
		}
	}
	p.api.Repair(func(ctx context.Context) error {
		found, err := p.api.CreateMissing(ctx, keep)
		p.repairAll(ctx, o, kept, found)
		return errors.Join(err, p.dropFormer(ctx, kept))
	})
	look := p.keepMaps(found)
	name := identity(hostname)
	p.server.Go(func() { p.stay(p.server.context, o, name, look) })
	close(p.bootstrapped)
	return nil
}

// stay renews the server's lease until ctx ends, and each time calls also.
func (p *parts) stay(ctx context.Context, o *settled, lease string, also func()) {
	t := time.NewTicker(bootstrap.LeaseSeconds * time.Second / 6)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			also()
			leases := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
			_, err := p.api.Backend().Update(ctx, leases, metav1.NamespaceSystem, lease, false, func(obj resource.Object) error {
				renewed := metav1.NewMicroTime(now)
				obj.(*coordinationv1.Lease).Spec.RenewTime = &renewed
				return nil
			})
			if err != nil && ctx.Err() == nil {
				o.log.WarnContext(ctx, "renew the server's lease", "name", lease, "error", err)
			}
		}
	}
}

// repairAll repairs what was found of the objects.
func (p *parts) repairAll(ctx context.Context, o *settled, objects []bootstrap.Object, found []resource.Object) {
	for i, is := range found {
		if is == nil {
			continue
		}
		if err := p.repair(ctx, objects[i], is); err != nil {
			o.log.ErrorContext(ctx, "repair an object of the server's own", "resource", objects[i].Resource, "name", is.GetName(), "error", err)
		}
	}
}

// identity is a server's name among those of its store, as upstream makes it of the host's.
func identity(hostname string) string {
	var named []byte
	for _, part := range []string{hostname, "kube-apiserver"} {
		named = append(binary.BigEndian.AppendUint16(named, uint16(len(part))), part...)
	}
	hash := sha256.Sum256(named)
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:16]))
}

// served are the group-versions that the server answers itself, save that of registrations, which is not registered.
func (p *parts) served() []bootstrap.GroupVersion {
	var out []bootstrap.GroupVersion
	seen := map[schema.GroupVersion]bool{{Group: apiregistrationv1.GroupName, Version: "v1"}: true}
	custom := map[*resource.Descriptor]bool{}
	for _, d := range p.api.Definitions().Descriptors() {
		custom[d] = true
	}
	for _, d := range p.api.Kinds() {
		if custom[d] {
			continue
		}
		for _, v := range d.Versions {
			gv := schema.GroupVersion{Group: d.Group, Version: v.Name}
			if v.Unserved || seen[gv] {
				continue
			}
			seen[gv] = true
			group, version := discovery.Priorities(gv)
			out = append(out, bootstrap.GroupVersion{GroupVersion: gv, GroupPriority: int32(group), VersionPriority: int32(version)})
		}
	}
	return out
}

// repair gives is what want says and it lacks. Roles and bindings keep what was added to them, and follow unless their
// annotation forbids it; flow schemas and levels follow where theirs says so.
func (p *parts) repair(ctx context.Context, want bootstrap.Object, is resource.Object) error {
	switch w := want.Object.(type) {
	case *rbacv1.ClusterRole:
		return p.repairRole(w, is.(*rbacv1.ClusterRole))
	case *rbacv1.Role:
		if r := is.(*rbacv1.Role); apiequality.Semantic.DeepEqual(w.Rules, r.Rules) && says(&w.ObjectMeta, r) {
			return nil
		}
		c := p.ownClient()
		o := reconciliation.ReconcileRoleOptions{
			Role: reconciliation.RoleRuleOwner{Role: w.DeepCopy()}, Confirm: true,
			Client: reconciliation.RoleModifier{Client: c.RbacV1(), NamespaceClient: c.CoreV1().Namespaces()},
		}
		_, err := o.Run()
		return err
	case *rbacv1.ClusterRoleBinding:
		if b := is.(*rbacv1.ClusterRoleBinding); apiequality.Semantic.DeepEqual(w.Subjects, b.Subjects) && w.RoleRef == b.RoleRef && says(&w.ObjectMeta, b) {
			return nil
		}
		o := reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: w.DeepCopy()}, Confirm: true,
			Client: reconciliation.ClusterRoleBindingClientAdapter{Client: p.ownClient().RbacV1().ClusterRoleBindings()},
		}
		_, err := o.Run()
		return err
	case *rbacv1.RoleBinding:
		if b := is.(*rbacv1.RoleBinding); apiequality.Semantic.DeepEqual(w.Subjects, b.Subjects) && w.RoleRef == b.RoleRef && says(&w.ObjectMeta, b) {
			return nil
		}
		c := p.ownClient()
		o := reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: reconciliation.RoleBindingAdapter{RoleBinding: w.DeepCopy()}, Confirm: true,
			Client: reconciliation.RoleBindingClientAdapter{Client: c.RbacV1(), NamespaceClient: c.CoreV1().Namespaces()},
		}
		_, err := o.Run()
		return err
	case *flowcontrolv1.FlowSchema:
		return p.repairFlowSchema(ctx, w, is.(*flowcontrolv1.FlowSchema))
	case *flowcontrolv1.PriorityLevelConfiguration:
		return p.repairPriorityLevel(ctx, w, is.(*flowcontrolv1.PriorityLevelConfiguration))
	case *coordinationv1.Lease:
		l := is.(*coordinationv1.Lease).DeepCopy()
		l.Labels, l.Annotations, l.Spec = w.Labels, w.Annotations, w.Spec
		_, err := p.ownClient().CoordinationV1().Leases(l.Namespace).Update(ctx, l, metav1.UpdateOptions{})
		return err
	case *apiregistrationv1.APIService:
		if a := is.(*apiregistrationv1.APIService); a.Labels[automanaged] == "" || apiequality.Semantic.DeepEqual(w.Spec, a.Spec) {
			return nil
		}
		_, err := p.api.Backend().Update(ctx, want.Resource, "", is.GetName(), false, func(obj resource.Object) error {
			obj.(*apiregistrationv1.APIService).Spec = w.Spec
			return nil
		})
		return err
	}
	return nil
}

func (p *parts) repairRole(w, r *rbacv1.ClusterRole) error {
	same := apiequality.Semantic.DeepEqual(w.AggregationRule, r.AggregationRule) &&
		(w.AggregationRule != nil || apiequality.Semantic.DeepEqual(w.Rules, r.Rules)) // those of an aggregate are gathered
	if same && says(&w.ObjectMeta, r) {
		return nil
	}
	o := reconciliation.ReconcileRoleOptions{
		Role: reconciliation.ClusterRoleRuleOwner{ClusterRole: w.DeepCopy()}, Confirm: true,
		Client: reconciliation.ClusterRoleModifier{Client: p.ownClient().RbacV1().ClusterRoles()},
	}
	_, err := o.Run()
	return err
}

// says is true if is has all labels and annotations of want.
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

// ownClient is the server as a client of itself.
func (p *parts) ownClient() kubernetes.Interface { return kubernetes.NewForConfigOrDie(p.ownConfig()) }

func (p *parts) ownConfig() *rest.Config {
	c := p.as(apiserverUser())
	c.UserAgent = "kube-apiserver"
	return c
}
