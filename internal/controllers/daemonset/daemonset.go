// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package daemonset keeps one pod of each DaemonSet on every node that fits.
//
// The controller creates a pod for a node, with an affinity to the node's name, and the scheduler binds it. One pure function ([decide] in
// plan.go) decides which nodes need a pod, which pods are too many or of an old template, and which of those the controller may replace
// now. revision.go keeps the history of templates, which kubectl uses to roll back.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

var kind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

// Controller describes the loop.
func Controller() controllers.Controller {
	sets, revisions := appsv1.SchemeGroupVersion.WithResource("daemonsets"), appsv1.SchemeGroupVersion.WithResource("controllerrevisions")
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	return controllers.Controller{
		Name:    "daemonset-controller",
		Account: "daemon-set-controller",
		Inputs:  []schema.GroupVersionResource{sets, revisions, pods, corev1.SchemeGroupVersion.WithResource("nodes")},
		Outputs: []schema.GroupVersionResource{sets, revisions, pods},
		Syncs:   &controllers.Syncs{Flag: "concurrent-daemonset-syncs", Default: 2},
		New:     build,
	}
}

type controller struct {
	client       kubernetes.Interface
	control      workload.Control
	recorder     record.EventRecorder
	clock        clock.PassiveClock
	sets         appslisters.DaemonSetLister
	revisions    cache.Indexer
	nodes        corelisters.NodeLister
	pods         cache.Indexer
	expectations *workload.Expectations
	waits        *waits
	queue        *controllers.Queue[types.NamespacedName]
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	apps, core := d.Informers.Apps().V1(), d.Informers.Core().V1()
	c := &controller{
		client: d.Client, control: workload.Control{Client: d.Client, Recorder: d.Recorder}, recorder: d.Recorder, clock: d.Clock,
		sets: apps.DaemonSets().Lister(), revisions: apps.ControllerRevisions().Informer().GetIndexer(), nodes: core.Nodes().Lister(),
		pods: core.Pods().Informer().GetIndexer(), expectations: workload.NewExpectations(d.Clock), waits: newWaits(d.Clock),
		queue: controllers.NewQueue[types.NamespacedName](d, "daemonset", d.Syncs()),
	}
	d.Await(apps.ControllerRevisions().Informer())
	err := errors.Join(
		workload.IndexByController(apps.ControllerRevisions().Informer()),
		controllers.Subscribe(d, apps.DaemonSets().Informer(),
			controllers.OnAny(func(set *appsv1.DaemonSet) { c.queue.Add(controllers.Key(set)) })),
		workload.PodEvents{Owned: c.owned, Orphan: c.wakeSuitors, Wake: c.queue.Add, Expectations: c.expectations}.Subscribe(d,
			core.Pods().Informer()),
		controllers.Subscribe(d, core.Nodes().Informer(), controllers.Handler[*corev1.Node]{
			Add: func(*corev1.Node) { c.wakeAll() },
			Update: func(before, updated *corev1.Node) {
				if !equality.Semantic.DeepEqual(before.Labels, updated.Labels) || !equality.Semantic.DeepEqual(before.Spec, updated.Spec) {
					c.wakeAll()
				}
			},
			Delete: func(*corev1.Node) { c.wakeAll() },
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

func (c *controller) owned(pod *corev1.Pod) bool {
	_, ok := workload.OwnerOf(pod, kind.Kind, c.sets.DaemonSets(pod.Namespace).Get)
	return ok
}

func (c *controller) wakeAll() {
	sets, err := c.sets.List(labels.Everything())
	if err != nil {
		return
	}
	for _, set := range sets {
		c.queue.Add(controllers.Key(set))
	}
}

func (c *controller) wakeSuitors(pod *corev1.Pod) {
	sets, err := c.sets.DaemonSets(pod.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, set := range sets {
		if workload.Selects(set.Spec.Selector, pod) {
			c.queue.Add(controllers.Key(set))
		}
	}
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	set, err := c.sets.DaemonSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.expectations.Forget(key)
		return nil
	} else if err != nil {
		return fmt.Errorf("get daemon set: %w", err)
	}
	if workload.LacksSelector(c.recorder, set, "daemon set", set.Spec.Selector) {
		return nil
	}
	if set.DeletionTimestamp != nil {
		return nil // the garbage collector deletes its pods
	}
	settled, wait := c.expectations.Satisfied(key) // read before the cache: what the cache shows later may be older than this answer
	pods, err := c.claim(ctx, set)
	if err != nil {
		return err
	}
	in := observed{set: set, pods: pods, settled: settled, now: c.clock.Now(),
		wait: func(node string) time.Duration { return c.waits.left(at(set, node)) }}
	if in.nodes, err = c.nodes.List(labels.Everything()); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	if in.hash, err = c.revise(ctx, set, pods); err != nil || in.hash == "" {
		return err
	}
	if !settled {
		c.queue.AddAfter(key, wait)
	}
	out := decide(in)
	if out.again > 0 {
		c.queue.AddAfter(key, out.again)
	}
	return c.execute(ctx, in, out)
}

func (c *controller) claim(ctx context.Context, set *appsv1.DaemonSet) ([]*corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("read selector: %w", err)
	}
	pods, err := workload.ByController(c.pods, set, true)
	if err != nil {
		return nil, err
	}
	return workload.Claim[*corev1.Pod]{
		Owner: set, Kind: kind, Selector: selector,
		Fresh: c.fresh(set),
		Patch: workload.PatchPod(c.client),
	}.Settle(ctx, pods)
}

func (c *controller) fresh(set *appsv1.DaemonSet) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return c.client.AppsV1().DaemonSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	}
}

func (c *controller) execute(ctx context.Context, in observed, out decision) error {
	key := controllers.Key(in.set)
	for _, e := range out.events {
		c.recorder.Event(in.set, e.level, e.reason, e.message)
	}
	for _, node := range out.failed {
		c.waits.again(at(in.set, node))
	}
	var failure error
	if len(out.create)+len(out.delete) > 0 {
		uids := make([]types.UID, len(out.delete))
		for i, pod := range out.delete {
			uids[i] = pod.UID
		}
		c.expectations.Expect(key, len(out.create), uids...)
		made, err := workload.SlowStart(len(out.create), func(i int) error {
			_, err := c.control.Create(ctx, in.set, c.pod(in, out.create[i]))
			return err
		})
		for range len(out.create) - made {
			c.expectations.CreationObserved(key)
		}
		failure = errors.Join(err, workload.Concurrently(len(uids), 64, func(i int) error {
			err := c.control.Delete(ctx, in.set, out.delete[i].Name)
			if err == nil {
				return nil
			}
			c.expectations.DeletionObserved(key, uids[i])
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}))
	}
	if !equality.Semantic.DeepEqual(in.set.Status, out.status) {
		update := in.set.DeepCopy()
		update.Status = out.status
		if _, err := c.client.AppsV1().DaemonSets(in.set.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{}); err != nil {
			return errors.Join(failure, fmt.Errorf("update status: %w", err))
		}
	}
	return failure
}

// pod returns the set's pod for a node.
func (c *controller) pod(in observed, node string) *corev1.Pod {
	pod := workload.PodFromTemplate(&in.set.Spec.Template, in.set, metav1.NewControllerRef(in.set, kind))
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = in.hash
	if g := generation(in.set); g != "" {
		pod.Labels[generationLabel] = g
	}
	pod.Spec.Tolerations = tolerations(&pod.Spec)
	pin(pod, node)
	return pod
}

const generationLabel = "pod-template-generation"

// generation returns the generation of the set's template, which old clients use to tell pods apart; "" if it has none.
func generation(set *appsv1.DaemonSet) string {
	n, err := strconv.ParseInt(set.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	if err != nil {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// pin ties a pod to a node: each term of its required node affinity now selects that node's name alone.
func pin(pod *corev1.Pod, node string) {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}
}
