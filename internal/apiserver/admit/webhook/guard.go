// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/internal/podrefs"
	"github.com/mortise-dev/mortise/resource"
)

// The lock-out guard: a webhook that cannot be called and whose failure policy is Fail would also keep away what brings it back.
// An object that does is let through: the webhook's service and its namespace, the service's endpoints, the pods that the service
// selects and what makes them, what those pods refer to, and the signs of life that they need (guardlife.go). What the webhook
// itself refused stays refused.

// guardAnnotation begins the keys of audit annotations.
const guardAnnotation = "passed.lockout-guard.extension.mortise.dev/"

// letThrough reports whether the request continues without a failed webhook, and reports why in a warning, the log and the
// audit event.
func (p *generic) letThrough(ctx context.Context, h *hook, q *matching.Request, i int, f *failed) bool {
	if f.code == http.StatusBadRequest || ctx.Err() != nil { // it was not called, or the client has left
		return false
	}
	because := p.mends(ctx, h, q)
	if because == "" {
		return false
	}
	round := 0
	if p.step == "admit" {
		round = q.Round
	}
	p.host.Log.WarnContext(ctx, "Webhook failed, admitting an object that it needs to recover", "configuration", h.configuration,
		"webhook", h.name, "resource", q.Resource().GroupResource(),
		"namespace", q.Namespace, "name", q.Name, "because", because, "error", f)
	q.Annotate(fmt.Sprintf("%s%s_round_%d_index_%d", guardAnnotation, p.step, round, i), h.configuration+"/"+h.name)
	q.Warn(fmt.Sprintf("webhook %q of %s %q cannot be called; the lock-out guard let this through without it, since it is %s", h.name, p.kind,
		h.configuration, because))
	return true
}

// mends says what of the webhook's service the request's object is; empty: nothing.
func (p *generic) mends(ctx context.Context, h *hook, q *matching.Request) string {
	s := h.service
	if s.Name == "" {
		return ""
	}
	if because := signOfLife(q); because != "" {
		return because
	}
	what := q.Resource().GroupResource()
	name := s.Namespace + "/" + s.Name
	if what == (schema.GroupResource{Resource: "namespaces"}) {
		return said(q.Name == s.Namespace, "the namespace of its service "+name)
	}
	if q.Namespace != s.Namespace {
		return ""
	}
	switch what {
	case schema.GroupResource{Resource: "services"}:
		return said(q.Name == s.Name, "its service "+name)
	case schema.GroupResource{Resource: "endpoints"}:
		return said(q.Name == s.Name, "the endpoints of its service "+name)
	case endpointSlices:
		for _, obj := range []resource.Object{q.Object, q.Old} {
			if obj != nil && obj.GetLabels()[discoveryv1.LabelServiceName] == s.Name {
				return "an endpoint slice of its service " + name
			}
		}
		return ""
	}
	g := p.guarded(ctx, h)
	if g == nil {
		return ""
	}
	if servers[what] {
		objs := []resource.Object{q.Object, q.Old}
		if q.Subresource != "" && q.Name != "" { // which may have a kind of its own
			if obj, err := g.backend.Get(ctx, what, q.Namespace, q.Name); err == nil {
				objs = append(objs, obj)
			}
		}
		for _, obj := range objs {
			if obj != nil && g.selects(obj) {
				return "selected by its service " + name
			}
		}
		return ""
	}
	if what == (schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}) {
		return said(g.leads(ctx, q), "a lease of a pod of its service "+name)
	}
	if kind, ok := podrefs.KindFor(what.Resource); ok && what.Group == "" && q.Name != "" && g.refersTo(ctx, kind, q.Name) {
		return "used by pods of its service " + name
	}
	return ""
}

func said(yes bool, what string) string {
	if yes {
		return what
	}
	return ""
}

// servers are the resources of pods, and of what makes them.
var servers = map[schema.GroupResource]bool{
	{Resource: "pods"}: true, {Resource: "replicationcontrollers"}: true,
	{Group: "apps", Resource: "deployments"}: true, {Group: "apps", Resource: "replicasets"}: true,
	{Group: "apps", Resource: "statefulsets"}: true,
	{Group: "apps", Resource: "daemonsets"}:   true, {Group: "apps", Resource: "controllerrevisions"}: true,
	{Group: "batch", Resource: "jobs"}: true,
}

// guarded is a webhook's service with what it selects.
type guarded struct {
	backend   resource.Backend
	namespace string
	selector  labels.Selector
}

// guarded reads the webhook's service; nil: it is not there, or selects nothing.
func (p *generic) guarded(ctx context.Context, h *hook) *guarded {
	b := p.host.Backend()
	obj, err := b.Get(ctx, schema.GroupResource{Resource: "services"}, h.service.Namespace, h.service.Name)
	if err != nil {
		return nil
	}
	svc, ok := obj.(*corev1.Service)
	if !ok || len(svc.Spec.Selector) == 0 {
		return nil
	}
	return &guarded{b, h.service.Namespace, labels.SelectorFromSet(svc.Spec.Selector)}
}

// selects reports whether obj is a pod of the service, or makes such pods.
func (g *guarded) selects(obj resource.Object) bool {
	set := labels.Set(obj.GetLabels())
	if t := templateOf(obj); t != nil {
		set = t.Labels
	}
	return g.selector.Matches(set)
}

// templateOf is what obj makes pods from; nil: it makes none.
func templateOf(obj resource.Object) *corev1.PodTemplateSpec {
	switch o := obj.(type) {
	case *corev1.ReplicationController:
		return o.Spec.Template
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *appsv1.ReplicaSet:
		return &o.Spec.Template
	case *appsv1.StatefulSet:
		return &o.Spec.Template
	case *appsv1.DaemonSet:
		return &o.Spec.Template
	case *batchv1.Job:
		return &o.Spec.Template
	}
	return nil
}

// refersTo reports whether pods of the service, or those that would be made, refer to an object of their namespace.
func (g *guarded) refersTo(ctx context.Context, kind podrefs.Kind, name string) bool {
	asked := map[string]bool{} // accounts
	for r := range servers {
		objs, err := g.backend.List(ctx, r, g.namespace)
		if err != nil {
			continue
		}
		for _, obj := range objs {
			if !g.selects(obj) {
				continue
			}
			pod, _ := obj.(*corev1.Pod)
			if t := templateOf(obj); t != nil {
				pod = &corev1.Pod{Spec: t.Spec}
			}
			if pod == nil {
				continue
			}
			if podrefs.RefersTo(pod, kind, name) {
				return true
			}
			if account := cmp.Or(pod.Spec.ServiceAccountName, "default"); kind == podrefs.Secret && !asked[account] {
				if asked[account] = true; g.pulls(ctx, account, name) {
					return true
				}
			}
		}
	}
	return false
}
