// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// FaultKind is what goes wrong.
type FaultKind string

// The kinds of faults. Those up to WebhookDead count writes, the others watches.
const (
	Drop        FaultKind = "Drop"        // the request is lost: the client gets an error, the server nothing
	LoseAnswer  FaultKind = "LoseAnswer"  // the server does what the request says, and the client gets an error
	Delay       FaultKind = "Delay"       // the request waits for Fault.Delay
	DelayAnswer FaultKind = "DelayAnswer" // the server does what the request says, and the answer waits for Fault.Delay
	Duplicate   FaultKind = "Duplicate"   // the request arrives twice; the client gets the second answer
	Conflict    FaultKind = "Conflict"    // 409: an update or a patch finds a newer object; it counts updates and patches alone
	TooMany     FaultKind = "TooMany"     // 429 with Retry-After: 1
	WebhookDead FaultKind = "WebhookDead" // 500: an admission webhook could not be called
	CrashBefore FaultKind = "CrashBefore" // the controller restarts instead of the write
	CrashAfter  FaultKind = "CrashAfter"  // the controller restarts after the write, before it gets the answer
	EndWatch    FaultKind = "EndWatch"    // the watch ends after Fault.Delay
	Gone        FaultKind = "Gone"        // the watch ends after Fault.Delay, and the next one of the resource gets 410: the client lists anew
	LagWatch    FaultKind = "LagWatch"    // the watch's events are late by Fault.Delay
)

// kinds are all kinds of faults.
var kinds = []FaultKind{
	Drop, LoseAnswer, Delay, DelayAnswer, Duplicate, Conflict, TooMany, WebhookDead, CrashBefore, CrashAfter, EndWatch, Gone, LagWatch,
}

// Fault makes one request of a client fail, once. At is the number of the request among those that Kind counts; the first is 1.
type Fault struct {
	Kind     FaultKind
	At       int
	Resource string        // counts only requests for this resource, such as "configmaps"; empty: for all
	Delay    time.Duration // of the kinds with a delay
}

// String returns the fault as a Go literal.
func (f Fault) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "{Kind: embedtest.%s, At: %d", f.Kind, f.At)
	if f.Resource != "" {
		fmt.Fprintf(&b, ", Resource: %q", f.Resource)
	}
	if f.Delay > 0 {
		fmt.Fprintf(&b, ", Delay: %d * time.Millisecond", f.Delay.Milliseconds())
	}
	return b.String() + "}"
}

// delayed reports whether a kind has a delay.
func (k FaultKind) delayed() bool {
	return k == Delay || k == DelayAnswer || k == EndWatch || k == Gone || k == LagWatch
}

// watches reports whether a kind counts watches.
func (k FaultKind) watches() bool { return k == EndWatch || k == Gone || k == LagWatch }

// WithFaults returns a configuration of clients for which the faults go wrong. All clients of the configuration count together. Crashes
// drop the write, or lose its answer, and restart nothing: [Explore] restarts controllers.
func WithFaults(config *rest.Config, faults ...Fault) *rest.Config {
	config = rest.CopyConfig(config)
	i := newInjector(faults)
	config.Wrap(i.client(nil))
	return config
}
