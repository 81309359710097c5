// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package workload has the common parts of the controllers that own pods: reading a pod's state (pod.go), ranking pods for
// deletion (rank.go), adopting and releasing children (claim.go), expectations of writes that the cache does not show yet
// (expect.go), events of pods (podevents.go), controller revisions (revision.go), and the writes themselves (control.go).
//
// The first two are pure. [Expectations] are safe for concurrent use; the rest is called by one worker per owner.
package workload
