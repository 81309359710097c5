// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import "k8s.io/kube-scheduler/framework"

// Scaler is a plug-in whose normalisation depends on the scores alone: Scale does the same as its NormalizeScore, without node names.
type Scaler interface{ Scale(scores []int64) }

// Scale scales non-negative scores so that the highest is 100; if all are 0 they stay.
func Scale(scores []int64) {
	top := int64(0)
	for _, s := range scores {
		top = max(top, s)
	}
	if top == 0 {
		return
	}
	for i, s := range scores {
		scores[i] = framework.MaxNodeScore * s / top
	}
}

// ScaleReverse scales non-negative scores so that 0 becomes 100 and the highest 0; if all are 0 all become 100.
func ScaleReverse(scores []int64) {
	top := int64(0)
	for _, s := range scores {
		top = max(top, s)
	}
	for i, s := range scores {
		if top == 0 {
			scores[i] = framework.MaxNodeScore
			continue
		}
		scores[i] = framework.MaxNodeScore - framework.MaxNodeScore*s/top
	}
}

// Normalize implements the NormalizeScore of a [Scaler].
func Normalize(scores framework.NodeScoreList, by Scaler) {
	bare := make([]int64, len(scores))
	for i := range scores {
		bare[i] = scores[i].Score
	}
	by.Scale(bare)
	for i := range scores {
		scores[i].Score = bare[i]
	}
}
