// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// bug is a mistake of the example controller.
type bug string

const (
	none            bug = ""
	lostUpdate      bug = "lost update"           // it writes what it has read, whatever has changed since
	missedDelete    bug = "missed delete"         // it copes with deletions only if it sees them
	blindCreate     bug = "non-idempotent create" // it creates an object under a new name each time
	ignoredConflict bug = "ignored conflict"      // it takes a conflict for success
)

// copier is the example controller. For each ConfigMap with the label copy=wanted it keeps a Secret with the same data, and notes in an
// annotation of the ConfigMap what it has copied. It deletes the copy of a ConfigMap that is gone.
type copier struct {
	bug     bug
	client  kubernetes.Interface
	sources cache.SharedIndexInformer
	copies  cache.SharedIndexInformer
	queue   workqueue.TypedRateLimitingInterface[string]
	made    map[string]bool // with the bug blindCreate: the sources that have a copy, whether the informer has seen it or not
}

const (
	namespace  = "default"
	wanted     = "copy"   // label of sources
	sourceName = "source" // label of copies
	copied     = "copied" // annotation of sources
)

// run returns a controller with a bug.
func (b bug) run(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	c := &copier{bug: b, client: client, sources: factory.Core().V1().ConfigMaps().Informer(),
		copies: factory.Core().V1().Secrets().Informer(),
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		made:   map[string]bool{}}
	if _, err := c.sources.AddEventHandler(c.handler(func(o metav1.Object) string { return o.GetName() })); err != nil {
		return err
	}
	if _, err := c.copies.AddEventHandler(c.handler(func(o metav1.Object) string { return o.GetLabels()[sourceName] })); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	stop := context.AfterFunc(ctx, c.queue.ShutDown)
	defer stop()
	if !cache.WaitForCacheSync(ctx.Done(), c.sources.HasSynced, c.copies.HasSynced) {
		c.queue.ShutDown()
		return nil
	}
	for {
		name, shutdown := c.queue.Get()
		if shutdown {
			return nil
		}
		if err := c.sync(ctx, name); err != nil && (b != ignoredConflict || !apierrors.IsConflict(err)) {
			c.queue.AddRateLimited(name)
		} else {
			c.queue.Forget(name)
		}
		c.queue.Done(name)
	}
}

func (c *copier) handler(name func(metav1.Object) string) cache.ResourceEventHandler {
	add := func(obj any) {
		if o, ok := obj.(metav1.Object); ok && name(o) != "" {
			c.queue.Add(name(o))
		}
	}
	update := func(before, obj any) {
		if c.bug == ignoredConflict && !changed(before, obj) {
			return // as controllers do that ignore changes of the status
		}
		add(obj)
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: update, DeleteFunc: func(obj any) {
		if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok && c.bug != missedDelete {
			obj = unknown.Obj
		}
		add(obj)
	}}
}

// changed reports whether the value of a source has changed.
func changed(before, now any) bool {
	b, ok := before.(*corev1.ConfigMap)
	n, is := now.(*corev1.ConfigMap)
	return ok && is && b.Data["value"] != n.Data["value"]
}

// sync makes the copies of a source what they should be.
func (c *copier) sync(ctx context.Context, name string) error {
	secrets := c.client.CoreV1().Secrets(namespace)
	has := c.copiesOf(name)
	obj, there, err := c.sources.GetStore().GetByKey(namespace + "/" + name)
	if err != nil {
		return err
	}
	var source *corev1.ConfigMap
	if there {
		source = obj.(*corev1.ConfigMap)
	}
	if source == nil || source.Labels[wanted] == "" {
		if c.bug == missedDelete && source == nil && len(has) == 0 {
			return nil
		}
		for _, s := range has {
			if err := secrets.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		return nil
	}
	value := source.Data["value"]
	if err := c.write(ctx, name, value, has); err != nil {
		return err
	}
	if source.Annotations[copied] == value {
		return nil
	}
	source = source.DeepCopy()
	metav1.SetMetaDataAnnotation(&source.ObjectMeta, copied, value)
	if c.bug == lostUpdate {
		source.ResourceVersion = ""
	}
	_, err = c.client.CoreV1().ConfigMaps(namespace).Update(ctx, source, metav1.UpdateOptions{})
	return err
}

// write creates or updates the copy.
func (c *copier) write(ctx context.Context, name, value string, has []*corev1.Secret) error {
	secrets := c.client.CoreV1().Secrets(namespace)
	if len(has) > 0 {
		s := has[0].DeepCopy()
		if string(s.Data["value"]) == value {
			return nil
		}
		s.Data = map[string][]byte{"value": []byte(value)}
		_, err := secrets.Update(ctx, s, metav1.UpdateOptions{})
		return err
	}
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name + "-copy", Labels: map[string]string{sourceName: name}},
		Data: map[string][]byte{"value": []byte(value)}}
	if c.bug != blindCreate {
		_, err := secrets.Create(ctx, s, metav1.CreateOptions{})
		return err
	}
	if c.made[name] {
		return nil
	}
	s.Name, s.GenerateName = "", name+"-copy-"
	_, err := secrets.Create(ctx, s, metav1.CreateOptions{})
	c.made[name] = err == nil
	return err
}

func (c *copier) copiesOf(name string) (of []*corev1.Secret) {
	for _, obj := range c.copies.GetStore().List() {
		if s := obj.(*corev1.Secret); s.Labels[sourceName] == name {
			of = append(of, s)
		}
	}
	return of
}

// story is what happens to the objects of a run, and what must have become of them.
func (b bug) story(r *Run) {
	client := r.Cluster.Client().CoreV1()
	sources := client.ConfigMaps(namespace)
	must := func(err error) {
		if err != nil {
			r.Fatalf("%v", err)
		}
	}
	create := func(name string) {
		_, err := sources.Create(r.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{wanted: "wanted"}}, Data: map[string]string{"value": "1"},
		}, metav1.CreateOptions{})
		must(err)
	}
	set := func(name, value string) {
		for {
			m, err := sources.Get(r.Context(), name, metav1.GetOptions{})
			must(err)
			m.Data["value"], m.Data["was"+value] = value, "yes"
			if _, err = sources.Update(r.Context(), m, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
				must(err)
				return
			}
		}
	}
	create("a")
	r.Control(b.run)
	r.Pause()
	create("b")
	set("a", "2")
	r.Pause()
	must(sources.Delete(r.Context(), "b", metav1.DeleteOptions{}))
	set("a", "3")
	r.Advance(time.Duration(r.Rand.Int64N(int64(10 * time.Millisecond))))
	set("a", "4")
	r.Pause()
	set("a", "5")
	r.Settle()
	m, err := sources.Get(r.Context(), "a", metav1.GetOptions{})
	must(err)
	if m.Data["value"] != "5" || m.Annotations[copied] != "5" {
		r.Errorf("the source has %q and notes %q: want 5", m.Data["value"], m.Annotations[copied])
	}
	for _, value := range []string{"2", "3", "4", "5"} {
		if m.Data["was"+value] == "" {
			r.Errorf("the source has lost that it was %s", value)
		}
	}
	list, err := client.Secrets(namespace).List(r.Context(), metav1.ListOptions{})
	must(err)
	var got []string
	for _, s := range list.Items {
		got = append(got, s.Labels[sourceName]+"="+string(s.Data["value"]))
	}
	if text := strings.Join(got, " "); text != "a=5" {
		r.Errorf("the copies are %q: want a=5", text)
	}
}

// Copier is the example controller without a bug.
func Copier(ctx context.Context, config *rest.Config) error { return none.run(ctx, config) }
