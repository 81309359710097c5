// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package trace

// ParamScheduling, with true, requests the scheduler's decisions about the pod of [ParamNamespace] and [ParamName]. The
// response is a [Scheduling].
const ParamScheduling = "scheduling"

// Scheduling is the scheduler's knowledge of a pod: where it is now, and the last decisions about it.
type Scheduling struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	// Place is where the pod is now; nil where no scheduler of this server has it.
	Place     *Place     `json:"place,omitempty"`
	Decisions []Decided  `json:"decisions"` // the newest first
	Note      string     `json:"note,omitempty"`
	Kept      KeptOfPods `json:"kept"`
}

// KeptOfPods is the extent of the recorded decisions.
type KeptOfPods struct {
	Pods  int   `json:"pods"`
	Bytes int64 `json:"bytes"`
	Bound int64 `json:"bound"`
}

// Place is where a pod is on its way.
type Place struct {
	// Where is one of the words below.
	Where string `json:"where"`
	// Since is when it came there, Until when it is taken from there if nothing happens before.
	Since string `json:"since,omitempty"`
	Until string `json:"until,omitempty"`
	// Plugins hold it there: they rejected it, gate it, or have it wait.
	Plugins   []string `json:"plugins,omitempty"`
	Attempts  int      `json:"attempts,omitempty"`
	Nominated string   `json:"nominatedNode,omitempty"`
	Node      string   `json:"node,omitempty"`
}

// The places of a pod.
const (
	PlaceActive        = "active"        // to be tried next
	PlaceBackoff       = "backoff"       // waits some time after a rejection
	PlaceErrorBackoff  = "error backoff" // waits some time after an attempt that failed for no fault of its own
	PlaceUnschedulable = "unschedulable" // waits for an event that may help it
	PlaceGated         = "gated"         // a plug-in does not let it be tried
	PlaceTried         = "being tried"
	PlacePermit        = "waiting on permit"
	PlaceBinding       = "binding"
	PlaceBound         = "bound"
)

// Decided is one attempt to schedule a pod.
type Decided struct {
	Time    string  `json:"time"`
	Cycle   uint64  `json:"cycle"` // counts this scheduler's attempts
	Attempt int     `json:"attempt"`
	Profile string  `json:"profile"`
	Seconds float64 `json:"seconds"`
	// Outcome is one of the words below, Message its explanation.
	Outcome string `json:"outcome"`
	Message string `json:"message,omitempty"`
	// Nodes there were, so many were asked about, so many of these feasible: the search ends when enough are.
	Nodes    int        `json:"nodes"`
	Asked    int        `json:"asked"`
	Feasible int        `json:"feasible"`
	Filtered []Filtered `json:"filtered,omitempty"`
	// Scores are of the best few nodes, the best first. There are none where one node alone was feasible.
	Scores    []NodeScore `json:"scores,omitempty"`
	Node      string      `json:"node,omitempty"` // chosen
	Nominated string      `json:"nominatedNode,omitempty"`
	Victims   []Victim    `json:"victims,omitempty"`
	// MoreVictims are not named.
	MoreVictims int `json:"moreVictims,omitempty"`
}

// The outcomes of an attempt.
const (
	OutcomeBinding       = "binding" // a node is chosen, and the pod on its way to it
	OutcomeBound         = "bound"
	OutcomeUnschedulable = "unschedulable"
	OutcomeError         = "error"
)

// Filtered is nodes that one plug-in left out for one reason.
type Filtered struct {
	Plugin string   `json:"plugin,omitempty"`
	Reason string   `json:"reason"`
	Count  int      `json:"count"`
	Nodes  []string `json:"nodes,omitempty"` // the first few
}

// NodeScore is one node's scores.
type NodeScore struct {
	Node    string        `json:"node"`
	Total   int64         `json:"total"`
	Plugins []PluginScore `json:"plugins"`
}

// PluginScore is one plug-in's: as it gave it, and normalised and weighted. Extenders have one together.
type PluginScore struct {
	Plugin   string `json:"plugin"`
	Raw      int64  `json:"raw"`
	Weighted int64  `json:"weighted"`
}

// Victim is a pod that had to go.
type Victim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}
