// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package decisionlog

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/extension/trace"
)

// Extenders is the column of the extenders' scores, beside the plug-ins' columns.
const Extenders = "extenders"

// Scheduling returns the log's record of a pod, or nil.
func (k *Log) Scheduling(namespace, name string) *trace.Scheduling {
	if k == nil {
		return nil
	}
	out := &trace.Scheduling{Namespace: namespace, Name: name, Decisions: []trace.Decided{}}
	k.mu.Lock()
	if e := k.pods[types.NamespacedName{Namespace: namespace, Name: name}]; e != nil {
		p := e.Value.(*pod) //nolint:forcetypeassert // nothing else is put in
		out.UID = string(p.uid)
		for _, d := range slices.Backward(p.decisions) {
			out.Decisions = append(out.Decisions, d.told())
		}
	}
	out.Kept = trace.KeptOfPods{Pods: len(k.pods), Bytes: k.bytes, Bound: k.options.Bytes}
	live := k.live
	k.mu.Unlock()
	if live == nil {
		out.Note = "no scheduler runs in this server at the moment"
	} else {
		uid, place := live.Place(namespace, name)
		switch {
		case uid == "" && len(out.Decisions) > 0:
			out.Note = "the pod does not exist any more, or has ended"
		case uid != "" && out.UID != "" && string(uid) != out.UID:
			out.Note = "the decisions that are kept are about an earlier pod of the same name, " + out.UID
		}
		if uid != "" {
			out.UID, out.Place = string(uid), place
		}
	}
	if len(out.Decisions) == 0 && out.Place == nil {
		return nil
	}
	return out
}

// Time formats times.
func Time(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// told converts the decision to text. The caller holds the log's lock.
func (d *Decision) told() trace.Decided {
	out := trace.Decided{
		Time: Time(d.Time), Cycle: d.Cycle, Attempt: d.Attempt, Profile: d.Profile, Seconds: d.Took.Seconds(),
		Outcome: d.Outcome, Message: strings.ToValidUTF8(d.Message, ""), Nodes: d.Nodes, Asked: d.Evaluated, Feasible: d.Feasible,
		Node: d.Node, Nominated: d.Nominated, Victims: d.Victims, MoreVictims: d.More,
	}
	for _, f := range d.Filtered {
		out.Filtered = append(out.Filtered, trace.Filtered(f))
	}
	for _, s := range d.Scores {
		n := trace.NodeScore{Node: s.Node, Total: s.Total, Plugins: []trace.PluginScore{}}
		left := s.Total
		for i, plugin := range d.Columns {
			n.Plugins = append(n.Plugins, trace.PluginScore{Plugin: plugin, Raw: s.Raw[i], Weighted: s.Weighted[i]})
			left -= s.Weighted[i]
		}
		if left != 0 {
			n.Plugins = append(n.Plugins, trace.PluginScore{Plugin: Extenders, Raw: left, Weighted: left})
		}
		out.Scores = append(out.Scores, n)
	}
	return out
}
