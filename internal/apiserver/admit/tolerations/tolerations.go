// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package tolerations compares lists of tolerations for several admission plug-ins: [Merge] and [Covers] find redundant
// ones.
package tolerations

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// Merge combines both lists and drops each toleration that another one covers. Of equal ones it keeps the first.
func Merge(first, second []corev1.Toleration) []corev1.Toleration {
	all := append(append([]corev1.Toleration(nil), first...), second...)
	var kept []corev1.Toleration
next:
	for i, t := range all {
		for _, k := range kept {
			if Covers(k, t) {
				continue next
			}
		}
		for _, later := range all[i+1:] {
			if !equality.Semantic.DeepEqual(t, later) && Covers(later, t) {
				continue next
			}
		}
		kept = append(kept, t)
	}
	return kept
}

// Covers reports whether wide tolerates everything that t tolerates.
func Covers(wide, t corev1.Toleration) bool {
	if equality.Semantic.DeepEqual(wide, t) {
		return true
	}
	if t.Key != wide.Key && (wide.Key != "" || wide.Operator != corev1.TolerationOpExists) {
		return false
	}
	if wide.Effect != "" && t.Effect != wide.Effect {
		return false
	}
	if wide.Effect == corev1.TaintEffectNoExecute && wide.TolerationSeconds != nil &&
		(t.TolerationSeconds == nil || *t.TolerationSeconds > *wide.TolerationSeconds) {
		return false
	}
	switch wide.Operator {
	case corev1.TolerationOpEqual, "":
		return t.Operator == corev1.TolerationOpEqual && t.Value == wide.Value
	default:
		return wide.Operator == corev1.TolerationOpExists
	}
}
