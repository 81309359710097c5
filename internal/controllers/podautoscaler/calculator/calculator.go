// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package calculator decides how many replicas the target of a HorizontalPodAutoscaler should have. It does no I/O and looks at no
// clock: the controller reads the scale, the pods and the metrics, and the calculator answers with the status of the autoscaler, with
// events, and with whether to write the scale.
//
// A [Decision] is made in steps, one for each thing that the controller has read:
//
//	d := calculator.Begin(hpa, settings, history, now)
//	d.Found(scale)                    // or d.NotFound(err)
//	if d.NeedsMetrics() {
//		selector, ok := d.Selector() // of the pods
//		d.Decide(pods, responses)      // or d.Ambiguous(autoscalers)
//	}
//	if d.Rescale {
//		d.Rescaled(err)
//	}
//	// d.Status(), d.Events, d.Err
//
// The arithmetic, and the words of conditions and events, are those of kube-controller-manager 1.37. The differences are where its
// results are not defined: a proposal beyond int32 counts as the greatest int32, and the average over no pods is the sum.
//
// A History belongs to one autoscaler and lives as long as the process, as upstream's does. Nothing here is safe for concurrent use.
package calculator

import (
	"errors"
	"fmt"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Settings are those of the controller.
type Settings struct {
	Tolerance               float64       // of the ratio of usage to target, up and down
	DownscaleStabilization  time.Duration // for which a higher recommendation holds
	CPUInitializationPeriod time.Duration // after a pod's start, in which its CPU samples may be skipped
	InitialReadinessDelay   time.Duration // after a pod's start, in which a change of its readiness counts as the first
}

// Scale is what the scale subresource of the target says.
type Scale struct {
	Replicas, StatusReplicas int32
	Selector                 string
}

// Event is an event about the autoscaler.
type Event struct {
	Type, Reason, Message string
}

// Estimate is how many replicas one metric asks for, and why.
type Estimate struct {
	Replicas int32
	Metric   string // its description
	Err      error

	Ratio float64 // of the value to the target; 0 with an error
	Kept  Kept    // why the metric asks for the replicas that there are
	// The pods by what their samples are worth, where the metric is of pods.
	Ready, Unready, Missing, Ignored int
}

// Kept is why a metric whose ratio is not 1 asks for the replicas that there are.
type Kept string

// The reasons.
const (
	Tolerated Kept = "the ratio is within the tolerance"
	Uncertain Kept = "pods without samples or not ready yet, if they use what makes the change smallest, reverse or undo it"
)

// Limit is a step from what the metrics ask for to the replicas that the target should have.
type Limit struct {
	Reason   string // of the condition: ScaleDownStabilized, ScaleUpLimit, TooManyReplicas, …
	From, To int32
	At       time.Time                       // of the earlier recommendation that holds; zero: none does
	Policy   *autoscalingv2.HPAScalingPolicy // nil: none limits
}

// ErrSpec is the class of errors that a change of the autoscaler's spec has to mend.
var ErrSpec = errors.New("")

// Decision is one evaluation of an autoscaler.
type Decision struct {
	Desired   int32      // how many replicas the target should have
	Rescale   bool       // the scale has to be written: it is not Desired
	Made      bool       // the target has, or keeps, the replicas that it should have
	Events    []Event    // in their order
	Estimates []Estimate // of the metrics, in their order
	Reason    string     // why the scale is written
	Proposed  int32      // what the metrics ask for, where there are Estimates and no failure
	Limits    []Limit    // why Desired is not Proposed, in their order
	Err       error      // why the decision is not made, or is made without some metrics

	settings     Settings
	history      *History
	now          time.Time
	hpa          *autoscalingv2.HorizontalPodAutoscaler
	scale        Scale
	minimum      int32
	measure      bool // the metrics decide
	scaledToZero bool // by the controller itself
	statuses     []autoscalingv2.MetricStatus
	policy       *autoscalingv2.HPAScalingPolicy // the one that limits the change; nil: none does
}

// Begin begins the evaluation of an autoscaler, which stays as it is.
func Begin(hpa *autoscalingv2.HorizontalPodAutoscaler, settings Settings, history *History, now time.Time) *Decision {
	d := &Decision{hpa: hpa.DeepCopy(), settings: settings, history: history, now: now, minimum: 1}
	if hpa.Spec.MinReplicas != nil {
		d.minimum = *hpa.Spec.MinReplicas
	}
	return d
}

// Status is the status that the autoscaler should have.
func (d *Decision) Status() *autoscalingv2.HorizontalPodAutoscalerStatus { return &d.hpa.Status }

// target is how errors name the target.
func target(hpa *autoscalingv2.HorizontalPodAutoscaler) string {
	return fmt.Sprintf("%s/%s/%s", hpa.Spec.ScaleTargetRef.Kind, hpa.Namespace, hpa.Spec.ScaleTargetRef.Name)
}

// InvalidTarget ends the decision: the reference to the target has no valid API version.
func (d *Decision) InvalidTarget(err error) {
	d.noScale(err)
	d.Err = fmt.Errorf("invalid API version in scale target reference: %v%w", err, ErrSpec)
}

// UnknownTarget ends the decision: the target's kind has no resource.
func (d *Decision) UnknownTarget(err error) {
	d.noScale(err)
	d.Err = fmt.Errorf("unable to determine resource for scale target reference: %w", err)
}

// NotFound ends the decision: the scale could not be read.
func (d *Decision) NotFound(err error) {
	d.noScale(err)
	d.Err = fmt.Errorf("failed to query scale subresource for %s: %w", target(d.hpa), err) // upstream's words
}

func (d *Decision) noScale(err error) {
	d.warn("FailedGetScale", err.Error())
	d.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale",
		fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", err))
}

// Found takes the scale of the target. It decides at once when the replicas are out of bounds or autoscaling is disabled.
func (d *Decision) Found(scale Scale) {
	d.scale = scale
	d.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale",
		"the HPA controller was able to get the target's current scale")
	d.history.begin(scale.Replicas, d.now)
	d.scaledToZero = wasScaledToZero(d.hpa)
	switch {
	case scale.Replicas == 0:
		if d.scaledToZero && (d.minimum != 0 || measuresOthers(d.hpa)) {
			d.measure = true
			return
		}
		d.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled",
			"scaling is disabled since the replica count of the target is zero")
		d.settle()
	case scale.Replicas > d.hpa.Spec.MaxReplicas:
		d.Desired, d.Rescale, d.Reason = d.hpa.Spec.MaxReplicas, true, "Current number of replicas above Spec.MaxReplicas"
	case scale.Replicas < d.minimum:
		d.Desired, d.Rescale, d.Reason = d.minimum, true, belowMinimum
	default:
		d.measure = true
	}
}

