// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"iter"
	"slices"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/resource"
)

// dependents returns what depends on an extension that objects name: a driver of volumes or devices, or a metrics API. Other points have
// none.
func dependents(ctx context.Context, objects objectReader, row *extension.Row) (out []extension.Affected) {
	add := func(what string, effect extension.Effect) {
		out = append(out, extension.Affected{What: what, Effect: effect})
	}
	switch row.Point {
	case extension.StorageDriver:
		dependentVolumes(ctx, objects, row.Name, add)
	case extension.ResourceDriver:
		dependentClaims(ctx, objects, row.Name, add)
	case extension.DevicePlugin:
		for n := range storedOf[*corev1.Node](ctx, objects, corev1.GroupName, "nodes") {
			if q := n.Status.Capacity[corev1.ResourceName(row.Name)]; !q.IsZero() {
				add(row.Name+" of node "+n.Name, extension.Unavailable)
			}
		}
	case extension.MetricsAPI:
		group := metricsGroup(row.Name)
		if group == resourceMetrics {
			add("kubectl top", extension.Unavailable)
		}
		for a := range storedOf[*autoscalingv2.HorizontalPodAutoscaler](ctx, objects, autoscalingv2.GroupName, "horizontalpodautoscalers") {
			if slices.ContainsFunc(a.Spec.Metrics, func(m autoscalingv2.MetricSpec) bool { return sourceGroup(m.Type) == group }) {
				add("autoscaler "+a.Namespace+"/"+a.Name, extension.Delayed)
			}
		}
	}
	slices.SortFunc(out, func(a, b extension.Affected) int { return strings.Compare(a.What, b.What) })
	return slices.Compact(out)
}

// storedOf are the stored objects of a type.
func storedOf[T resource.Object](ctx context.Context, objects objectReader, group, of string) iter.Seq[T] {
	return func(yield func(T) bool) {
		all, err := objects.List(ctx, schema.GroupResource{Group: group, Resource: of}, "")
		if err != nil {
			return // the kind is not served
		}
		for _, obj := range all {
			if o, ok := obj.(T); ok && !yield(o) {
				return
			}
		}
	}
}

// dependentVolumes adds the classes and volumes of a storage driver.
func dependentVolumes(ctx context.Context, objects objectReader, driver string, add func(string, extension.Effect)) {
	for c := range storedOf[*storagev1.StorageClass](ctx, objects, storagev1.GroupName, "storageclasses") {
		if c.Provisioner == driver {
			add("new volumes of class "+c.Name, extension.Delayed)
		}
	}
	for v := range storedOf[*corev1.PersistentVolume](ctx, objects, corev1.GroupName, "persistentvolumes") {
		if v.Spec.CSI == nil || v.Spec.CSI.Driver != driver {
			continue
		}
		what := "mounts of volume " + v.Name
		if c := v.Spec.ClaimRef; c != nil {
			what += " (claim " + c.Namespace + "/" + c.Name + ")"
		}
		add(what, extension.Delayed)
	}
}

// dependentClaims adds the nodes with devices of a driver of dynamic resource allocation, and the claims that have such devices.
func dependentClaims(ctx context.Context, objects objectReader, driver string, add func(string, extension.Effect)) {
	for s := range storedOf[*resourcev1.ResourceSlice](ctx, objects, resourcev1.GroupName, "resourceslices") {
		if s.Spec.Driver == driver && s.Spec.NodeName != nil {
			add("devices of node "+*s.Spec.NodeName, extension.Unavailable)
		}
	}
	for c := range storedOf[*resourcev1.ResourceClaim](ctx, objects, resourcev1.GroupName, "resourceclaims") {
		if a := c.Status.Allocation; a != nil && slices.ContainsFunc(a.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
			return r.Driver == driver
		}) {
			add("new pods with claim "+c.Namespace+"/"+c.Name, extension.Delayed)
		}
	}
}

