// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/scheduler/core"
	"github.com/mortise-dev/mortise/internal/scheduler/decisionlog"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// noted begins the decision log's record of an attempt. Without a log it does nothing.
func (a *attempt) noted(began time.Time, took time.Duration, node string) {
	if a.options.Decisions == nil {
		return
	}
	a.note = &decisionlog.Decision{
		Namespace: a.item.Pod.Namespace, Name: a.item.Pod.Name, UID: a.item.Pod.UID,
		Time: began, Took: took, Cycle: a.cycle, Attempt: a.item.GetAttempts(), Profile: a.profile.Name(),
		Account: a.core.Account(), Outcome: trace.OutcomeBinding, Node: node,
	}
	if node != "" { // a pod without a node is added when it has failed
		a.options.Decisions.Add(a.note)
	}
}

// failed records why the attempt failed.
func (a *attempt) failed(reason error, message string, nominate *fwk.NominatingInfo) {
	if a.note == nil {
		return
	}
	outcome := trace.OutcomeError
	var fit *core.FitError
	var late refusal
	if errors.As(reason, &fit) || errors.As(reason, &late) || errors.Is(reason, core.ErrNoNodes) {
		outcome = trace.OutcomeUnschedulable
	}
	tell := func(d *decisionlog.Decision) {
		d.Outcome, d.Message = outcome, message
		if nominate.Mode() == fwk.ModeOverride {
			d.Nominated = nominate.NominatedNodeName
		}
		if v, err := a.state.Read(profile.VictimsKey); err == nil {
			if victims, ok := v.(profile.Victims); ok {
				d.More = max(len(victims)-decisionlog.MostVictims, 0)
				for _, p := range victims[:len(victims)-d.More] {
					d.Victims = append(d.Victims, trace.Victim{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)})
				}
			}
		}
	}
	if a.note.Node == "" {
		tell(a.note)
		a.options.Decisions.Add(a.note)
		return
	}
	a.options.Decisions.Change(a.note, tell)
}

// bound records that the pod is bound.
func (a *attempt) bound() {
	a.options.Decisions.Change(a.note, func(d *decisionlog.Decision) { d.Outcome = trace.OutcomeBound })
}

// Place returns where a pod is now. It implements [decisionlog.Live].
func (s *scheduler) Place(namespace, name string) (types.UID, *trace.Place) {
	pod, err := s.pods.Pods(namespace).Get(name)
	if err != nil {
		return "", nil
	}
	q := s.queue.Position(pod.UID)
	p := &trace.Place{Where: q.Where, Since: decisionlog.Time(q.Since), Until: decisionlog.Time(q.Until), Plugins: q.Plugins,
		Attempts: q.Attempts, Nominated: q.Nominated, Node: pod.Spec.NodeName}
	switch owner := s.profiles[pod.Spec.SchedulerName]; {
	case pod.Spec.NodeName != "":
		p.Where = trace.PlaceBound
	case owner == nil:
		return pod.UID, nil
	case owner.Waits(pod):
		p.Where = trace.PlacePermit
		if w := owner.GetWaitingPod(pod.UID); w != nil {
			p.Plugins = slices.Sorted(slices.Values(w.GetPendingPlugins()))
		}
	case s.cache.IsAssumed(pod.UID):
		p.Where = trace.PlaceBinding
	}
	if p.Where == "" {
		return pod.UID, nil
	}
	return pod.UID, p
}
