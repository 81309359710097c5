// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// indexes is a set of completion indexes.
type indexes map[int]bool

// parseIndexes reads the text form, "0-2,5"; what cannot be read, and what is not below limit, is left out.
func parseIndexes(text string, limit int) indexes {
	set := indexes{}
	if text == "" {
		return set
	}
	for _, part := range strings.Split(text, ",") {
		from, to, span := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil || first < 0 {
			continue
		}
		last := first
		if span {
			if last, err = strconv.Atoi(to); err != nil {
				continue
			}
		}
		for i := first; i <= min(last, limit-1); i++ {
			set[i] = true
		}
	}
	return set
}

// String writes the text form: runs of three and more as a span.
func (s indexes) String() string {
	sorted := slices.Sorted(maps.Keys(s))
	var parts []string
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		switch j - i {
		case 0:
			parts = append(parts, strconv.Itoa(sorted[i]))
		case 1:
			parts = append(parts, strconv.Itoa(sorted[i]), strconv.Itoa(sorted[j]))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", sorted[i], sorted[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// completionIndex is the pod's index; noIndex when it has none.
func completionIndex(pod *corev1.Pod) int {
	i, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || i < 0 {
		return noIndex
	}
	return i
}

// setIndex makes pod the one of an index: annotation, label, host name, and an environment variable in each container.
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

const (
	indexVariable = "JOB_COMPLETION_INDEX"
	maxPrefix     = 58 // of generated names: 63 less the five random characters
)
