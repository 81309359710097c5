// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package static runs the pods from files and URLs (package staticpods), and maintains their mirror pods in the API server: it creates a
// mirror pod for each of them, again when it is deleted or the manifest changes, and removes it with the pod.
package static

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/staticpods"
)

// retryLate is the delay after a mirror pod could not be removed.
const retryLate = 10 * time.Second

// Definitions are the pods that the node knows. The caller must not change them.
type Definitions interface {
	// Spec returns the newest definition of the pod; nil: the node does not have it.
	Spec(pod types.UID) *corev1.Pod
	// StaticPods returns the static pods of which anything is left.
	StaticPods() []*corev1.Pod
	// Synced reports whether the node has listed its pods from the API server.
	Synced() bool
}

// Workers are the workers of pods.
type Workers interface {
	// SetPod sets a pod's newest definition.
	SetPod(pod *corev1.Pod)
	// RemovePod ends the pod.
	RemovePod(pod *corev1.Pod)
	// WakeNamed wakes the workers of the pods with the name.
	WakeNamed(name types.NamespacedName)
}

// Deleter deletes pods from the API server.
type Deleter interface {
	DeletePod(ctx context.Context, pod *corev1.Pod) error
}

// Config configures a Manager. All fields but Decode are required.
type Config struct {
	Client      kubernetes.Interface
	Definitions Definitions
	Workers     Workers
	Deleter     Deleter
	// Decode decodes a manifest for the named node; nil: the manager rejects manifests.
	Decode   func(data []byte, source string, file bool, node string) ([]*corev1.Pod, error)
	NodeName string
	Kubelet  *configv1beta1.KubeletConfiguration
	Clock    clock.WithTicker
	Logger   *slog.Logger
}

// Manager runs the pods from files and URLs, and maintains their mirror pods. It is safe for concurrent use.
type Manager struct {
	Config
	sources staticpods.Options
	orphans chan struct{} // signals that there may be mirror pods without a static pod

	mu      sync.Mutex
	waiting map[string]bool                      // sources that have not been read yet
	pods    map[string]map[types.UID]bool        // by source
	mirrors map[types.NamespacedName]*corev1.Pod // the mirror pods in the API server, by name
}

// New makes the manager with the sources in the configuration.
func New(c Config) *Manager {
	m := &Manager{
		Config: c, orphans: make(chan struct{}, 1),
		waiting: map[string]bool{}, pods: map[string]map[types.UID]bool{}, mirrors: map[types.NamespacedName]*corev1.Pod{},
	}
	k := m.Kubelet
	m.sources = staticpods.Options{
		Path: k.StaticPodPath, FilePeriod: k.FileCheckFrequency.Duration,
		URL: k.StaticPodURL, Header: k.StaticPodURLHeader, URLPeriod: k.HTTPCheckFrequency.Duration,
		Decode: func(data []byte, source string, file bool) ([]*corev1.Pod, error) {
			if m.Decode == nil {
				return nil, errors.New("this node cannot read manifests")
			}
			return m.Decode(data, source, file, m.NodeName)
		},
		Set: m.set, Logger: m.Logger, Clock: m.Clock,
	}
	for _, source := range m.sources.Sources() {
		m.waiting[source] = true
	}
	return m
}

// Run reads the sources until ctx is done.
func (m *Manager) Run(ctx context.Context) error { return staticpods.Run(ctx, m.sources) }

// set replaces all pods of a source. Each source calls it from one goroutine.
func (m *Manager) set(source string, pods []*corev1.Pod) {
	m.mu.Lock()
	before := m.pods[source]
	m.mu.Unlock()
	now := map[types.UID]bool{}
	var seen, gone []*corev1.Pod
	for _, p := range pods {
		now[p.UID] = true
		at := m.Clock.Now().Format(time.RFC3339Nano)
		if known := m.Definitions.Spec(p.UID); known != nil && before[p.UID] {
			at = known.Annotations[podspec.ConfigSeen]
		}
		p = p.DeepCopy()
		p.Annotations[podspec.ConfigSource], p.Annotations[podspec.ConfigSeen] = source, at
		seen = append(seen, p)
	}
	for uid := range before {
		if known := m.Definitions.Spec(uid); known != nil && !now[uid] {
			gone = append(gone, known)
		}
	}
	m.mu.Lock()
	m.pods[source] = now
	delete(m.waiting, source)
	m.mu.Unlock()
	for _, p := range gone {
		m.Workers.RemovePod(p)
	}
	for _, p := range seen {
		m.Workers.SetPod(p)
	}
	m.LookForOrphans()
}

