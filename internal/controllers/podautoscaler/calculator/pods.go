// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package calculator

import (
	"errors"
	"fmt"
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// tolerances are how far the ratio of usage to target may be from 1 without a change.
type tolerances struct{ down, up float64 }

func (s Settings) tolerances(b *autoscalingv2.HorizontalPodAutoscalerBehavior) tolerances {
	t := tolerances{s.Tolerance, s.Tolerance}
	if b != nil {
		if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
			t.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
		}
		if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
			t.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
		}
	}
	return t
}

func (t tolerances) include(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// ceil rounds up to a number of replicas.
func ceil(x float64) int32 {
	switch x = math.Ceil(x); {
	case x >= math.MaxInt32:
		return math.MaxInt32
	case x <= math.MinInt32:
		return math.MinInt32
	}
	return int32(x)
}

// groups are the pods of a target by what their samples are worth.
type groups struct {
	samples map[string]Sample // those that count
	ready   int               // pods with a sample that counts
	unready []string          // pods whose samples do not count yet
	missing []string          // pods without a sample
}

// group sorts pods. Pods that go or have failed do not count at all.
func (m *measurement) group(of corev1.ResourceName) (groups, error) {
	samples := m.response.Pods
	g := groups{samples: samples}
	if len(m.pods) == 0 {
		return g, errNoPods
	}
	ignored := 0
	for _, pod := range m.pods {
		sample, found := samples[pod.Name]
		switch {
		case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed:
			delete(samples, pod.Name)
			ignored++
		case pod.Status.Phase == corev1.PodPending:
			delete(samples, pod.Name)
			g.unready = append(g.unready, pod.Name)
		case !found:
			g.missing = append(g.missing, pod.Name)
		case of == corev1.ResourceCPU && m.settings.startsUp(pod, sample, m.now):
			delete(samples, pod.Name)
			g.unready = append(g.unready, pod.Name)
		default:
			g.ready++
		}
	}
	m.estimate.Ready, m.estimate.Unready, m.estimate.Missing, m.estimate.Ignored = g.ready, len(g.unready), len(g.missing), ignored
	if len(samples) == 0 {
		return g, errors.New("did not receive metrics for targeted pods (pods might be unready)")
	}
	return g, nil
}

var errNoPods = errors.New("no pods returned by selector while calculating replica count")

// startsUp reports whether a pod's CPU sample says more about its start than about its load.
func (s Settings) startsUp(pod *corev1.Pod, sample Sample, now time.Time) bool {
	ready := readiness(pod)
	if ready == nil || pod.Status.StartTime == nil {
		return true
	}
	start, changed := pod.Status.StartTime.Time, ready.LastTransitionTime.Time
	unready := ready.Status == corev1.ConditionFalse
	if start.Add(s.CPUInitializationPeriod).After(now) {
		// The sample has to cover a whole window since the pod's readiness changed.
		return unready || sample.Time.Before(changed.Add(sample.Window))
	}
	// A pod that has never been ready is unready since its first moments.
	return unready && start.Add(s.InitialReadinessDelay).After(changed)
}

func readiness(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// readyPods counts the pods that run and are ready.
func readyPods(pods []*corev1.Pod) (int, error) {
	if len(pods) == 0 {
		return 0, errNoPods
	}
	n := 0
	for _, pod := range pods {
		if c := readiness(pod); pod.Status.Phase == corev1.PodRunning && c != nil && c.Status == corev1.ConditionTrue {
			n++
		}
	}
	return n, nil
}

// usage is how the samples of pods compare with the target.
type usage struct {
	ratio   float64
	percent int32 // of the requests, where these count
	average int64 // of a pod
}

// replicas proposes how many replicas bring the usage to the target. Pods of which nothing is known count as what makes the change
// smallest: where the others use too little, as atTarget says; where they use too much, as idle. No guess turns the direction.
func (m *measurement) replicas(g *groups, u usage, atTarget func(pod string) int64, again func() (usage, error)) (int32, error) {
	current, tolerated := m.scale.Replicas, m.settings.tolerances(m.hpa.Spec.Behavior)
	m.estimate.Ratio = u.ratio
	up := len(g.unready) > 0 && u.ratio > 1
	if !up && len(g.missing) == 0 {
		if tolerated.include(u.ratio) {
			m.estimate.Kept = Tolerated
			return current, nil
		}
		return ceil(u.ratio * float64(g.ready)), nil
	}
	for _, pod := range g.missing {
		switch {
		case u.ratio < 1:
			g.samples[pod] = Sample{Value: atTarget(pod)}
		case u.ratio > 1:
			g.samples[pod] = Sample{}
		}
	}
	if up {
		for _, pod := range g.unready {
			g.samples[pod] = Sample{}
		}
	}
	guessed, err := again()
	if err != nil {
		return 0, err
	}
	m.estimate.Kept = Uncertain
	if tolerated.include(guessed.ratio) || u.ratio < 1 && guessed.ratio > 1 || u.ratio > 1 && guessed.ratio < 1 {
		if tolerated.include(u.ratio) {
			m.estimate.Kept = Tolerated
		}
		return current, nil
	}
	n := ceil(guessed.ratio * float64(len(g.samples)))
	if guessed.ratio < 1 && n > current || guessed.ratio > 1 && n < current {
		return current, nil
	}
	m.estimate.Kept = ""
	return n, nil
}

// utilization compares samples with requests. Samples of pods that have no request here are of other pods.
func utilization(samples map[string]Sample, requests map[string]int64, target int32) (usage, error) {
	var used, requested, n int64
	for pod, s := range samples {
		if request, ok := requests[pod]; ok {
			used, requested, n = used+s.Value, requested+request, n+1
		}
	}
	if requested == 0 {
		return usage{}, errors.New("no metrics returned matched known pods")
	}
	percent := int32(used * 100 / requested)
	return usage{ratio: float64(percent) / float64(target), percent: percent, average: used / n}, nil
}

// plain compares the average of samples with the target.
func plain(samples map[string]Sample, target int64) usage {
	var used int64
	for _, s := range samples {
		used += s.Value
	}
	average := used / int64(len(samples))
	return usage{ratio: float64(average) / float64(target), average: average}
}

// podRequests are the requests of pods, in thousandths: those of one container, or else those of the pod where it has any, or else
// those of its containers that run for as long as the pod.
func podRequests(pods []*corev1.Pod, container string, of corev1.ResourceName) (map[string]int64, error) {
	requests := make(map[string]int64, len(pods))
	for _, pod := range pods {
		var request int64
		var err error
		if container == "" && resource.IsPodLevelRequestsSet(pod) {
			q, ok := resource.PodRequests(pod, resource.PodResourcesOptions{})[of]
			if !ok {
				return nil, fmt.Errorf("missing pod-level request for %s in Pod %s", of, pod.Name)
			}
			request = q.MilliValue()
		} else if request, err = containerRequests(pod, container, of); err != nil {
			return nil, err
		}
		requests[pod.Name] = request
	}
	return requests, nil
}

func containerRequests(pod *corev1.Pod, container string, of corev1.ResourceName) (sum int64, err error) {
	found := false
	add := func(c *corev1.Container) error {
		if container != "" && container != c.Name || found {
			return nil
		}
		q, ok := c.Resources.Requests[of]
		if !ok {
			return fmt.Errorf("missing request for %s in container %s of Pod %s", of, c.Name, pod.Name)
		}
		sum += q.MilliValue()
		found = container != ""
		return nil
	}
	for i := range pod.Spec.Containers {
		if err := add(&pod.Spec.Containers[i]); err != nil {
			return 0, err
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		if err := add(c); err != nil {
			return 0, err
		}
	}
	if container != "" && !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, pod.Name)
	}
	return sum, nil
}
