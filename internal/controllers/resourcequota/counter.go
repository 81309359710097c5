// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	maths "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/internal/quota"
)

// page is the number of objects of one list request if the server does not report how many there are.
const page = 500

// counter counts objects at the server.
type counter struct {
	client   kubernetes.Interface
	metadata metadata.Interface
	clock    clock.PassiveClock
}

// count computes the usage for a quota's resource names, except for resources that are not served or could not be listed. again is after
// how long time alone will change the usage; 0: never.
func (c *counter) count(ctx context.Context, q *corev1.ResourceQuota,
	served map[schema.GroupResource]schema.GroupVersionResource) (used corev1.ResourceList, again time.Duration, err error) {
	used = corev1.ResourceList{}
	var errs []error
	var unknown []corev1.ResourceName
	scopes := quota.Scopes(&q.Spec)
	for r, gvr := range served {
		e := quota.For(r, c)
		names, err := e.Names(ctx, maths.ResourceNames(q.Spec.Hard))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if len(names) == 0 {
			continue
		}
		var sum corev1.ResourceList
		switch {
		case len(scopes) > 0 && !e.Scoped():
			sum = quota.Zero(names)
		case quota.Counts(e):
			var n int64
			if n, err = c.number(ctx, gvr, q.Namespace); err == nil {
				sum = corev1.ResourceList{}
				for _, name := range names {
					sum[name] = quota.Number(n)
				}
			}
		default:
			var objs []runtime.Object
			if objs, err = c.list(ctx, r, q.Namespace); err == nil {
				sum, err = quota.Sum(ctx, e, names, scopes, objs)
				again = c.sooner(again, objs)
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("count %s: %w", r, err))
			unknown = append(unknown, names...)
			continue
		}
		for name, n := range sum { // pods and device claims share names
			total := used[name]
			total.Add(n)
			used[name] = total
		}
	}
	for _, name := range unknown {
		delete(used, name)
	}
	return used, again, errors.Join(errs...)
}

// sooner returns when the first overdue terminating pod is no longer charged.
func (c *counter) sooner(than time.Duration, objs []runtime.Object) time.Duration {
	for _, obj := range objs {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return than
		}
		if over, ok := quota.Overdue(pod); ok {
			if wait := over.Sub(c.clock.Now()) + time.Millisecond; wait > 0 && (than == 0 || wait < than) {
				than = wait
			}
		}
	}
	return than
}

// number returns the number of objects.
func (c *counter) number(ctx context.Context, gvr schema.GroupVersionResource, namespace string) (int64, error) {
	api := c.metadata.Resource(gvr).Namespace(namespace)
	o := metav1.ListOptions{Limit: 1}
	n := int64(0)
	for {
		list, err := api.List(ctx, o)
		if err != nil {
			return 0, err
		}
		n += int64(len(list.Items))
		if list.RemainingItemCount != nil {
			return n + *list.RemainingItemCount, nil
		}
		if list.Continue == "" {
			return n, nil
		}
		o = metav1.ListOptions{Limit: page, Continue: list.Continue}
	}
}

// list returns the objects of a resource that the evaluators examine one by one.
func (c *counter) list(ctx context.Context, r schema.GroupResource, namespace string) ([]runtime.Object, error) {
	var objs []runtime.Object
	switch r.Resource {
	case "pods":
		l := &corev1.PodList{}
		if err := c.all(ctx, c.client.CoreV1(), r, namespace, l); err != nil {
			return nil, err
		}
		for i := range l.Items {
			objs = append(objs, &l.Items[i])
		}
	case "services":
		l := &corev1.ServiceList{}
		if err := c.all(ctx, c.client.CoreV1(), r, namespace, l); err != nil {
			return nil, err
		}
		for i := range l.Items {
			objs = append(objs, &l.Items[i])
		}
	case "persistentvolumeclaims":
		l := &corev1.PersistentVolumeClaimList{}
		if err := c.all(ctx, c.client.CoreV1(), r, namespace, l); err != nil {
			return nil, err
		}
		for i := range l.Items {
			objs = append(objs, &l.Items[i])
		}
	case "resourceclaims":
		l := &resourcev1.ResourceClaimList{}
		if err := c.all(ctx, c.client.ResourceV1(), r, namespace, l); err != nil {
			return nil, err
		}
		for i := range l.Items {
			objs = append(objs, &l.Items[i])
		}
	default:
		return nil, fmt.Errorf("list %s: unknown type", r)
	}
	return objs, nil
}

// all also lists objects that wait for initializers: they are charged already.
func (c *counter) all(ctx context.Context, group interface{ RESTClient() rest.Interface }, r schema.GroupResource, namespace string,
	into runtime.Object) error {
	return group.RESTClient().Get().Namespace(namespace).Resource(r.Resource).Param(v1alpha1.IncludeUninitialized, "true").Do(ctx).Into(into)
}

// The evaluators may call the following methods.

func (c *counter) Now() time.Time { return c.clock.Now() }

func (c *counter) DeviceClasses(ctx context.Context) ([]*resourcev1.DeviceClass, error) {
	l, err := c.client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := make([]*resourcev1.DeviceClass, len(l.Items))
	for i := range l.Items {
		out[i] = &l.Items[i]
	}
	return out, nil
}

func (c *counter) DeviceClaims(ctx context.Context, namespace string) ([]*resourcev1.ResourceClaim, error) {
	l, err := c.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := make([]*resourcev1.ResourceClaim, len(l.Items))
	for i := range l.Items {
		out[i] = &l.Items[i]
	}
	return out, nil
}

func (c *counter) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	l, err := c.client.CoreV1().Pods(namespace).List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return nil, err
	}
	for i := range l.Items {
		if l.Items[i].Name == name {
			return &l.Items[i], nil
		}
	}
	return nil, nil
}
