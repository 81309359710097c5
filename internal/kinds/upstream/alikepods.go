// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core/validation"

	"github.com/mortise-dev/mortise/resource"
)

// Most new pods are copies of earlier ones, made by the controller of a template: they differ in name, UID and times. If the rest of a pod,
// byte for byte, is that of one that was valid, only its name is left to validate.

// alikePods remembers valid pods: the latest ones, up to a size.
type alikePods struct {
	mu          sync.RWMutex
	young, aged map[string]struct{}
	bytes       int // of young
}

const (
	alikeBytes = 512 << 10 // of each half
	alikeEach  = 16 << 10
)

func (a *alikePods) has(key []byte) bool {
	a.mu.RLock()
	_, young := a.young[string(key)]
	_, aged := a.aged[string(key)]
	a.mu.RUnlock()
	if aged && !young {
		a.put(key)
	}
	return young || aged
}

func (a *alikePods) put(key []byte) {
	if len(key) > alikeEach {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bytes+len(key) > alikeBytes || a.young == nil {
		a.young, a.aged, a.bytes = map[string]struct{}{}, a.young, 0
	}
	if _, ok := a.young[string(key)]; !ok {
		a.young[string(key)] = struct{}{}
		a.bytes += len(key)
	}
}

// check is a check of new pods that asks f only for those that are like no valid one.
func (a *alikePods) check(f CreateCheck) CreateCheck {
	return func(ctx context.Context, obj resource.Object) field.ErrorList {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return f(ctx, obj)
		}
		room := podKeys.Get().(*podKey)
		defer podKeys.Put(room)
		key := room.of(pod)
		if key != nil && a.has(key) && len(validation.ValidatePodName(pod.Name, false)) == 0 {
			return nil
		}
		errs := f(ctx, obj)
		if key != nil && len(errs) == 0 {
			a.put(key)
		}
		return errs
	}
}

// podKey is memory for the key of a pod.
type podKey struct {
	pod    corev1.Pod
	fields []metav1.ManagedFieldsEntry
	key    []byte
}

var podKeys = sync.Pool{New: func() any { return new(podKey) }}

// of returns a pod's key: all of it but its name, UID and times, as bytes that are valid until the next call. Nil: it has none, as parts of
// it have names that contain the pod's.
func (k *podKey) of(pod *corev1.Pod) []byte {
	defer func() {
		clear(k.fields)
		k.pod = corev1.Pod{}
	}()
	ephemeral := func(v corev1.Volume) bool { return v.Ephemeral != nil }
	if pod.UID == "" || pod.CreationTimestamp.IsZero() || slices.ContainsFunc(pod.Spec.Volumes, ephemeral) {
		return nil
	}
	k.pod = *pod
	m := &k.pod.ObjectMeta
	m.Name, m.UID, m.CreationTimestamp = "", "", metav1.Time{}
	k.fields = append(k.fields[:0], m.ManagedFields...)
	for i := range k.fields {
		if k.fields[i].Time == nil {
			return nil
		}
		k.fields[i].Time = nil
	}
	m.ManagedFields = k.fields
	size := k.pod.Size()
	k.key = slices.Grow(k.key[:0], size)[:size]
	n, err := k.pod.MarshalToSizedBuffer(k.key)
	if err != nil {
		return nil
	}
	return k.key[size-n:]
}
