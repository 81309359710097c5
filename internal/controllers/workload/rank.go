// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/podconditions"
)

// Victims sorts pods by how little their deletion costs, and returns the first n. neighbours are all pods of the owner's siblings, which
// show how crowded a node is. In order: not yet on a node; pending, then unknown, then running; not ready; cheaper by the pod-deletion-cost
// annotation; on a node with more neighbours; ready for a shorter time; restarted more often; younger.
//
// Victims compares times by the power of two that their age falls in, and breaks ties by UID, so that among pods of about the same age the
// choice is arbitrary. Two pods 5 and 7 minutes old are equal, one of 5 minutes and one of 5 days are not.
func Victims(pods, neighbours []*corev1.Pod, n int, now time.Time) []*corev1.Pod {
	if n >= len(pods) {
		return pods
	}
	crowd := map[string]int{}
	for _, pod := range neighbours {
		if Active(pod) {
			crowd[pod.Spec.NodeName]++
		}
	}
	sorted := slices.Clone(pods)
	slices.SortStableFunc(sorted, func(a, b *corev1.Pod) int {
		if c := earlierStage(a, b); c != 0 {
			return c
		}
		if c := cmp.Compare(deletionCost(a), deletionCost(b)); c != 0 {
			return c
		}
		if c := cmp.Compare(crowd[b.Spec.NodeName], crowd[a.Spec.NodeName]); c != 0 {
			return c
		}
		if podconditions.IsReady(a) && podconditions.IsReady(b) {
			if c := younger(readySince(a), readySince(b), a, b, now); c != 0 {
				return c
			}
		}
		if c := moreRestarts(a, b); c != 0 {
			return c
		}
		return cmp.Or(younger(a.CreationTimestamp, b.CreationTimestamp, a, b, now), cmp.Compare(a.UID, b.UID))
	})
	return sorted[:n]
}

// SortForDeletion sorts pods as Victims does, with exact times and without costs and neighbours: the order in which jobs delete pods.
func SortForDeletion(pods []*corev1.Pod) {
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		if c := earlierStage(a, b); c != 0 {
			return c
		}
		if podconditions.IsReady(a) && podconditions.IsReady(b) {
			if c := exactlyYounger(readySince(a), readySince(b)); c != 0 {
				return c
			}
		}
		if c := moreRestarts(a, b); c != 0 {
			return c
		}
		return cmp.Or(exactlyYounger(a.CreationTimestamp, b.CreationTimestamp), cmp.Compare(a.UID, b.UID))
	})
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func earlierStage(a, b *corev1.Pod) int {
	if c := first(a.Spec.NodeName == "", b.Spec.NodeName == ""); c != 0 {
		return c
	}
	if c := cmp.Compare(stage(a), stage(b)); c != 0 {
		return c
	}
	return first(!podconditions.IsReady(a), !podconditions.IsReady(b))
}

func stage(pod *corev1.Pod) int {
	switch pod.Status.Phase {
	case corev1.PodUnknown:
		return 1
	case corev1.PodRunning:
		return 2
	}
	return 0
}

// deletionCost parses the annotation. A value that upstream rejects (a plus sign, leading zeros) counts as 0.
func deletionCost(pod *corev1.Pod) int32 {
	text, ok := pod.Annotations[corev1.PodDeletionCost]
	if !ok || text == "" || text[0] == '+' || len(text) > 1 && text[0] == '0' {
		return 0
	}
	cost, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0
	}
	return int32(cost)
}

func younger(ta, tb metav1.Time, a, b *corev1.Pod, now time.Time) int {
	if ta.Equal(&tb) {
		return 0
	}
	if ta.IsZero() || tb.IsZero() {
		return first(ta.IsZero(), tb.IsZero())
	}
	if c := cmp.Compare(magnitude(now.Sub(ta.Time)), magnitude(now.Sub(tb.Time))); c != 0 {
		return c
	}
	return cmp.Compare(a.UID, b.UID)
}

func magnitude(age time.Duration) int {
	if age <= 0 {
		return -1
	}
	return int(math.Log2(float64(age)))
}

func exactlyYounger(ta, tb metav1.Time) int {
	if ta.Equal(&tb) {
		return 0
	}
	if ta.IsZero() || tb.IsZero() {
		return first(ta.IsZero(), tb.IsZero())
	}
	return first(ta.After(tb.Time), tb.After(ta.Time))
}

func moreRestarts(a, b *corev1.Pod) int {
	aRegular, aSidecar := restarts(a)
	bRegular, bSidecar := restarts(b)
	return cmp.Or(cmp.Compare(bRegular, aRegular), cmp.Compare(bSidecar, aSidecar))
}

// restarts returns the highest restart counts of the pod's containers and of its restartable init containers.
func restarts(pod *corev1.Pod) (regular, sidecar int32) {
	for _, s := range pod.Status.ContainerStatuses {
		regular = max(regular, s.RestartCount)
	}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		for _, s := range pod.Status.InitContainerStatuses {
			if s.Name == c.Name {
				sidecar = max(sidecar, s.RestartCount)
			}
		}
	}
	return regular, sidecar
}
