// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package externalmetrics

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/internal/apiserver/aggregate"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// The group version, and the name of its APIService.
const (
	Group   = "external.metrics.k8s.io"
	Version = "v1beta1"
	Name    = Version + "." + Group
	root    = "/apis/" + Group + "/" + Version
)

// resourceOf is the resource of routes.
var resourceOf = schema.GroupResource{Group: v1alpha1.Group, Resource: v1alpha1.ExternalMetricsRouteResource}

// Kinds returns the kinds that [Routes] follows.
func Kinds() []schema.GroupResource {
	return append([]schema.GroupResource{resourceOf}, slices.DeleteFunc(aggregate.Kinds(), func(r schema.GroupResource) bool {
		return r.Group == apiregistrationv1.GroupName
	})...)
}

// Options of [New]. Servers and Default are required.
type Options struct {
	// Servers are those of the aggregator for the routes' servers. New sets the form.
	Servers aggregate.Options
	// Default returns the server of the APIService; nil: there is none.
	Default func() *aggregate.Service
}

// Routes has all routes of one server.
type Routes struct {
	o       Options
	servers *aggregate.Aggregator
	table   atomic.Pointer[table]

	mu     sync.Mutex // of those that change the table
	routes map[string]*route
	unread []string // the names of routes that could not be read
}

// table is an immutable state of all routes.
type table struct {
	routes []*route // in the order in which they are tried
	unread []string
}

// route is what a route matches.
type route struct {
	name                string
	metrics, namespaces []string
	priority            int32
}

func (r *route) matches(namespace, metric string) bool {
	return matchesAny(r.namespaces, namespace) && matchesAny(r.metrics, metric)
}

// New makes the routes of a server, without any.
func New(o Options) *Routes {
	o.Servers.Form = &aggregate.Form{
		Kind: v1alpha1.ExternalMetricsRouteKind, Resource: resourceOf, ByName: true,
		Registration: registration, SetConditions: setConditions,
		Extension: func(name string) string { return strings.ToLower(v1alpha1.ExternalMetricsRouteKind) + "/" + name },
	}
	r := &Routes{o: o, servers: aggregate.New(o.Servers), routes: map[string]*route{}}
	r.table.Store(&table{})
	return r
}

// Run checks whether the servers respond, until ctx ends.
func (r *Routes) Run(ctx context.Context) { r.servers.Run(ctx) }

