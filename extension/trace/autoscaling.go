// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package trace

// ParamAutoscaling, with true, requests the decisions about the HorizontalPodAutoscaler of [ParamNamespace] and [ParamName]. The response
// is an [Autoscaling].
const ParamAutoscaling = "autoscaling"

// Autoscaling is the controller's record of a HorizontalPodAutoscaler: its last decisions.
type Autoscaling struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	UID       string            `json:"uid,omitempty"`
	Decisions []Scaling         `json:"decisions"` // the newest first
	Kept      KeptOfAutoscalers `json:"kept"`
}

// KeptOfAutoscalers is the extent of the recorded decisions.
type KeptOfAutoscalers struct {
	Autoscalers int   `json:"autoscalers"`
	Bytes       int64 `json:"bytes"`
	Bound       int64 `json:"bound"`
}

// Scaling is one decision about an autoscaler: that of the newest of several evaluations in a row with the same result.
type Scaling struct {
	Time string `json:"time"`
	// Since is the time of the first of the evaluations.
	Since       string  `json:"since"`
	Evaluations int     `json:"evaluations"`
	Seconds     float64 `json:"seconds"` // of the newest, with its questions for metrics
	Target      string  `json:"target"`  // KIND/NAME
	// Outcome is one of the words below, Message its explanation.
	Outcome string `json:"outcome"`
	Message string `json:"message,omitempty"`
	// Replicas are those that the scale of the target had.
	Replicas int32 `json:"replicas"`
	// Proposed is what the metrics ask for; nil: they did not decide. Desired is what came of it; nil: there is no decision.
	Proposed *int32          `json:"proposed,omitempty"`
	Desired  *int32          `json:"desired,omitempty"`
	Limits   []ScalingLimit  `json:"limits,omitempty"` // the steps from Proposed to Desired
	Metrics  []ScalingMetric `json:"metrics,omitempty"`
	// MoreMetrics are not recorded.
	MoreMetrics int `json:"moreMetrics,omitempty"`
}

// The outcomes of an evaluation.
const (
	OutcomeScaledUp   = "scaled up"
	OutcomeScaledDown = "scaled down"
	OutcomeKept       = "kept"     // the target has the replicas that it should have
	OutcomeDisabled   = "disabled" // the target has no replicas, and the controller did not take them away
	OutcomeFailed     = "failed"   // too little is known, or the scale could not be read or written
)

// ScalingLimit is a window, policy or bound that changed the number of replicas.
type ScalingLimit struct {
	Reason string `json:"reason"` // of the condition: ScaleDownStabilized, ScaleUpLimit, TooManyReplicas, …
	From   int32  `json:"from"`
	To     int32  `json:"to"`
	// Detail names the window, the policy or the bound.
	Detail string `json:"detail"`
}

// ScalingMetric is what one metric of the spec came to.
type ScalingMetric struct {
	Type string `json:"type"` // as in the spec
	Name string `json:"name"`
	// Path is where the metric was read: the API, the namespace, the object. Service is what serves that path at the time of the request
	// for this record; empty: this server itself if BuiltIn, else nothing.
	Path    string  `json:"path,omitempty"`
	Service string  `json:"service,omitempty"`
	BuiltIn bool    `json:"builtIn,omitempty"`
	Seconds float64 `json:"seconds"` // the time that reading took
	Value   string  `json:"value,omitempty"`
	Target  string  `json:"target,omitempty"`
	// AgeSeconds is the age of the first sample when the evaluation began.
	AgeSeconds *float64 `json:"ageSeconds,omitempty"`
	Ratio      *float64 `json:"ratio,omitempty"`
	Proposed   *int32   `json:"proposed,omitempty"`
	// Kept is why the metric asks for the replicas that there are although the ratio is not 1.
	Kept string `json:"kept,omitempty"`
	// Pods are the pods by what their samples are worth, where the metric is of pods.
	Pods  *ScalingPods `json:"pods,omitempty"`
	Error string       `json:"error,omitempty"`
}

// ScalingPods are the pods of a target.
type ScalingPods struct {
	Ready   int `json:"ready"`             // with a sample that counts
	Unready int `json:"unready,omitempty"` // with samples that do not count yet
	Missing int `json:"missing,omitempty"` // without a sample
	Ignored int `json:"ignored,omitempty"` // being deleted, or failed
}
