// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"
)

// VictimsKey is under which a PostFilter plug-in may write, into the cycle's state, the pods that it ended to make room: a
// [Victims]. Who explains the decision reads it.
const VictimsKey framework.StateKey = "PostFilter/victims"

// Victims are pods that had to go.
type Victims []*corev1.Pod

// Clone returns the value itself, which is immutable.
func (v Victims) Clone() framework.StateData { return v }