// registration returns the registration that a route stands for; nil: it cannot be read.
func registration(obj resource.Object) *apiregistrationv1.APIService {
	of, err := read(obj)
	if err != nil {
		return nil
	}
	a := &apiregistrationv1.APIService{ObjectMeta: of.ObjectMeta, Spec: apiregistrationv1.APIServiceSpec{
		Group: Group, Version: Version, GroupPriorityMinimum: groupPriority, VersionPriority: versionPriority,
		CABundle: of.Spec.CABundle, InsecureSkipTLSVerify: of.Spec.InsecureSkipTLSVerify,
		Service: (*apiregistrationv1.ServiceReference)(&of.Spec.Service),
	}}
	for _, c := range of.Status.Conditions {
		a.Status.Conditions = append(a.Status.Conditions, apiregistrationv1.APIServiceCondition{
			Type: apiregistrationv1.APIServiceConditionType(c.Type), Status: apiregistrationv1.ConditionStatus(c.Status),
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return a
}

// setConditions writes conditions into a route's status.
func setConditions(obj resource.Object, all []apiregistrationv1.APIServiceCondition) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	var status v1alpha1.ExternalMetricsRouteStatus
	for _, c := range all {
		status.Conditions = append(status.Conditions, metav1.Condition{
			Type: string(c.Type), Status: metav1.ConditionStatus(c.Status), LastTransitionTime: c.LastTransitionTime, Reason: c.Reason,
			Message: c.Message,
		})
	}
	if m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status); err == nil { // it always can be
		u.Object["status"] = m
	}
}

// Load replaces all routes with the stored ones.
func (r *Routes) Load(ctx context.Context, stored feed.Lister) error {
	if err := r.servers.Load(ctx, stored); err != nil {
		return err
	}
	all, err := stored.List(ctx, resourceOf, "")
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	snapshot, _ := stored.(*feed.Snapshot)
	for name := range r.routes {
		if !snapshot.Has(resourceOf, "", name) {
			delete(r.routes, name)
		}
	}
	for _, obj := range all {
		if err := feed.Fail(stored, resourceOf, obj, r.set(obj.GetName(), obj)); err != nil {
			return err
		}
	}
	r.publish()
	return nil
}

// Apply applies a change of an object of one of [Kinds].
func (r *Routes) Apply(ctx context.Context, c *feed.Change) error {
	if c.Resource != resourceOf {
		return r.servers.Apply(ctx, c)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.set(c.Name, c.Object); err != nil {
		return err
	}
	if c.Object == nil { // requests go elsewhere before the server is forgotten
		r.publish()
		return r.servers.Apply(ctx, c)
	}
	if err := r.servers.Apply(ctx, c); err != nil {
		return err
	}
	r.publish()
	return nil
}

// SetUnreadable is called with the stored objects that cannot be read. While a route is among them, all requests are refused,
// as its patterns are not known.
func (r *Routes) SetUnreadable(keys []feed.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unread = nil
	for _, k := range keys {
		if k.Resource == resourceOf {
			r.unread = append(r.unread, k.Name)
		}
	}
	r.publish()
}

// set sets the route of a name; a nil object removes it. The caller holds mu.
func (r *Routes) set(name string, obj resource.Object) error {
	if obj == nil {
		delete(r.routes, name)
		return nil
	}
	of, err := read(obj)
	if err != nil {
		return err
	}
	to := &route{name: name, namespaces: of.Spec.Namespaces, priority: of.Spec.Priority}
	for _, p := range of.Spec.Metrics {
		to.metrics = append(to.metrics, strings.ToLower(p))
	}
	r.routes[name] = to
	return nil
}

// publish makes the current routes visible to requests. The caller holds mu.
func (r *Routes) publish() {
	t := &table{unread: r.unread}
	for _, o := range r.routes {
		t.routes = append(t.routes, o)
	}
	slices.SortFunc(t.routes, func(a, b *route) int { return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.name, b.name)) })
	r.table.Store(t)
}

// Any reports whether there are routes.
func (r *Routes) Any() bool {
	t := r.table.Load()
	return len(t.routes) > 0 || len(t.unread) > 0
}

// Discovers reports whether a path is that of the group version's resources, which [Routes.ServeHTTP] serves.
func Discovers(path string) bool { return strings.TrimSuffix(path, "/") == root }

// metric returns the namespace and the lower-case name of a metric from the path of a request for its values. (Clients ask for
// metrics in lower case.)
func metric(path string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(path, root+"/namespaces/")
	if !ok {
		return "", "", false
	}
	namespace, name, _ = strings.Cut(rest, "/")
	name = strings.TrimSuffix(name, "/")
	return namespace, strings.ToLower(name), namespace != "" && name != "" && !strings.Contains(name, "/")
}

// Find returns the server that a route selects for a path; nil: no route matches, and the path belongs to the APIService,
// if it does. The error is why the path cannot be served.
func (r *Routes) Find(path string) (*aggregate.Service, error) {
	t := r.table.Load()
	if len(t.routes) == 0 && len(t.unread) == 0 {
		return nil, nil
	}
	namespace, name, ok := metric(path)
	if !ok {
		return nil, nil
	}
	if len(t.unread) > 0 {
		return nil, fmt.Errorf("%s %s cannot be read, so its patterns are not known", v1alpha1.ExternalMetricsRouteKind,
			strings.Join(t.unread, ", "))
	}
	for _, o := range t.routes {
		if !o.matches(namespace, name) {
			continue
		}
		if s := r.servers.Find(o.name); s != nil {
			return s, nil
		}
		return nil, fmt.Errorf("%s %s was changed during the request", v1alpha1.ExternalMetricsRouteKind, o.name)
	}
	return nil, nil
}

// all returns the servers of all routes, in the order of their priorities, behind that of the APIService.
func (r *Routes) all() []*aggregate.Service {
	var out []*aggregate.Service
	if s := r.o.Default(); s != nil {
		out = append(out, s)
	}
	for _, o := range r.table.Load().routes {
		if s := r.servers.Find(o.name); s != nil {
			out = append(out, s)
		}
	}
	return out
}
