// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/builtin/nodeparts"
	"github.com/mortise-dev/mortise/internal/machine/images"
)

// cluster is an API server that is not there, and a runtime that is.
type cluster struct {
	t       *testing.T
	client  *fake.Clientset
	options Options
	node    Node
	policy  corev1.PullPolicy
	log     logText
	answers answers
	stop    func()
}

// answers are what a test makes the API server say while the node runs. The fake clientset's own chain of reactors has no lock, and the
// node's requests read it at any time.
type answers struct {
	mu   sync.Mutex
	list []clienttesting.Reactor // the newest last
}

// Prepend has the requests of a verb for a resource answered by f first, from now on. As with the fake clientset, f answers false for what
// others shall answer.
func (a *answers) Prepend(verb, resource string, f clienttesting.ReactionFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, &clienttesting.SimpleReactor{Verb: verb, Resource: resource, Reaction: f})
}

// react is the one reactor that the clientset has before the node starts.
func (a *answers) react(action clienttesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	list := slices.Clone(a.list)
	a.mu.Unlock()
	for _, r := range slices.Backward(list) {
		if !r.Handles(action) {
			continue
		}
		if handled, obj, err := r.React(action); handled {
			return true, obj, err
		}
	}
	return false, nil, nil
}

// logText is what a node has logged.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// lines are those that have the text.
func (l *logText) lines(text string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	return out
}

func newCluster(t *testing.T, options Options) *cluster {
	var made atomic.Int64
	c := &cluster{t: t, client: fake.NewClientset(), options: options}
	c.options.Volumes = nodeparts.VolumePlugins()
	if given, ok := options.Client.(*fake.Clientset); ok {
		c.client = given
	}
	if c.options.Host.Measure == nil {
		// The machine that runs the tests may be short of anything.
		c.options.Host.Measure = func(context.Context) evict.Observations { return nil }
	}
	// What a node creates gets its UID from the API server.
	c.client.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if m, err := meta.Accessor(action.(clienttesting.CreateAction).GetObject()); err == nil && m.GetUID() == "" {
			m.SetUID(types.UID(fmt.Sprintf("made-%d", made.Add(1))))
		}
		return false, nil, nil
	})
	// The fake API server deletes as the real one does: a pod on a node goes when its node says so.
	c.client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		del := action.(clienttesting.DeleteActionImpl)
		if g := del.DeleteOptions.GracePeriodSeconds; g != nil && *g == 0 {
			return false, nil, nil
		}
		obj, err := c.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), del.Namespace, del.Name)
		if err != nil {
			return true, nil, err
		}
		pod := obj.(*corev1.Pod).DeepCopy()
		now := metav1.Now()
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, pod.Spec.TerminationGracePeriodSeconds
		if g := del.DeleteOptions.GracePeriodSeconds; g != nil {
			pod.DeletionGracePeriodSeconds = g
		}
		return true, pod, c.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, del.Namespace)
	})
	c.client.PrependReactor("*", "*", c.answers.react)
	c.options.Client = c.client
	c.start()
	t.Cleanup(func() { c.stop() })
	return c
}

// start runs the node; after stop it may be started again.
func (c *cluster) start() {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	started, over := make(chan Node, 1), make(chan error, 1)
	o := c.options
	o.Started = func(n Node) { started <- n }
	o.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(c.t.Output(), &c.log), nil))
	go func() { over <- Run(ctx, o) }()
	stopped := false
	c.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-over; err != nil {
			c.t.Errorf("Run: %v", err)
		}
	}
	select {
	case c.node = <-started:
	case err := <-over:
		over <- err
		c.t.Fatalf("Run ended: %v", err)
	case <-time.After(30 * time.Second):
		c.t.Fatal("the node does not start")
	}
}

// create makes a pod, bound to the node.
func (c *cluster) create(pod *corev1.Pod) *corev1.Pod {
	c.t.Helper()
	pod.Namespace, pod.UID = "default", types.UID(fmt.Sprintf("uid-%s-%d", pod.Name, time.Now().UnixNano()))
	pod.Spec.NodeName = c.options.NodeName
	if pod.Spec.RestartPolicy == "" {
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Image == "" {
				list[i].Image = images.Busybox
			}
			list[i].ImagePullPolicy = cmp.Or(c.policy, corev1.PullIfNotPresent)
			list[i].TerminationMessagePath = corev1.TerminationMessagePathDefault
		}
	}
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		pod.Spec.TerminationGracePeriodSeconds = new(int64(2))
	}
	made, err := c.client.CoreV1().Pods("default").Create(c.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return made
}

// await watches a pod until it is as wanted; nil means that it is gone.
func (c *cluster) await(name, what string, want func(*corev1.Pod) bool) *corev1.Pod {
	c.t.Helper()
	w, err := c.client.CoreV1().Pods("default").Watch(c.t.Context(),
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		c.t.Fatal(err)
	}
	defer w.Stop()
	limit := time.After(40 * time.Second)
	pod, err := c.client.CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		pod = nil
	}
	for !want(pod) {
		select {
		case e := <-w.ResultChan():
			got, ok := e.Object.(*corev1.Pod)
			if !ok || got.Name != name {
				continue
			}
			pod = got
			if e.Type == watch.Deleted {
				pod = nil
			}
		case <-limit:
			text := "gone"
			if pod != nil {
				text = fmt.Sprintf("%+v", pod.Status)
			}
			c.t.Fatalf("pod %s is not %s: %s\nevents: %s", name, what, text, strings.Join(c.events(name), "\n"))
		}
	}
	return pod
}

// events are the pod's events so far, as "reason: message".
func (c *cluster) events(pod string) []string {
	list, err := c.client.CoreV1().Events("default").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		if e.InvolvedObject.Name == pod {
			out = append(out, e.Reason+": "+e.Message)
		}
	}
	return out
}

func isReady(pod *corev1.Pod) bool {
	if pod == nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func sh(script string) []string { return []string{"sh", "-c", script} }

// createAs makes a pod with another pull policy.
func (c *cluster) createAs(pod *corev1.Pod, policy corev1.PullPolicy) {
	c.t.Helper()
	c.policy = policy
	c.create(pod)
	c.policy = ""
}

// awaitEvent watches until the pod has an event whose "reason: message" begins so. Events come after the status that they tell of.
func (c *cluster) awaitEvent(pod, text string) {
	c.t.Helper()
	w, err := c.client.CoreV1().Events("default").Watch(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer w.Stop()
	limit := time.After(20 * time.Second)
	for {
		for _, e := range c.events(pod) {
			if strings.HasPrefix(e, text) {
				return
			}
		}
		select {
		case <-w.ResultChan():
		case <-limit:
			c.t.Fatalf("pod %s has no event %s: %q", pod, text, c.events(pod))
		}
	}
}
