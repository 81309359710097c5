// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package workload is what the controllers that own pods have in common: reading a pod's state (pod.go), choosing which
// pods go first (rank.go), taking hold of children that match and letting go of those that no longer do (claim.go),
// remembering writes that the cache does not show yet (expect.go), hearing of pods (podevents.go), keeping former templates (revision.go), and the writes
// themselves (control.go).
//
// The first two are pure. [Expectations] are safe for concurrent use; the rest is called by one worker per owner.
package workload
