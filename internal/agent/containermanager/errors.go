// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containermanager

import (
	"errors"
	"fmt"
	"time"
)

// Reasons of rejections, as kubelet has them.
const (
	UnexpectedAdmissionError = "UnexpectedAdmissionError"
	TopologyAffinityError    = "TopologyAffinityError"
)

// Rejection is a final refusal of a pod, with the reason and the message of its status.
type Rejection struct{ Reason, Message string }

// Error returns the message.
func (r *Rejection) Error() string { return r.Message }

// Hold means that a pod has to wait for a plug-in that was there before the node or the machine restarted. The manager that returns it
// wakes the pod when the plug-in is back, and rejects the pod or fails its container once Until has passed.
type Hold struct {
	Plugin  string // its name: a device plug-in's resource, a driver; empty: the pod waits for something else, without a condition
	Message string
	Until   time.Time
}

// Error returns the message.
func (h *Hold) Error() string { return h.Message }

// admissionError returns the error of an admission: a *Rejection or a *Hold.
func admissionError(err error) error {
	if hold := (*Hold)(nil); errors.As(err, &hold) {
		return hold
	}
	if reject := (*Rejection)(nil); errors.As(err, &reject) {
		return reject
	}
	return &Rejection{UnexpectedAdmissionError, fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)} // upstream's words
}

// topologyAffinity is the rejection of a pod whose resources cannot be aligned. The words are upstream's.
func topologyAffinity(scope string, wholePod bool) error {
	message := "Resources cannot be allocated with Topology locality"
	switch {
	case wholePod && scope == PodScope:
		message = "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"
	case wholePod:
		message = "Pod Scope pod with pod-level resources failed admission with a container-level topology manager"
	}
	return &Rejection{TopologyAffinityError, message}
}
