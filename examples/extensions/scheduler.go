// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// filter is the filter verb of a scheduler extender: pods with the label quiet=true do not go to nodes with the label noisy=true.
func filter(w http.ResponseWriter, r *http.Request) {
	var args extenderv1.ExtenderArgs
	if !read(w, r, &args) {
		return
	}
	result := extenderv1.ExtenderFilterResult{FailedNodes: extenderv1.FailedNodesMap{}}
	kept := args.Nodes.DeepCopy() // whole nodes, as the configuration has no nodeCacheCapable
	kept.Items = nil
	for _, n := range args.Nodes.Items {
		if args.Pod.Labels["quiet"] == "true" && n.Labels["noisy"] == "true" {
			result.FailedNodes[n.Name] = "the node is noisy"
			continue
		}
		kept.Items = append(kept.Items, n)
	}
	result.Nodes = kept
	answer(w, result)
}

// prioritize is the prioritize verb: it prefers nodes with the label fast=true. Scores are 0 to 10.
func prioritize(w http.ResponseWriter, r *http.Request) {
	var args extenderv1.ExtenderArgs
	if !read(w, r, &args) {
		return
	}
	scores := extenderv1.HostPriorityList{}
	for _, n := range args.Nodes.Items {
		score := extenderv1.MinExtenderPriority
		if n.Labels["fast"] == "true" {
			score = extenderv1.MaxExtenderPriority
		}
		scores = append(scores, extenderv1.HostPriority{Host: n.Name, Score: score})
	}
	answer(w, scores)
}
