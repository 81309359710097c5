// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package calculator

import (
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

// History is what an autoscaler recommended and did, as far back as its windows and policies look. The zero value is one that has
// just begun.
type History struct {
	recommendations []recommendation
	ups, downs      []change
}

// recommendation is what the metrics asked for at a time.
type recommendation struct {
	replicas int32
	at       time.Time
}

// change is how many replicas a rescale added or removed.
type change struct {
	replicas int32
	at       time.Time
	outdated bool // its place may be taken
}

// begin makes the replicas that the autoscaler finds first its first recommendation.
func (h *History) begin(replicas int32, now time.Time) {
	if h.recommendations == nil {
		h.recommendations = []recommendation{{replicas, now}}
	}
}

// recommend records what the metrics ask for. It takes the place of the last recommendation that no window reaches any more.
func (h *History) recommend(replicas int32, now time.Time, outdated func(time.Time) bool) {
	for i := len(h.recommendations) - 1; i >= 0; i-- {
		if outdated(h.recommendations[i].at) {
			h.recommendations[i] = recommendation{replicas, now}
			return
		}
	}
	h.recommendations = append(h.recommendations, recommendation{replicas, now})
}

// rescaled records a rescale. Without policies nothing looks at it.
func (h *History) rescaled(b *autoscalingv2.HorizontalPodAutoscalerBehavior, before, after int32, now time.Time) {
	if b == nil {
		return
	}
	changes, rules, n := &h.downs, b.ScaleDown, before-after
	if after > before {
		changes, rules, n = &h.ups, b.ScaleUp, -n
	}
	var longest int32
	if rules != nil {
		for _, p := range rules.Policies {
			longest = max(longest, p.PeriodSeconds)
		}
	}
	cutoff, place := now.Add(-seconds(longest)), -1
	for i := range *changes {
		c := &(*changes)[i]
		if c.outdated = c.outdated || c.at.Before(cutoff); c.outdated {
			place = i
		}
	}
	if place < 0 {
		place = len(*changes)
		*changes = append(*changes, change{})
	}
	(*changes)[place] = change{replicas: n, at: now}
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// within counts the replicas that changes of the last seconds added or removed.
func within(changes []change, last int32, now time.Time) (sum int32) {
	cutoff := now.Add(-seconds(last))
	for _, c := range changes {
		if c.at.After(cutoff) {
			sum += c.replicas
		}
	}
	return sum
}

const (
	ready        = "ReadyForNewScale"
	readyMessage = "recommended size matches current size"

	downStabilized = "ScaleDownStabilized"

	inRange        = "DesiredWithinRange"
	inRangeMessage = "the desired count is within the acceptable range"
)

// limited reports whether the replicas are limited, and why.
func (d *Decision) limited(recommended, desired int32, reason, message string) int32 {
	status := corev1.ConditionTrue
	if desired == recommended {
		status = corev1.ConditionFalse
	} else {
		d.Limits = append(d.Limits, Limit{Reason: reason, From: recommended, To: desired})
		if reason == upLimit || reason == downLimit {
			d.Limits[len(d.Limits)-1].Policy = d.policy
		}
	}
	d.condition(autoscalingv2.ScalingLimited, status, reason, message)
	return desired
}

// limit stabilizes and limits a recommendation of an autoscaler without behavior.
func (d *Decision) limit(recommended int32) int32 {
	stable, cutoff, held := recommended, d.now.Add(-d.settings.DownscaleStabilization), time.Time{}
	for _, r := range d.history.recommendations {
		if !r.at.Before(cutoff) && r.replicas > stable {
			stable, held = r.replicas, r.at
		}
	}
	d.history.recommend(recommended, d.now, func(at time.Time) bool { return at.Before(cutoff) })
	if stable != recommended {
		d.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, downStabilized,
			"recent recommendations were higher than current one, applying the highest recent recommendation")
		d.Limits = append(d.Limits, Limit{Reason: downStabilized, From: recommended, To: stable, At: held})
	} else {
		d.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, ready, readyMessage)
	}
	most, reason, message := d.hpa.Spec.MaxReplicas, tooMany, tooManyMessage
	if fast := max(ceil(2*float64(d.scale.Replicas)), 4); most > fast {
		most, reason, message = fast, upLimit, upLimitMessage
	}
	switch {
	case stable < d.minimum:
		return d.limited(stable, d.minimum, tooFew, tooFewMessage)
	case stable > most:
		return d.limited(stable, most, reason, message)
	}
	return d.limited(stable, stable, inRange, inRangeMessage)
}

const (
	tooFew           = "TooFewReplicas"
	tooFewMessage    = "the desired replica count is less than the minimum replica count"
	tooMany          = "TooManyReplicas"
	tooManyMessage   = "the desired replica count is more than the maximum replica count"
	upLimit          = "ScaleUpLimit"
	upLimitMessage   = "the desired replica count is increasing faster than the maximum scale rate"
	downLimit        = "ScaleDownLimit"
	downLimitMessage = "the desired replica count is decreasing faster than the maximum scale rate"
)

