// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
)

// api adds to the fake clientset what controllers rely on and the tracker lacks: generated names, UIDs, resource versions and conflicts,
// generations, the status subresource, finalizers.
type api struct {
	tracker clienttesting.ObjectTracker
	clock   clock.PassiveClock
	wrote   func(line string, before, after runtime.Object)

	// Only in a simulation: disturb runs before each write of a controller, and may reject it, or let it succeed and return an error; feed
	// receives each change in order; a bound pod is removed only when its node confirms.
	disturb func(clienttesting.Action) (refused, late error)
	feed    func(schema.GroupVersionResource, watch.EventType, runtime.Object)
	settled func()             // after a write
	stopped map[types.UID]bool // pods that their node has confirmed as stopped

	mu      sync.Mutex
	counter int
	names   map[string]int
}

func newAPI(c *fake.Clientset, clock clock.PassiveClock, wrote func(string, runtime.Object, runtime.Object)) *api {
	a := &api{tracker: c.Tracker(), clock: clock, wrote: wrote, names: map[string]int{}}
	c.PrependReactor("create", "*", a.react)
	c.PrependReactor("update", "*", a.react)
	c.PrependReactor("patch", "*", a.react)
	c.PrependReactor("delete", "*", a.react)
	c.PrependWatchReactor("*", a.watch)
	return a
}

// watch gives each watcher copies, as a connection would: the tracker's watch returns its own objects.
func (a *api) watch(action clienttesting.Action) (bool, watch.Interface, error) {
	var opts metav1.ListOptions
	if w, ok := action.(clienttesting.WatchActionImpl); ok {
		opts = w.ListOptions
	}
	w, err := a.tracker.Watch(action.GetResource(), action.GetNamespace(), opts)
	if err != nil {
		return true, nil, err
	}
	c := &copies{Interface: w, result: make(chan watch.Event), done: make(chan struct{})}
	go c.relay(opts.FieldSelector)
	return true, c, nil
}

// copies passes copies of what a watch returns, until it is stopped.
type copies struct {
	watch.Interface
	result chan watch.Event
	done   chan struct{}
	once   sync.Once
}

func (c *copies) ResultChan() <-chan watch.Event { return c.result }

func (c *copies) Stop() {
	c.once.Do(func() { close(c.done) })
	c.Interface.Stop()
}

func (c *copies) relay(selector string) {
	defer close(c.result)
	for e := range c.Interface.ResultChan() {
		if !selects(selector, e.Object) {
			continue
		}
		e.Object = e.Object.DeepCopyObject()
		select {
		case c.result <- e:
		case <-c.done:
			return
		}
	}
}

// selects reports whether a field selector selects an object by its name, or an event by that of its object.
func selects(selector string, obj runtime.Object) bool {
	name, ok := strings.CutPrefix(selector, "metadata.name=")
	if o, err := meta.Accessor(obj); ok && err == nil {
		return o.GetName() == name
	}
	name, ok = strings.CutPrefix(selector, "involvedObject.name=")
	if event, is := obj.(*corev1.Event); ok && is {
		return event.InvolvedObject.Name == name
	}
	return true
}

func (a *api) react(action clienttesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.disturb == nil {
		return a.do(action)
	}
	refused, late := a.disturb(action)
	if refused != nil {
		return true, nil, refused
	}
	handled, obj, err := a.do(action)
	a.settled()
	if late != nil && err == nil {
		return true, nil, late
	}
	return handled, obj, err
}

func (a *api) do(action clienttesting.Action) (bool, runtime.Object, error) {
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		if action.GetSubresource() != "" {
			return false, nil, nil
		}
		obj, err := a.create(action.GetResource(), action.GetNamespace(), action.GetObject().DeepCopyObject())
		return true, obj, err
	case clienttesting.UpdateActionImpl:
		obj, err := a.update(action.GetResource(), action.GetNamespace(), action.GetSubresource(), action.GetObject().DeepCopyObject(), true)
		return true, obj, err
	case clienttesting.PatchActionImpl:
		obj, err := a.patch(action)
		return true, obj, err
	case clienttesting.DeleteActionImpl:
		return true, nil, a.remove(action.GetResource(), action.GetNamespace(), action.GetName())
	}
	return false, nil, nil
}

func (a *api) next() string {
	a.counter++
	return strconv.Itoa(a.counter)
}

func (a *api) create(gvr schema.GroupVersionResource, namespace string, obj runtime.Object) (runtime.Object, error) {
	o, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	if o.GetName() == "" {
		a.names[o.GetGenerateName()]++
		o.SetName(fmt.Sprintf("%s%d", o.GetGenerateName(), a.names[o.GetGenerateName()]))
	}
	if _, ok := obj.(*corev1.Event); ok {
		o.SetName(o.GetName() + "-" + a.next()) // their names are times, and here time stands still
	}
	o.SetNamespace(namespace)
	if o.GetUID() == "" {
		o.SetUID(types.UID(gvr.Resource + "-" + o.GetName()))
		if a.feed != nil {
			o.SetUID(o.GetUID() + types.UID("-"+a.next())) // another object of the same name gets another UID
		}
	}
	o.SetResourceVersion(a.next())
	if at := o.GetCreationTimestamp(); at.IsZero() {
		o.SetCreationTimestamp(metav1.NewTime(a.clock.Now()))
	}
	o.SetGeneration(1)
	if err := a.tracker.Create(gvr, obj, namespace); err != nil {
		return nil, err
	}
	a.fed(gvr, watch.Added, obj)
	a.tell("create", gvr, nil, obj)
	return obj, nil
}

