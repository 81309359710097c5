// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
)

// remover is who removes a finalizer, and on what condition.
type remover struct{ who, until string }

// removers are those of the finalizers of Kubernetes and its CSI sidecars. A name that ends in a slash or a dash is a beginning.
var removers = map[string]remover{
	"kubernetes": {"the namespace controller", "the namespace is empty"},
	metav1.FinalizerDeleteDependents: {"the garbage collector",
		"all dependents with blockOwnerDeletion are gone (foreground deletion)"},
	metav1.FinalizerOrphanDependents:   {"the garbage collector", "no dependent refers to the object as its owner"},
	"kubernetes.io/pvc-protection":     {"the controller pvc-protection", "no pod that has not ended uses the claim"},
	"kubernetes.io/pv-protection":      {"the controller pv-protection", "the volume is bound to no claim"},
	"kubernetes.io/vac-protection":     {"the controller volumeattributesclass-protection", "no claim and no volume refers to the class"},
	"batch.kubernetes.io/job-tracking": {"the job controller", "the job has counted the pod"},
	"service.kubernetes.io/load-balancer-cleanup": {"the cloud controller manager, or the controller of the load balancer class",
		"the load balancer is gone"},
	"networking.k8s.io/service-cidr-finalizer": {"the controller service-cidr",
		"no IPAddress of the range is left that another range does not have"},
	"resource.kubernetes.io/delete-protection": {"the resource claim controller", "no pod uses the claim, and its devices are released"},
	"external-provisioner.volume.kubernetes.io/finalizer": {"the provisioner of the volume's CSI driver",
		"the storage of the volume is deleted"},
	"kubernetes.io/pv-controller":                {"the controller persistentvolume-binder", "the storage of the volume is deleted"},
	"external-attacher/":                         {"the attacher of the CSI driver", "the volume is detached from all nodes"},
	"external-resizer.csi.storage.k8s.io":        {"the resizer of the CSI driver", "the volume is resized"},
	"snapshot.storage.kubernetes.io/":            {"the snapshot controller", "nothing uses the snapshot"},
	"customresourcecleanup.apiextensions.k8s.io": {"the API server", "all custom resources of the definition are deleted"},
}

// removerOf returns who removes a finalizer.
func removerOf(name string) remover {
	if r, ok := removers[name]; ok {
		return r
	}
	for begin, r := range removers {
		if strings.HasSuffix(begin, "/") && strings.HasPrefix(name, begin) {
			return r
		}
	}
	return remover{}
}

// deleted returns what answers why an object is not deleted.
func deleted(objects explain.Objects) func(r *http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		q := r.URL.Query()
		of := schema.GroupResource{Group: q.Get(trace.ParamGroup), Resource: q.Get(trace.ParamResource)}
		name := q.Get(trace.ParamName)
		switch {
		case r.Method != http.MethodGet:
			return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "explain"}, strings.ToLower(r.Method))
		case r.URL.Path != trace.Route || q.Get(trace.ParamField) != "":
			return nil, apierrors.NewBadRequest("a deletion is one of an object, not of a write or a field")
		case of.Resource == "" || name == "":
			return nil, apierrors.NewBadRequest("a deletion needs the resource and the name of an object")
		}
		live, _, err := objects.Live(r.Context(), of, q.Get(trace.ParamNamespace), name)
		if err != nil {
			return nil, err
		}
		return deletionOf(of, &unstructured.Unstructured{Object: live}), nil
	}
}

// deletionOf returns why an object is not deleted.
func deletionOf(of schema.GroupResource, obj *unstructured.Unstructured) *trace.Deletion {
	d := &trace.Deletion{
		Group: of.Group, Resource: of.Resource, Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: string(obj.GetUID()),
		GraceSeconds: obj.GetDeletionGracePeriodSeconds(), Finalizers: []trace.Finalizer{},
	}
	if at := obj.GetDeletionTimestamp(); at != nil {
		d.Since = at.UTC().Format(time.RFC3339)
		if grace := d.GraceSeconds; grace != nil { // the timestamp is when the grace period ends
			d.Since = metav1.NewTime(at.Add(-time.Duration(*grace) * time.Second)).UTC().Format(time.RFC3339)
		}
	}
	names := obj.GetFinalizers()
	if of == (schema.GroupResource{Resource: "namespaces"}) {
		spec, _, _ := unstructured.NestedStringSlice(obj.Object, "spec", "finalizers")
		names = slices.Concat(names, spec)
		d.Remains = remains(obj)
	}
	for _, name := range names {
		by := removerOf(name)
		d.Finalizers = append(d.Finalizers, trace.Finalizer{
			Name: name, Remover: by.who, Until: by.until, AddedBy: managersOf(obj.GetManagedFields(), name),
		})
	}
	return d
}

// remains returns the conditions of a namespace that say what is left.
func remains(obj *unstructured.Unstructured) (out []trace.Remaining) {
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, c := range conditions {
		m, _ := c.(map[string]any)
		if m["status"] != "True" {
			continue
		}
		r := trace.Remaining{}
		r.Type, _ = m["type"].(string)
		r.Reason, _ = m["reason"].(string)
		r.Message, _ = m["message"].(string)
		out = append(out, r)
	}
	return out
}

// managersOf returns the field managers that have set a finalizer.
func managersOf(fields []metav1.ManagedFieldsEntry, finalizer string) (out []string) {
	for _, f := range fields {
		if f.FieldsV1 == nil || slices.Contains(out, f.Manager) {
			continue
		}
		var set struct {
			Metadata struct {
				Finalizers map[string]json.RawMessage `json:"f:finalizers"`
			} `json:"f:metadata"`
		}
		if json.Unmarshal(f.FieldsV1.GetRawBytes(), &set) != nil {
			continue
		}
		if _, ok := set.Metadata.Finalizers["v:"+quoted(finalizer)]; ok {
			out = append(out, f.Manager)
		}
	}
	return out
}

// quoted is a string as JSON.
func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		return `""` // a string can always be encoded
	}
	return string(b)
}
