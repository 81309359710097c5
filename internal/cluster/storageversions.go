// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
	"github.com/mortise-dev/mortise/resource"
)

var storageVersionObjects = schema.GroupResource{Group: apiserverinternalv1alpha1.GroupName, Resource: "storageversions"}

// storageVersionCollector is the account of kube-controller-manager's collector of reports of servers that are gone. It has a role with
// the feature gate, as upstream; here the servers themselves collect these reports.
var storageVersionCollector = bootstrap.Account{Name: "storage-version-garbage-collector", Rules: []rbacv1.PolicyRule{
	{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"get", "list", "watch"}},
	{
		APIGroups: []string{storageVersionObjects.Group}, Resources: []string{storageVersionObjects.Resource},
		Verbs: []string{"delete", "get", "list", "patch", "update", "watch"},
	},
	{
		APIGroups: []string{storageVersionObjects.Group}, Resources: []string{storageVersionObjects.Resource + "/status"},
		Verbs: []string{"get", "patch", "update"},
	},
}}

// storageVersions reports in which versions this server stores the built-in kinds, in objects of the kind StorageVersion, as kube-apiserver
// does with the feature gate StorageVersionAPI (KEP-2339). A storage version migrator reads there whether all servers agree.
//
// One goroutine at a time calls its methods, but for Pending.
type storageVersions struct {
	server  string // the name of the server's Lease
	log     *slog.Logger
	backend resource.Backend
	reports []storageVersion // sorted by name

	mu      sync.Mutex
	pending map[schema.GroupResource]error // not reported yet, each with the error of the last attempt
}

// storageVersion is what is reported of kinds with the same stored objects.
type storageVersion struct {
	name  string // of the object: GROUP.RESOURCE
	kinds []schema.GroupResource
	is    apiserverinternalv1alpha1.ServerStorageVersion
}

// makeStorageVersions returns what reports storage versions; nil: the feature gate is off.
func makeStorageVersions(c *settings) (*storageVersions, error) {
	if !c.versions {
		return nil, nil
	}
	id, err := serverID()
	if err != nil {
		return nil, err
	}
	return &storageVersions{server: id, log: c.Logger}, nil
}

// begin sets of which kinds the server reports, and how it writes the reports.
func (s *storageVersions) begin(backend resource.Backend, kinds []*resource.Descriptor) {
	s.backend, s.reports = backend, storageVersionsOf(s.server, kinds)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = map[schema.GroupResource]error{}
	for _, r := range s.reports {
		for _, k := range r.kinds {
			s.pending[k] = nil
		}
	}
}

// Pending implements [apiserver.StorageVersions].
func (s *storageVersions) Pending(r schema.GroupResource) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.pending[r]
	return ok, last
}

// storageVersionsOf returns what a server reports of its kinds. Kinds whose objects are the same are one, under the name of the first
// group.
func storageVersionsOf(server string, kinds []*resource.Descriptor) []storageVersion {
	kinds = slices.SortedFunc(slices.Values(kinds), func(a, b *resource.Descriptor) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	})
	var all []storageVersion
	at := map[string]int{} // by the prefix of the keys
	for _, d := range kinds {
		var served []string
		for _, v := range d.Versions {
			if !v.Unserved && v.Derived == nil {
				served = append(served, schema.GroupVersion{Group: d.Group, Version: v.Name}.String())
			}
		}
		if len(served) == 0 || d.Codec == nil || d.Create != nil || d.Verbs != nil && !slices.Contains(d.Verbs, "create") {
			continue // nothing of it is stored
		}
		if i, ok := at[d.Prefix]; ok {
			all[i].kinds = append(all[i].kinds, d.GroupResource())
			all[i].is.DecodableVersions = append(all[i].is.DecodableVersions, served...)
			continue
		}
		stored := d.StoredGroupVersion()
		decodable := slices.Clone(served)
		if !slices.Contains(decodable, stored.String()) {
			decodable = append(decodable, stored.String())
		}
		at[d.Prefix] = len(all)
		all = append(all, storageVersion{
			name: cmp.Or(d.Group, "core") + "." + d.Resource, kinds: []schema.GroupResource{d.GroupResource()},
			is: apiserverinternalv1alpha1.ServerStorageVersion{
				APIServerID: server, EncodingVersion: stored.String(), DecodableVersions: decodable, ServedVersions: served,
			},
		})
	}
	return all
}

// report writes all reports. Those that are as they should be are not written again.
func (s *storageVersions) report(ctx context.Context) error {
	var errs []error
	for _, r := range s.reports {
		err := s.write(ctx, r)
		if err != nil {
			errs = append(errs, fmt.Errorf("report the storage version of %s: %w", r.name, err))
		}
		s.written(r, err)
	}
	return errors.Join(errs...)
}

// written lets writes of the kinds pass, or notes why they do not yet. What was reported once stays so.
func (s *storageVersions) written(r storageVersion, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range r.kinds {
		if _, ok := s.pending[k]; ok && err != nil {
			s.pending[k] = err
		} else {
			delete(s.pending, k)
		}
	}
}

