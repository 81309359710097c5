// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
)

// Object is an object of the API: a typed one, such as a *corev1.Pod, or an *unstructured.Unstructured.
type Object interface {
	runtime.Object
	metav1.Object
}

// patience is the longest wait of WaitFor, by the test's clock.
const patience = time.Minute

// WaitFor waits until an object meets a condition, without polling: it watches the object, which needs a namespace and a name, and keeps
// obj up to date. It calls condition with obj as it is now, also once for an object that is there already.
//
//	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
//	cluster.WaitFor(t, d, func() bool { return d.Status.ReadyReplicas == 3 })
//
// After a minute it ends the test, and logs the object, the traces of its writes (see APIServer.Explain), its events, and the last writes
// of all.
func (s *Server) WaitFor(t T, obj Object, condition func() bool) {
	t.Helper()
	await(s, t, obj, func(there bool) bool { return there && condition() }, "the condition")
}

// WaitDeleted waits as WaitFor does until an object does not exist.
func (s *Server) WaitDeleted(t T, obj Object) {
	t.Helper()
	await(s, t, obj, func(there bool) bool { return !there }, "the deletion")
}

func await(s *Server, t T, obj Object, done func(there bool) bool, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := watchedBy(ctx, s, obj)
	if err == nil {
		err = w.until(ctx, done)
	}
	if err == nil {
		return
	}
	if w != nil {
		report(s, t, w)
	}
	t.Fatalf("wait for %s of %T %s: %v", what, obj, key(obj), err)
}

// key returns NAMESPACE/NAME.
func key(obj Object) string {
	if obj.GetNamespace() == "" {
		return obj.GetName()
	}
	return obj.GetNamespace() + "/" + obj.GetName()
}

// watched is an object that a test waits for.
type watched struct {
	obj             Object
	kind            schema.GroupVersionKind
	resource        schema.GroupVersionResource
	namespace, name string
	client          dynamic.ResourceInterface
}

// watchedBy finds the resource of an object.
func watchedBy(ctx context.Context, s *Server, obj Object) (*watched, error) {
	w := &watched{obj: obj, kind: obj.GetObjectKind().GroupVersionKind(), namespace: obj.GetNamespace(), name: obj.GetName()}
	if w.kind.Empty() {
		kinds, _, err := scheme.Scheme.ObjectKinds(obj)
		if err != nil {
			return nil, fmt.Errorf("find kind: %w", err)
		}
		w.kind = kinds[0]
	}
	path := "/apis/" + w.kind.GroupVersion().String()
	if w.kind.Group == "" {
		path = "/api/" + w.kind.Version
	}
	var list metav1.APIResourceList
	if err := s.Client().Discovery().RESTClient().Get().AbsPath(path).Do(ctx).Into(&list); err != nil {
		return nil, fmt.Errorf("find resource of %s: %w", w.kind.Kind, err)
	}
	for _, r := range list.APIResources {
		if r.Kind != w.kind.Kind || !isTop(r.Name) {
			continue
		}
		w.resource = w.kind.GroupVersion().WithResource(r.Name)
		client, err := dynamic.NewForConfig(s.Config())
		if err != nil {
			return nil, fmt.Errorf("make client: %w", err)
		}
		w.client = client.Resource(w.resource)
		if r.Namespaced {
			if w.namespace == "" {
				return nil, errors.New("the object has no namespace")
			}
			w.client = client.Resource(w.resource).Namespace(w.namespace)
		}
		return w, nil
	}
	return nil, fmt.Errorf("find resource of %s: %s has no such kind", w.kind.Kind, w.kind.GroupVersion())
}

// until watches the object until done.
func (w *watched) until(ctx context.Context, done func(there bool) bool) error {
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", w.name).String()}
	for {
		list, err := w.client.List(ctx, options)
		if err != nil {
			return err
		}
		there := len(list.Items) > 0
		if there {
			if err := w.set(&list.Items[0]); err != nil {
				return err
			}
		}
		if done(there) {
			return nil
		}
		from := options
		from.ResourceVersion = list.GetResourceVersion()
		if ended, err := w.follow(ctx, from, done); err != nil || !ended {
			return err
		}
	}
}

// follow watches the object once. It reports whether the watch has ended before done.
func (w *watched) follow(ctx context.Context, from metav1.ListOptions, done func(there bool) bool) (ended bool, err error) {
	events, err := w.client.Watch(ctx, from)
	if err != nil {
		return false, err
	}
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case e, ok := <-events.ResultChan():
			if !ok {
				return true, ctx.Err()
			}
			switch e.Type {
			case watch.Error:
				if err := apierrors.FromObject(e.Object); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
					return false, err
				}
				return true, nil
			case watch.Bookmark:
				continue
			}
			if u, ok := e.Object.(*unstructured.Unstructured); ok {
				if err := w.set(u); err != nil {
					return false, err
				}
			}
			if done(e.Type != watch.Deleted) {
				return false, nil
			}
		}
	}
}

// set makes the test's object what the server says.
func (w *watched) set(u *unstructured.Unstructured) error {
	if into, ok := w.obj.(*unstructured.Unstructured); ok {
		into.Object = u.Object
		return nil
	}
	reflect.ValueOf(w.obj).Elem().SetZero()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, w.obj); err != nil {
		return fmt.Errorf("read object: %w", err)
	}
	return nil
}

// isTop reports whether the name of a resource is that of no subresource.
func isTop(name string) bool { return !strings.Contains(name, "/") }

// unstructuredOf returns an object of its content.
func unstructuredOf(content map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: content}
}