// belowMinimum is the reason of a rescale.
const belowMinimum = "Current number of replicas below Spec.MinReplicas"

// NeedsMetrics reports whether the metrics have to be read.
func (d *Decision) NeedsMetrics() bool { return d.measure }

// Selector selects the pods of the target. It is not ok where the decision ends because the scale has none, or an invalid one.
func (d *Decision) Selector() (selector labels.Selector, ok bool) {
	if d.scale.Selector == "" {
		const lacks = "selector is required"
		d.warn("SelectorRequired", lacks)
		d.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "InvalidSelector", "the HPA target's scale is missing a selector")
		d.fail(errors.New(lacks))
		return nil, false
	}
	selector, err := labels.Parse(d.scale.Selector)
	if err != nil {
		invalid := fmt.Sprintf("couldn't convert selector into a corresponding internal selector object: %v", err)
		d.warn("InvalidSelector", invalid)
		d.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "InvalidSelector", invalid)
		d.fail(errors.New(invalid))
		return nil, false
	}
	return selector, true
}

// Autoscaler is the name of one, printed as upstream prints it.
type Autoscaler struct {
	Name, Namespace string
}

// Ambiguous ends the decision: these autoscalers control pods of the target.
func (d *Decision) Ambiguous(autoscalers []Autoscaler) {
	several := fmt.Sprintf("pods by selector %v are controlled by more than one HPA (e.g. %v)", d.scale.Selector, autoscalers)
	d.warn("AmbiguousSelector", several)
	d.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "AmbiguousSelector", several)
	d.fail(errors.New(several))
}

// Deleted ends the decision: the autoscaler has gone meanwhile.
func (d *Decision) Deleted() {
	d.fail(fmt.Errorf("HPA %s/%s was deleted during reconciliation", d.hpa.Namespace, d.hpa.Name))
}

// Decide takes the pods of the target and what was read for each metric of the spec, and decides.
func (d *Decision) Decide(pods []*corev1.Pod, responses []Response) {
	proposed, metric, err := d.propose(pods, responses)
	if err != nil && proposed < 0 {
		d.fail(err)
		return
	}
	d.Err = err // some metrics could be read
	current, desired := d.scale.Replicas, max(proposed, 0)
	d.Proposed = desired
	switch {
	case desired > current:
		d.Reason = metric + " above target"
	case desired < current:
		d.Reason = "All metrics below target"
	}
	if d.hpa.Spec.Behavior == nil {
		desired = d.limit(desired)
	} else {
		desired = d.limitWithBehavior(desired)
	}
	if current == 0 && d.minimum != 0 && d.scaledToZero && desired < d.minimum {
		d.Limits = append(d.Limits, Limit{Reason: tooFew, From: desired, To: d.minimum})
		desired = d.minimum
		if d.Reason == "" {
			d.Reason = belowMinimum
		}
	}
	if desired == current {
		d.settle()
		return
	}
	d.Desired, d.Rescale = desired, true
}

