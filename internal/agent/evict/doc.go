// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package evict decides which pods a node evicts when memory, disk or process IDs run short, as kubelet does.
//
// It is pure: [Manager.Next] takes the measurements ([Observation], by signal), the pods with their usage, and the time. It returns the
// node's conditions, the resources to reclaim before pods are evicted, and the pods to evict, with the messages for their statuses. A
// Manager remembers since when a threshold has been met (soft thresholds have a grace period) and when a condition was last observed
// (conditions persist for a while, so that they do not flap).
//
// A worked example, with the hard threshold memory.available 100Mi and a transition period of five minutes:
//
//	time   available   condition   done
//	0      500Mi       no          nothing
//	10 s   90Mi        yes         the pod that is farthest above its request of memory is ended
//	20 s   300Mi       yes         nothing
//	5 min  300Mi       yes         nothing
//	6 min  300Mi       no          nothing
package evict
