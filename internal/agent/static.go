// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/staticpods"
)

// DecodePods reads a manifest of static pods for the node of the name.
type DecodePods func(data []byte, source string, file bool, node string) ([]*corev1.Pod, error)

// statics are the pods that the node has from files and pages, and what the API server shows of them. Its fields are
// guarded by node.mu.
type statics struct {
	waiting map[string]bool                      // sources that have not been read yet
	pods    map[string]map[types.UID]bool        // by source
	mirrors map[types.NamespacedName]*corev1.Pod // what the API server shows, by name
	orphans chan struct{}                        // something may be shown that is no more
}

// mirrors says whether the UID is that of what the API server shows of a static pod; the caller holds the lock.
func (n *node) mirrors(pod *corev1.Pod, uid types.UID) bool {
	mirror := n.static.mirrors[podspec.Name(pod)]
	return podspec.IsStatic(pod) && mirror != nil && mirror.UID == uid
}

// staticSources are where static pods are looked for.
func (n *node) staticSources() staticpods.Options {
	k := n.Kubelet
	o := staticpods.Options{
		Path: k.StaticPodPath, FilePeriod: k.FileCheckFrequency.Duration, URL: k.StaticPodURL, Header: k.StaticPodURLHeader, URLPeriod: k.HTTPCheckFrequency.Duration,
		Decode: func(data []byte, source string, file bool) ([]*corev1.Pod, error) {
			if n.DecodePods == nil {
				return nil, errors.New("this node cannot read manifests")
			}
			return n.DecodePods(data, source, file, n.NodeName)
		},
		Set: n.setStatic, Logger: n.Logger, Clock: n.Clock,
	}
	n.static = statics{waiting: map[string]bool{}, pods: map[string]map[types.UID]bool{}, mirrors: map[types.NamespacedName]*corev1.Pod{}, orphans: make(chan struct{}, 1)}
	for _, source := range o.Sources() {
		n.static.waiting[source] = true
	}
	return o
}

// setStatic takes all pods of a source.
func (n *node) setStatic(source string, pods []*corev1.Pod) {
	n.mu.Lock()
	before, now := n.static.pods[source], map[types.UID]bool{}
	var seen, gone []*corev1.Pod
	for _, p := range pods {
		now[p.UID] = true
		at := n.Clock.Now().Format(time.RFC3339Nano)
		if w := n.workers[p.UID]; w != nil && w.spec != nil && before[p.UID] {
			at = w.spec.Annotations[podspec.ConfigSeen]
		}
		p = p.DeepCopy()
		p.Annotations[podspec.ConfigSource], p.Annotations[podspec.ConfigSeen] = source, at
		seen = append(seen, p)
	}
	for uid := range before {
		if w := n.workers[uid]; w != nil && w.spec != nil && !now[uid] {
			gone = append(gone, w.spec)
		}
	}
	n.static.pods[source] = now
	delete(n.static.waiting, source)
	n.mu.Unlock()
	for _, p := range gone {
		n.podGone(p)
	}
	for _, p := range seen {
		n.podSeen(p)
	}
	n.lookForOrphans()
}

// mirrorSeen hears of what the API server shows of a static pod; gone says that it shows it no more.
func (n *node) mirrorSeen(mirror *corev1.Pod, gone bool) {
	n.mu.Lock()
	if have := n.static.mirrors[podspec.Name(mirror)]; !gone {
		n.static.mirrors[podspec.Name(mirror)] = mirror
	} else if have != nil && have.UID == mirror.UID {
		delete(n.static.mirrors, podspec.Name(mirror))
	}
	n.mu.Unlock()
	n.wakeNamed(podspec.Name(mirror))
	n.lookForOrphans()
}

// wakeNamed wakes the workers of the name.
func (n *node) wakeNamed(name types.NamespacedName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workers {
		if w.spec != nil && podspec.Name(w.spec) == name {
			w.wake()
		}
	}
}

// nameTaken says whether another pod of the name has not ended yet: the one before a static pod's manifest was changed.
func (n *node) nameTaken(w *worker, pod *corev1.Pod) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, other := range n.workers {
		if other != w && other.spec != nil && other.gone && podspec.Name(other.spec) == podspec.Name(pod) {
			return true
		}
	}
	return false
}

