// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// indexes is a set of completion indexes as spans: sorted, with a gap of at least one between neighbours. A job may have a thousand million
// indexes, so no operation may cost as much as there are indexes.
type indexes []span

// span is the indexes from first to last, inclusive.
type span struct{ first, last int }

// parseIndexes parses the text form, "0-2,5"; it skips invalid parts and indexes that are not below limit.
func parseIndexes(text string, limit int) indexes {
	if text == "" {
		return nil
	}
	var spans []span
	for part := range strings.SplitSeq(text, ",") {
		from, to, long := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil || first < 0 {
			continue
		}
		last := first
		if long {
			if last, err = strconv.Atoi(to); err != nil {
				continue
			}
		}
		spans = append(spans, span{first, min(last, limit-1)})
	}
	return join(spans)
}

// indexesOf returns the set of some indexes.
func indexesOf(numbers ...int) indexes {
	spans := make([]span, len(numbers))
	for i, n := range numbers {
		spans[i] = span{n, n}
	}
	return join(spans)
}

// join sorts spans and merges those that touch.
func join(spans []span) indexes {
	spans = slices.DeleteFunc(spans, func(s span) bool { return s.last < s.first })
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var set indexes
	for _, s := range spans {
		if n := len(set); n > 0 && s.first <= set[n-1].last+1 {
			set[n-1].last = max(set[n-1].last, s.last)
			continue
		}
		set = append(set, s)
	}
	return set
}

// with returns the union of sets.
func (s indexes) with(others ...indexes) indexes {
	return join(slices.Concat(append([]indexes{s}, others...)...))
}

func (s indexes) has(i int) bool {
	_, found := slices.BinarySearchFunc(s, i, func(x span, i int) int {
		switch {
		case x.last < i:
			return -1
		case x.first > i:
			return 1
		}
		return 0
	})
	return found
}

// total returns the size of the set.
func (s indexes) total() int {
	n := 0
	for _, x := range s {
		n += x.last - x.first + 1
	}
	return n
}

// shared returns the size of the intersection.
func (s indexes) shared(t indexes) int {
	n := 0
	for len(s) > 0 && len(t) > 0 {
		n += max(min(s[0].last, t[0].last)-max(s[0].first, t[0].first)+1, 0)
		if s[0].last < t[0].last {
			s = s[1:]
		} else {
			t = t[1:]
		}
	}
	return n
}

// lacking returns the first n indexes below limit that are not in the set.
func (s indexes) lacking(n, limit int) []int {
	var free []int
	for i := 0; i < limit && len(free) < n; i++ {
		for len(s) > 0 && s[0].last < i {
			s = s[1:]
		}
		if len(s) > 0 && s[0].first <= i {
			i = s[0].last
			continue
		}
		free = append(free, i)
	}
	return free
}

// String returns the text form, with runs of three and more as a span.
func (s indexes) String() string {
	var b strings.Builder
	for _, x := range s {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(x.first))
		switch x.last - x.first {
		case 0:
			continue
		case 1:
			b.WriteByte(',')
		default:
			b.WriteByte('-')
		}
		b.WriteString(strconv.Itoa(x.last))
	}
	return b.String()
}

// completionIndex returns the pod's index; noIndex if it has none.
func completionIndex(pod *corev1.Pod) int {
	i, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || i < 0 {
		return noIndex
	}
	return i
}

// setIndex gives pod its index: annotation, label, host name, and an environment variable in each container.
func setIndex(pod *corev1.Pod, job *batchv1.Job, index int) {
	text := strconv.Itoa(index)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = text
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = text
	pod.Spec.Hostname = job.Name + "-" + text
	suffix := "-" + text + "-"
	pod.GenerateName = job.Name[:min(len(job.Name), maxPrefix-len(suffix))] + suffix
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == indexVariable }) {
				c.Env = append(c.Env, corev1.EnvVar{Name: indexVariable, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
					FieldPath: fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation),
				}}})
			}
		}
	}
}

// setFailures annotates pod with the failures of its index, computed from the annotation of the pod that it replaces.
func setFailures(pod *corev1.Pod, job *batchv1.Job, replaces *corev1.Pod) {
	failures, ignored := 0, 0
	if replaces != nil {
		failures, ignored = failuresOf(replaces), ignoredFailuresOf(replaces)
		if rule(job.Spec.PodFailurePolicy, replaces).ignored {
			ignored++
		} else {
			failures++
		}
	}
	pod.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(failures)
	if ignored > 0 {
		pod.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(ignored)
	}
}

const (
	indexVariable = "JOB_COMPLETION_INDEX"
	maxPrefix     = 58 // of generated names: 63 minus the five random characters
)
