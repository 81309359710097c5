// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package defaultpreemption

import (
	"context"

	fwk "k8s.io/kube-scheduler/framework"
)

// PodGroupPostFilter does nothing: there are no groups of pods (docs/scheduling.md). A configuration may name the plug-in there.
func (*plugin) PodGroupPostFilter(context.Context, fwk.PodGroupCycleState, fwk.PodGroupInfo,
	fwk.PodGroupSchedulingFunc) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	return nil, fwk.NewStatus(fwk.Unschedulable)
}