// propose is the greatest proposal of the metrics, and its metric; -1 when too little is known.
func (d *Decision) propose(pods []*corev1.Pod, responses []Response) (replicas int32, metric string, err error) {
	specs := d.hpa.Spec.Metrics
	d.statuses = make([]autoscalingv2.MetricStatus, len(specs))
	d.Estimates = make([]Estimate, len(specs))
	invalid, reason := 0, autoscalingv2.HorizontalPodAutoscalerCondition{}
	for i := range specs {
		p := &d.Estimates[i]
		m := measurement{Decision: d, spec: &specs[i], pods: pods, response: responses[i], status: &d.statuses[i], estimate: p}
		m.propose()
		if p.Err != nil {
			if invalid == 0 {
				reason, err = m.failure, p.Err
			}
			invalid++
			continue
		}
		if replicas == 0 || p.Replicas > replicas {
			replicas, metric = p.Replicas, p.Metric
		}
	}
	if err != nil {
		err = fmt.Errorf("invalid metrics (%v invalid out of %v), first error is: %w", invalid, len(specs), err)
	}
	// One metric that is not known may ask for more than the others.
	if invalid >= len(specs) || invalid > 0 && replicas < d.scale.Replicas {
		d.condition(reason.Type, reason.Status, reason.Reason, reason.Message)
		return -1, "", err
	}
	d.condition(autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound",
		"the HPA was able to successfully calculate a replica count from "+metric)
	return replicas, metric, err
}

// Rescaled takes the result of writing the scale, and ends the decision.
func (d *Decision) Rescaled(err error) {
	if err != nil {
		d.warn("FailedRescale", fmt.Sprintf("New size: %d; reason: %s; error: %v", d.Desired, d.Reason, err))
		d.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedUpdateScale",
			fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err))
		d.Rescale = false
		d.setStatus(d.hpa.Status.DesiredReplicas)
		d.Err = fmt.Errorf("failed to rescale %s: %w", target(d.hpa), err) // upstream's words
		return
	}
	current := d.scale.Replicas
	d.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale",
		fmt.Sprintf("the HPA controller was able to update the target scale to %d", d.Desired))
	d.Events = append(d.Events, Event{corev1.EventTypeNormal, "SuccessfulRescale",
		fmt.Sprintf("New size: %d; reason: %s", d.Desired, d.Reason)})
	d.history.rescaled(d.hpa.Spec.Behavior, current, d.Desired, d.now)
	if current > 0 && d.Desired == 0 && d.minimum == 0 && measuresOthers(d.hpa) {
		d.condition(autoscalingv2.ScaledToZero, corev1.ConditionTrue, "ScaledToZero", "the HPA controller scaled the workload to zero")
	} else {
		d.condition(autoscalingv2.ScaledToZero, corev1.ConditionFalse, "NotScaledToZero",
			"the HPA controller did not scale the workload to zero")
	}
	d.setStatus(d.Desired)
	d.Made = true
	d.hpa.Status.LastScaleTime = &metav1.Time{Time: d.now}
}

// settle ends the decision: the target keeps its replicas.
func (d *Decision) settle() {
	d.Desired, d.Made = d.scale.Replicas, true
	d.setStatus(d.Desired)
}

// fail ends the decision: the metrics could not decide.
func (d *Decision) fail(err error) {
	d.setStatus(d.hpa.Status.DesiredReplicas)
	d.warn("FailedComputeMetricsReplicas", err.Error())
	d.Err = fmt.Errorf("failed to compute desired number of replicas based on listed metrics for %s: %w", // upstream's words
		target(d.hpa), err)
}

func (d *Decision) setStatus(desired int32) {
	s := &d.hpa.Status
	*s = autoscalingv2.HorizontalPodAutoscalerStatus{
		ObservedGeneration: &d.hpa.Generation, LastScaleTime: s.LastScaleTime, CurrentReplicas: d.scale.Replicas,
		DesiredReplicas: desired, CurrentMetrics: d.statuses, Conditions: s.Conditions,
	}
}

// measuresOthers reports whether a metric of the spec is of something else than the target's own pods, so that there is one without pods.
func measuresOthers(hpa *autoscalingv2.HorizontalPodAutoscaler) bool {
	for _, m := range hpa.Spec.Metrics {
		if m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType {
			return true
		}
	}
	return false
}

func (d *Decision) warn(reason, message string) {
	d.Events = append(d.Events, Event{corev1.EventTypeWarning, reason, message})
}

// wasScaledToZero reports whether the controller took the last replicas away.
func wasScaledToZero(hpa *autoscalingv2.HorizontalPodAutoscaler) bool {
	for _, c := range hpa.Status.Conditions {
		if c.Type == autoscalingv2.ScaledToZero {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// condition sets a condition. A condition that goes there and back in one decision has changed.
func (d *Decision) condition(kind autoscalingv2.HorizontalPodAutoscalerConditionType, status corev1.ConditionStatus,
	reason, message string) {
	all := d.hpa.Status.Conditions
	i := 0
	for i < len(all) && all[i].Type != kind {
		i++
	}
	if i == len(all) {
		all = append(all, autoscalingv2.HorizontalPodAutoscalerCondition{Type: kind})
		d.hpa.Status.Conditions = all
	}
	if all[i].Status != status {
		all[i].LastTransitionTime = metav1.NewTime(d.now)
	}
	all[i].Status, all[i].Reason, all[i].Message = status, reason, message
}