// write writes a report, and makes its object if there is none.
func (s *storageVersions) write(ctx context.Context, r storageVersion) error {
	put := func(obj *apiserverinternalv1alpha1.StorageVersion) {
		all := &obj.Status.StorageVersions
		i := slices.IndexFunc(*all, func(v apiserverinternalv1alpha1.ServerStorageVersion) bool { return v.APIServerID == s.server })
		if i < 0 {
			*all = append(*all, *r.is.DeepCopy())
		} else {
			(*all)[i] = *r.is.DeepCopy()
		}
	}
	err := s.update(ctx, r.name, put)
	if !apierrors.IsNotFound(err) {
		return err
	}
	made := &apiserverinternalv1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: r.name}}
	if _, err := s.backend.Create(ctx, storageVersionObjects, made, false); err != nil && !apierrors.IsAlreadyExists(err) {
		return err //nolint:wrapcheck // the caller says what failed
	}
	return s.update(ctx, r.name, put)
}

// update changes what an object says of servers, and what follows from it.
func (s *storageVersions) update(ctx context.Context, name string, change func(*apiserverinternalv1alpha1.StorageVersion)) error {
	writer, ok := s.backend.(resource.ServerWriter)
	if !ok {
		return errors.New("the store does not record the server as a manager")
	}
	_, err := writer.UpdateAsServer(ctx, storageVersionObjects, "", name, "status", false, func(obj resource.Object) error {
		v, ok := obj.(*apiserverinternalv1alpha1.StorageVersion)
		if !ok {
			return fmt.Errorf("%T is no StorageVersion", obj)
		}
		change(v)
		agree(v, time.Now())
		return nil
	})
	return err //nolint:wrapcheck // the caller says what failed
}

// agree sets the version in which all servers store objects, if it is one, and the condition that tells of it.
func agree(v *apiserverinternalv1alpha1.StorageVersion, now time.Time) {
	before, all := v.Status.CommonEncodingVersion, v.Status.StorageVersions
	v.Status.CommonEncodingVersion = nil
	other := func(of apiserverinternalv1alpha1.ServerStorageVersion) bool {
		return of.EncodingVersion != all[0].EncodingVersion
	}
	if len(all) > 0 && !slices.ContainsFunc(all, other) {
		v.Status.CommonEncodingVersion = new(all[0].EncodingVersion)
	}
	c := apiserverinternalv1alpha1.StorageVersionCondition{
		Type: apiserverinternalv1alpha1.AllEncodingVersionsEqual, Status: apiserverinternalv1alpha1.ConditionFalse,
		ObservedGeneration: v.Generation, LastTransitionTime: metav1.NewTime(now).Rfc3339Copy(),
		Reason: "CommonEncodingVersionUnset", Message: "Common encoding version unset",
	}
	common := v.Status.CommonEncodingVersion
	if common != nil {
		c.Status, c.Reason, c.Message = apiserverinternalv1alpha1.ConditionTrue, "CommonEncodingVersionSet", "Common encoding version set"
	}
	conditions := &v.Status.Conditions
	i := slices.IndexFunc(*conditions, func(is apiserverinternalv1alpha1.StorageVersionCondition) bool { return is.Type == c.Type })
	if i < 0 {
		*conditions = append(*conditions, c)
		return
	}
	is := (*conditions)[i]
	if is.Status == c.Status && (before == nil || common == nil || *before == *common) {
		c.LastTransitionTime = is.LastTransitionTime
	}
	(*conditions)[i] = c
}

// collect drops what servers without a Lease have reported.
func (s *storageVersions) collect(ctx context.Context) error {
	held, err := s.backend.List(ctx, leases, metav1.NamespaceSystem)
	if err != nil {
		return fmt.Errorf("list the Leases of servers: %w", err)
	}
	there := map[string]bool{s.server: true}
	for _, obj := range held {
		if obj.GetLabels()[bootstrap.IdentityLabel] == bootstrap.IdentityValue {
			there[obj.GetName()] = true
		}
	}
	gone := func(v apiserverinternalv1alpha1.ServerStorageVersion) bool { return !there[v.APIServerID] }
	all, err := s.backend.List(ctx, storageVersionObjects, "")
	if err != nil {
		return fmt.Errorf("list storage versions: %w", err)
	}
	var errs []error
	for _, obj := range all {
		v, ok := obj.(*apiserverinternalv1alpha1.StorageVersion)
		if !ok || !slices.ContainsFunc(v.Status.StorageVersions, gone) {
			continue
		}
		if slices.ContainsFunc(v.Status.StorageVersions, func(v apiserverinternalv1alpha1.ServerStorageVersion) bool { return !gone(v) }) {
			err = s.update(ctx, v.Name, func(v *apiserverinternalv1alpha1.StorageVersion) {
				v.Status.StorageVersions = slices.DeleteFunc(v.Status.StorageVersions, gone)
			})
		} else {
			uid, revision := v.UID, v.ResourceVersion
			err = s.backend.Delete(ctx, storageVersionObjects, "", v.Name, &metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &revision}, // a server may report at this moment
			})
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("drop the reports of servers that are gone from %s: %w", v.Name, err))
		}
	}
	return errors.Join(errs...)
}

// keep reports again, in case a client has changed or deleted a report, and drops those of servers that are gone.
func (s *storageVersions) keep(ctx context.Context) {
	if err := errors.Join(s.report(ctx), s.collect(ctx)); err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "Could not keep the storage versions", "error", err)
	}
}