// MirrorSeen handles an event of a mirror pod; gone means that it was deleted.
func (m *Manager) MirrorSeen(mirror *corev1.Pod, gone bool) {
	m.mu.Lock()
	if have := m.mirrors[podspec.Name(mirror)]; !gone {
		m.mirrors[podspec.Name(mirror)] = mirror
	} else if have != nil && have.UID == mirror.UID {
		delete(m.mirrors, podspec.Name(mirror))
	}
	m.mu.Unlock()
	m.Workers.WakeNamed(podspec.Name(mirror))
	m.LookForOrphans()
}

// LookForOrphans triggers RemoveOrphans: a static pod may have gone.
func (m *Manager) LookForOrphans() {
	select {
	case m.orphans <- struct{}{}:
	default:
	}
}

// Mirror ensures that the API server has a mirror pod of the static pod, and returns it; nil while there is none, or another. It creates
// the mirror pod again when it is deleted, or when the manifest changes.
func (m *Manager) Mirror(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	if !m.Definitions.Synced() {
		return nil, nil // the node has not listed its pods yet
	}
	m.mu.Lock()
	have := m.mirrors[podspec.Name(pod)]
	m.mu.Unlock()
	switch {
	case have != nil && (have.DeletionTimestamp != nil ||
		have.Annotations[corev1.MirrorPodAnnotationKey] != pod.Annotations[podspec.ConfigHash]):
		if err := m.Deleter.DeletePod(ctx, have); err != nil {
			return nil, fmt.Errorf("delete mirror of %s: %w", podspec.Describe(pod), err)
		}
		return nil, nil // it is created again after the event of its deletion
	case have != nil:
		return have, nil
	}
	node, err := m.Client.CoreV1().Nodes().Get(ctx, m.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("find owner of the mirror of %s: %w", podspec.Describe(pod), err)
	}
	if node.DeletionTimestamp != nil {
		return nil, nil
	}
	mirror := pod.DeepCopy()
	mirror.UID = ""
	mirror.Annotations[corev1.MirrorPodAnnotationKey] = pod.Annotations[podspec.ConfigHash]
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: m.NodeName, UID: node.UID, Controller: new(true)}}
	made, err := m.Client.CoreV1().Pods(pod.Namespace).Create(ctx, mirror, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("show static pod %s: another pod has its name", podspec.Describe(pod))
	}
	if err != nil {
		return nil, fmt.Errorf("show static pod %s: %w", podspec.Describe(pod), err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.mirrors[podspec.Name(pod)]; have != nil && have.UID == made.UID {
		return have, nil
	}
	m.mirrors[podspec.Name(pod)] = made
	return made, nil
}

// SourcesRead reports whether all sources of pods have been read: only then is an unknown pod an orphan.
func (m *Manager) SourcesRead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.waiting) == 0
}

// IsMirror reports whether the UID is that of the static pod's mirror pod.
func (m *Manager) IsMirror(pod *corev1.Pod, uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	mirror := m.mirrors[podspec.Name(pod)]
	return podspec.IsStatic(pod) && mirror != nil && mirror.UID == uid
}

// RemoveOrphans deletes mirror pods without a static pod, once all sources have been read, until ctx is done.
func (m *Manager) RemoveOrphans(ctx context.Context) error {
	var again <-chan time.Time // fires when a failed deletion is due again
	var failures backoff.Failures
	for {
		var failed []error
		select {
		case <-ctx.Done():
			return nil
		case <-m.orphans:
		case <-again:
			again = nil
		}
		// Mirror pods first: the static pod of a new one is known when its mirror pod is checked.
		var mirrors []*corev1.Pod
		m.mu.Lock()
		if len(m.waiting) == 0 {
			for _, mirror := range m.mirrors {
				mirrors = append(mirrors, mirror)
			}
		}
		m.mu.Unlock()
		known := map[types.NamespacedName]bool{}
		for _, pod := range m.Definitions.StaticPods() {
			known[podspec.Name(pod)] = true
		}
		for _, mirror := range mirrors {
			if known[podspec.Name(mirror)] {
				continue
			}
			if err := m.Deleter.DeletePod(ctx, mirror); err != nil && ctx.Err() == nil {
				failed = append(failed, fmt.Errorf("pod %s: %w", podspec.Describe(mirror), err))
			}
		}
		if len(failed) == 0 {
			failures.Clear()
			continue
		}
		now := m.Clock.Now()
		failures.Log(now, m.Logger.Warn, "Could not remove the mirrors of static pods, retrying", "err", errors.Join(failed...))
		again = m.Clock.After(failures.Wait(now, retryLate, backoff.Max))
	}
}
