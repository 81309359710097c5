// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import "k8s.io/kube-scheduler/framework"

// Normalize scales non-negative scores so that the highest is 100; if all are 0 they stay.
func Normalize(scores framework.NodeScoreList) {
	top := highest(scores)
	if top == 0 {
		return
	}
	for i := range scores {
		scores[i].Score = framework.MaxNodeScore * scores[i].Score / top
	}
}

// NormalizeReverse scales non-negative scores so that 0 becomes 100 and the highest 0; if all are 0 all become 100.
func NormalizeReverse(scores framework.NodeScoreList) {
	top := highest(scores)
	for i := range scores {
		if top == 0 {
			scores[i].Score = framework.MaxNodeScore
			continue
		}
		scores[i].Score = framework.MaxNodeScore - framework.MaxNodeScore*scores[i].Score/top
	}
}

func highest(scores framework.NodeScoreList) (top int64) {
	for i := range scores {
		top = max(top, scores[i].Score)
	}
	return top
}
