// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"
)

// VictimsKey is the key under which a PostFilter plug-in may write the pods that it evicted into the cycle's state, as [Victims]. The
// decision log reads it.
const VictimsKey framework.StateKey = "PostFilter/victims"

// Victims are preempted pods.
type Victims []*corev1.Pod

// Clone returns the value itself, which is immutable.
func (v Victims) Clone() framework.StateData { return v }