func (n *node) lookForOrphans() {
	select {
	case n.static.orphans <- struct{}{}:
	default:
	}
}

// removeOrphans takes away what the API server shows of static pods that are no more, when all sources have been read.
func (n *node) removeOrphans(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.static.orphans:
		}
		n.mu.Lock()
		known := map[types.NamespacedName]bool{}
		for _, w := range n.workers {
			if w.spec != nil && podspec.IsStatic(w.spec) {
				known[podspec.Name(w.spec)] = true
			}
		}
		var orphans []*corev1.Pod
		if len(n.static.waiting) == 0 {
			for name, mirror := range n.static.mirrors {
				if !known[name] {
					orphans = append(orphans, mirror)
				}
			}
		}
		n.mu.Unlock()
		for _, mirror := range orphans {
			if err := n.deletePod(ctx, mirror); err != nil && ctx.Err() == nil {
				n.Logger.Warn("remove mirror of a static pod", "pod", podspec.Describe(mirror), "err", err)
				n.later(n.lookForOrphans)
			}
		}
	}
}

// later calls the function after a while.
func (n *node) later(do func()) {
	timer := n.Clock.NewTimer(retryLate)
	n.running.Go(func() {
		defer timer.Stop()
		select {
		case <-n.ctx.Done():
		case <-timer.C():
			do()
		}
	})
}

// mirror sees to it that the API server shows the static pod, and returns what it shows; nil while it shows nothing, or
// something else. What it shows is made anew when somebody deletes it, and when it is of another manifest.
func (n *node) mirror(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	n.mu.Lock()
	have, known := n.static.mirrors[podspec.Name(pod)], n.synced
	n.mu.Unlock()
	switch {
	case !known:
		return nil, nil // the pods that the API server has are still to come
	case have != nil && (have.DeletionTimestamp != nil || have.Annotations[corev1.MirrorPodAnnotationKey] != pod.Annotations[podspec.ConfigHash]):
		if err := n.deletePod(ctx, have); err != nil {
			return nil, fmt.Errorf("delete mirror of %s: %w", podspec.Describe(pod), err)
		}
		return nil, nil // it is made again when it is heard to be gone
	case have != nil:
		return have, nil
	}
	node, err := n.client.CoreV1().Nodes().Get(ctx, n.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("find owner of the mirror of %s: %w", podspec.Describe(pod), err)
	}
	if node.DeletionTimestamp != nil {
		return nil, nil
	}
	mirror := pod.DeepCopy()
	mirror.UID = ""
	mirror.Annotations[corev1.MirrorPodAnnotationKey] = pod.Annotations[podspec.ConfigHash]
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.NodeName, UID: node.UID, Controller: new(true)}}
	made, err := n.client.CoreV1().Pods(pod.Namespace).Create(ctx, mirror, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("show static pod %s: another pod has its name", podspec.Describe(pod))
	}
	if err != nil {
		return nil, fmt.Errorf("show static pod %s: %w", podspec.Describe(pod), err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if have := n.static.mirrors[podspec.Name(pod)]; have != nil && have.UID == made.UID {
		return have, nil
	}
	n.static.mirrors[podspec.Name(pod)] = made
	return made, nil
}

// shown is the pod in the API server that the worker's pod is: itself, or its mirror.
func (w *worker) shown(ctx context.Context, api *corev1.Pod) *corev1.Pod {
	if !podspec.IsStatic(api) {
		return api
	}
	mirror, err := w.n.mirror(ctx, api)
	if err != nil {
		// The pod runs on in any case; what is wrong is said once.
		if text := err.Error(); text != w.complaint && ctx.Err() == nil {
			w.complaint = text
			w.n.Logger.Warn("static pod is not shown", "err", err)
		}
		w.wakeLater(ctx)
		return nil
	}
	w.complaint = ""
	if mirror != nil && mirror.UID != w.mirror {
		w.mirror, w.written = mirror.UID, nil
	}
	return mirror
}

// sourcesRead says whether all sources of pods have spoken: only then is a pod that nobody knows an orphan.
func (n *node) sourcesRead() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.synced && len(n.static.waiting) == 0
}