const resourceMetrics = "metrics.k8s.io"

// metricsGroup returns the API group that an extension of the point metrics-api answers: the ledger has it as VERSION.GROUP, the server's
// own metrics as "built-in", and the server of a route for external metrics under another name.
func metricsGroup(name string) string {
	_, group, _ := strings.Cut(name, ".")
	switch {
	case name == "built-in":
		return resourceMetrics
	case group == resourceMetrics, group == "custom.metrics.k8s.io":
		return group
	}
	return "external.metrics.k8s.io"
}

// sourceGroup returns the API group that a metric of an autoscaler comes from.
func sourceGroup(t autoscalingv2.MetricSourceType) string {
	switch t {
	case autoscalingv2.ResourceMetricSourceType, autoscalingv2.ContainerResourceMetricSourceType:
		return resourceMetrics
	case autoscalingv2.ExternalMetricSourceType:
		return "external.metrics.k8s.io"
	}
	return "custom.metrics.k8s.io"
}

// affectedAt says what the death of an extension at a point affects, whatever is configured. Points that the server does not call have
// none.
var affectedAt = map[extension.Point][]extension.Affected{
	extension.TokenWebhook: {{What: "requests with bearer tokens that only the webhook knows", Effect: extension.Refused}},
	extension.OIDCIssuer: {{What: "sign-in at the issuer", Effect: extension.Unavailable},
		{What: "requests with its tokens whose keys are not fetched yet", Effect: extension.Refused}},
	extension.TokenSigner: {{What: "tokens of service accounts", Effect: extension.Unavailable},
		{What: "new pods", Effect: extension.Delayed}},
	extension.AuthorizationWebhook: {{What: "requests that no other authorizer decides", Effect: extension.Refused}},
	extension.AuditWebhook:         {{What: "audit events", Effect: extension.Delayed}},
	extension.KMS:                  {{What: "encrypted objects whose key is not in memory", Effect: extension.Unavailable}},
	extension.MutatingWebhook:      {{What: "requests that it matches", Effect: extension.Refused}},
	extension.ValidatingWebhook:    {{What: "requests that it matches", Effect: extension.Refused}},
	extension.MutatingPolicy:       {{What: "requests that it matches", Effect: extension.Refused}},
	extension.ValidatingPolicy:     {{What: "requests that it matches", Effect: extension.Refused}},
	extension.ConversionWebhook:    {{What: "custom resources in versions other than the stored one", Effect: extension.Unavailable}},
	extension.AggregatedAPI:        {{What: "its group-version", Effect: extension.Unavailable}},
	extension.ImagePolicyWebhook:   {{What: "create pods", Effect: extension.Refused}},
	extension.Initializer:          {{What: "new objects that it initializes", Effect: extension.Delayed}},
	extension.SchedulerExtender:    {{What: "new pods that it is asked about", Effect: extension.Delayed}},
	extension.MetricsAPI:           {{What: "autoscalers with its metrics", Effect: extension.Delayed}},
	extension.ContainerRuntime:     {{What: "pods of its node", Effect: extension.Unavailable}},
	extension.NetworkPlugin:        {{What: "new pods of its node", Effect: extension.Delayed}},
	extension.StorageDriver:        {{What: "mounts of its volumes", Effect: extension.Delayed}},
	extension.DevicePlugin:         {{What: "its devices", Effect: extension.Unavailable}},
	extension.ResourceDriver:       {{What: "new pods with claims of its devices", Effect: extension.Delayed}},
	extension.NodePlugin:           {{What: "new pods of its node that need it", Effect: extension.Delayed}},
	extension.ImageCredentials:     {{What: "pulls from its registries", Effect: extension.Unchecked}},
	extension.LifecycleHook:        {{What: "containers with a postStart hook that fails", Effect: extension.Unavailable}},
	extension.EgressProxy:          {{What: "connections through it", Effect: extension.Unavailable}},
}