func (a *api) update(gvr schema.GroupVersionResource, namespace, subresource string, obj runtime.Object, compare bool) (runtime.Object,
	error) {
	o, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	old, err := a.tracker.Get(gvr, namespace, o.GetName())
	if err != nil {
		return nil, err
	}
	before, err := meta.Accessor(old)
	if err != nil {
		return nil, err
	}
	if compare && o.GetResourceVersion() != "" && o.GetResourceVersion() != before.GetResourceVersion() {
		return nil, apierrors.NewConflict(gvr.GroupResource(), o.GetName(), fmt.Errorf("the object has been modified"))
	}
	if subresource == "status" {
		keep(obj, old, "Spec")
	} else if subresource == "" {
		keep(obj, old, "Status")
	}
	o.SetUID(before.GetUID())
	o.SetCreationTimestamp(before.GetCreationTimestamp())
	o.SetDeletionTimestamp(before.GetDeletionTimestamp())
	o.SetGeneration(before.GetGeneration())
	if !same(obj, old, "Spec") {
		o.SetGeneration(before.GetGeneration() + 1)
	}
	o.SetResourceVersion(before.GetResourceVersion())
	if equality.Semantic.DeepEqual(obj, old) {
		return obj, nil
	}
	o.SetResourceVersion(a.next())
	verb := "update"
	if subresource != "" {
		verb += "/" + subresource
	}
	if o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 && !a.runs(obj) {
		a.fed(gvr, watch.Deleted, obj)
		a.tell(verb, gvr, old, obj)
		return obj, a.tracker.Delete(gvr, namespace, o.GetName())
	}
	a.fed(gvr, watch.Modified, obj)
	a.tell(verb, gvr, old, obj)
	return obj, a.tracker.Update(gvr, obj, namespace)
}

func (a *api) patch(action clienttesting.PatchActionImpl) (runtime.Object, error) {
	old, err := a.tracker.Get(action.GetResource(), action.GetNamespace(), action.GetName())
	if err != nil {
		return nil, err
	}
	before, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	var after []byte
	if action.GetPatchType() == types.MergePatchType {
		after, err = jsonpatch.MergePatch(before, action.GetPatch())
	} else {
		after, err = strategicpatch.StrategicMergePatch(before, action.GetPatch(), old)
	}
	if err != nil {
		return nil, err
	}
	obj := reflect.New(reflect.TypeOf(old).Elem()).Interface().(runtime.Object)
	if err := json.Unmarshal(after, obj); err != nil {
		return nil, err
	}
	return a.update(action.GetResource(), action.GetNamespace(), action.GetSubresource(), obj, true)
}

func (a *api) remove(gvr schema.GroupVersionResource, namespace, name string) error {
	old, err := a.tracker.Get(gvr, namespace, name)
	if err != nil {
		return err
	}
	o, err := meta.Accessor(old)
	if err != nil {
		return err
	}
	if len(o.GetFinalizers()) > 0 || a.runs(old) {
		if o.GetDeletionTimestamp() != nil {
			return nil
		}
		obj := old.DeepCopyObject()
		o, _ = meta.Accessor(obj)
		now := metav1.NewTime(a.clock.Now())
		o.SetDeletionTimestamp(&now)
		o.SetResourceVersion(a.next())
		a.fed(gvr, watch.Modified, obj)
		a.tell("delete", gvr, old, obj)
		return a.tracker.Update(gvr, obj, namespace)
	}
	if a.feed != nil {
		last := old.DeepCopyObject()
		if o, err = meta.Accessor(last); err == nil {
			o.SetResourceVersion(a.next())
		}
		a.fed(gvr, watch.Deleted, last)
	}
	a.tell("delete", gvr, nil, old)
	return a.tracker.Delete(gvr, namespace, name)
}

// runs reports whether obj is a pod that its node has yet to stop.
func (a *api) runs(obj runtime.Object) bool {
	pod, ok := obj.(*corev1.Pod)
	return ok && a.feed != nil && pod.Spec.NodeName != "" && !a.stopped[pod.UID]
}

// fed passes a change to the simulation.
func (a *api) fed(gvr schema.GroupVersionResource, event watch.EventType, obj runtime.Object) {
	if a.feed != nil {
		a.feed(gvr, event, obj.DeepCopyObject())
	}
}

// tell adds a write to the transcript.
func (a *api) tell(verb string, gvr schema.GroupVersionResource, before, after runtime.Object) {
	if event, ok := after.(*corev1.Event); ok {
		a.wrote(fmt.Sprintf("event %s %s %s %s: %s", event.Source.Component, event.Type, event.Reason, event.InvolvedObject.Name, event.Message),
			nil, nil)
		return
	}
	o, err := meta.Accessor(after)
	if err != nil {
		return
	}
	name := o.GetName()
	if o.GetNamespace() != "" {
		name = o.GetNamespace() + "/" + name
	}
	if verb == "delete" && before == nil {
		after = nil
	}
	a.wrote(fmt.Sprintf("%s %s %s", verb, gvr.Resource, name), before, after)
}

// keep copies a field of a struct from old.

func keep(obj, old runtime.Object, field string) {
	to, from := reflect.ValueOf(obj).Elem().FieldByName(field), reflect.ValueOf(old).Elem().FieldByName(field)
	if to.IsValid() && from.IsValid() {
		to.Set(from)
	}
}

func same(obj, old runtime.Object, field string) bool {
	a, b := reflect.ValueOf(obj).Elem().FieldByName(field), reflect.ValueOf(old).Elem().FieldByName(field)
	return !a.IsValid() || reflect.DeepEqual(a.Interface(), b.Interface())
}
