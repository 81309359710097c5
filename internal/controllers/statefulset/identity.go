// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// ordinal parses a pod's name, SET-ORDINAL; n is -1 if the name has another form.
func ordinal(pod *corev1.Pod) (set string, n int) {
	i := strings.LastIndexByte(pod.Name, '-')
	if i < 0 || i+1 == len(pod.Name) || strings.Trim(pod.Name[i+1:], "0123456789") != "" {
		return "", -1
	}
	v, err := strconv.ParseInt(pod.Name[i+1:], 10, 32)
	if err != nil {
		return pod.Name[:i], -1
	}
	return pod.Name[:i], int(v)
}

func member(set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	parent, _ := ordinal(pod)
	return parent == set.Name
}

func first(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals != nil {
		return int(set.Spec.Ordinals.Start)
	}
	return 0
}

// within reports whether the set should now have the pod's ordinal.
func within(set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	_, n := ordinal(pod)
	return n >= first(set) && n < first(set)+replicas(set)
}

func replicas(set *appsv1.StatefulSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

// newPod returns the pod for an ordinal, from the template of a revision.
func newPod(set *appsv1.StatefulSet, template *corev1.PodTemplateSpec, revision string, n int) *corev1.Pod {
	pod := workload.PodFromTemplate(template, set, metav1.NewControllerRef(set, kind))
	pod.GenerateName, pod.Name = "", fmt.Sprintf("%s-%d", set.Name, n)
	name(set, pod, n)
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, set.Spec.ServiceName
	mount(set, pod)
	pod.Labels[appsv1.StatefulSetRevisionLabel] = revision
	return pod
}

// name sets a pod's identity.
func name(set *appsv1.StatefulSet, pod *corev1.Pod, n int) {
	pod.Namespace = set.Namespace
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.StatefulSetPodNameLabel] = pod.Name
	pod.Labels[appsv1.PodIndexLabel] = strconv.Itoa(n)
}

// named and mounted report whether a pod is as name and mount leave it.
func named(pod *corev1.Pod) bool { return pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name }

func mounted(set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	have := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			have[v.Name] = v.PersistentVolumeClaim.ClaimName
		}
	}
	for _, claim := range claims(set, pod) {
		if have[claim.template] != claim.object.Name {
			return false
		}
	}
	return true
}

// claim is a pod's claim from a template of its set.
type claim struct {
	template string
	object   *corev1.PersistentVolumeClaim
}

// claims returns the claims of a pod, as the controller creates them.
func claims(set *appsv1.StatefulSet, pod *corev1.Pod) []claim {
	_, n := ordinal(pod)
	all := make([]claim, 0, len(set.Spec.VolumeClaimTemplates))
	for i := range set.Spec.VolumeClaimTemplates {
		t := &set.Spec.VolumeClaimTemplates[i]
		c := t.DeepCopy()
		c.Name, c.Namespace = fmt.Sprintf("%s-%s-%d", t.Name, set.Name, n), set.Namespace
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		maps.Copy(c.Labels, set.Spec.Selector.MatchLabels)
		all = append(all, claim{t.Name, c})
	}
	return all
}

// mount adds the claims' volumes before the pod's others, replacing those of the same names.
func mount(set *appsv1.StatefulSet, pod *corev1.Pod) {
	ours := map[string]bool{}
	var volumes []corev1.Volume
	for _, c := range claims(set, pod) {
		ours[c.template] = true
		volumes = append(volumes, corev1.Volume{Name: c.template, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.object.Name},
		}})
	}
	for _, v := range pod.Spec.Volumes {
		if !ours[v.Name] {
			volumes = append(volumes, v)
		}
	}
	pod.Spec.Volumes = volumes
}