// limitWithBehavior stabilizes and limits a recommendation by the rules of the autoscaler.
func (d *Decision) limitWithBehavior(recommended int32) int32 {
	stable, held := d.stabilize(recommended)
	if stable != recommended {
		reason, message := "ScaleUpStabilized", "recent recommendations were lower than current one, applying the lowest recent recommendation"
		if recommended < d.scale.Replicas {
			reason = downStabilized
			message = "recent recommendations were higher than current one, applying the highest recent recommendation"
		}
		d.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, reason, message)
		d.Limits = append(d.Limits, Limit{Reason: reason, From: recommended, To: stable, At: held})
	} else {
		d.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, ready, readyMessage)
	}
	switch current := d.scale.Replicas; {
	case stable > current:
		most, reason, message := d.hpa.Spec.MaxReplicas, tooMany, tooManyMessage
		if fast := max(d.fastest(d.hpa.Spec.Behavior.ScaleUp, true), current); most > fast {
			most, reason, message = fast, upLimit, upLimitMessage
		}
		if stable > most {
			return d.limited(stable, most, reason, message)
		}
	case stable < current:
		least, reason, message := d.minimum, tooFew, tooFewMessage
		if fast := min(d.fastest(d.hpa.Spec.Behavior.ScaleDown, false), current); least < fast {
			least, reason, message = fast, downLimit, downLimitMessage
		}
		if stable < least {
			return d.limited(stable, least, reason, message)
		}
	}
	return d.limited(stable, stable, inRange, inRangeMessage)
}

// stabilize keeps a recommendation between the least of the window for scaling up and the greatest of that for scaling down. It also
// returns the time of the earlier recommendation that holds.
func (d *Decision) stabilize(recommended int32) (stable int32, held time.Time) {
	upWindow, downWindow := time.Duration(0), d.settings.DownscaleStabilization.Truncate(time.Second)
	if rules := d.hpa.Spec.Behavior.ScaleUp; rules != nil && rules.StabilizationWindowSeconds != nil {
		upWindow = seconds(*rules.StabilizationWindowSeconds)
	}
	if rules := d.hpa.Spec.Behavior.ScaleDown; rules != nil && rules.StabilizationWindowSeconds != nil {
		downWindow = seconds(*rules.StabilizationWindowSeconds)
	}
	upCutoff, downCutoff := d.now.Add(-upWindow), d.now.Add(-downWindow)
	least, greatest := recommendation{replicas: recommended}, recommendation{replicas: recommended}
	for _, r := range d.history.recommendations {
		if r.at.After(upCutoff) && r.replicas < least.replicas {
			least = r
		}
		if r.at.After(downCutoff) && r.replicas > greatest.replicas {
			greatest = r
		}
	}
	d.history.recommend(recommended, d.now, func(at time.Time) bool { return at.Before(upCutoff) && at.Before(downCutoff) })
	if stable = min(max(d.scale.Replicas, least.replicas), greatest.replicas); stable < recommended {
		return stable, least.at
	}
	return stable, greatest.at
}

// fastest is the replicas that the policies for scaling up or down allow now; d.policy is then the one that allows them.
func (d *Decision) fastest(rules *autoscalingv2.HPAScalingRules, up bool) int32 {
	current := d.scale.Replicas
	if rules == nil {
		return current
	}
	selects := autoscalingv2.MaxChangePolicySelect
	if rules.SelectPolicy != nil {
		selects = *rules.SelectPolicy
	}
	if selects == autoscalingv2.DisabledPolicySelect {
		return current
	}
	// The greatest change is the most replicas on the way up, and the fewest on the way down.
	most := (selects == autoscalingv2.MinChangePolicySelect) != up
	limit, proposed := int32(math.MaxInt32), int32(0)
	if most {
		limit = math.MinInt32
	}
	for i, p := range rules.Policies {
		before := current - within(d.history.ups, p.PeriodSeconds, d.now) + within(d.history.downs, p.PeriodSeconds, d.now)
		switch {
		case p.Type == autoscalingv2.PodsScalingPolicy && up:
			proposed = before + p.Value
		case p.Type == autoscalingv2.PodsScalingPolicy:
			proposed = before - p.Value
		case p.Type == autoscalingv2.PercentScalingPolicy && up:
			proposed = ceil(float64(before) * (1 + float64(p.Value)/100))
		case p.Type == autoscalingv2.PercentScalingPolicy:
			proposed = int32(float64(before) * (1 - float64(p.Value)/100))
		}
		if most && proposed > limit || !most && proposed < limit {
			limit, d.policy = proposed, &rules.Policies[i]
		}
	}
	return limit
}
