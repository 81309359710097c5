// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package defaultpreemption

import (
	"context"

	fwk "k8s.io/kube-scheduler/framework"
)

// PodGroupPostFilter does nothing: the scheduler has no pod groups (docs/scheduling.md). A configuration may name the plug-in at that
// point.
func (*plugin) PodGroupPostFilter(context.Context, fwk.PodGroupCycleState, fwk.PodGroupInfo,
	fwk.PodGroupSchedulingFunc) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	return nil, fwk.NewStatus(fwk.Unschedulable)
}
