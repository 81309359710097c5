// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package agent is the node: it registers a Node object, keeps its lease, and
// makes the pods that are bound to the node real through a container runtime.
//
// Read it in this order:
//
//	agent.go      Options: what a node is made from
//	run.go        Run: the rooms that are made, and THE table of the parts that run, in the order in which they stop
//	node.go       the contract that the node's HTTP API (package server) is built on
//	api.go        the node as its API sees it
//
// Under it are rooms, each with its own state and lock, which know each other by small interfaces only:
//
//	podworkers   THE pods: one worker a pod, and what other rooms ask about pods
//	nodestatus   the Node object, its conditions, its lease, and the pod network
//	pleg         what wakes workers: the runtime's events and, as safety, listing it
//	images       pulls, credentials and the collection of images (packages pullmanager, imagegc)
//	eviction     what runs short, and which pod is evicted for it (package evict)
//	podadmission which pods the node refuses
//	podresize    giving running pods other resources
//	podkiller    stopping pods and containers (package containerhooks: postStart and preStop)
//	podgc        what pods that are no more have left behind
//	podstreams   logs, exec and the like, for the node's API
//	plugins      plug-ins that register with the node
//	shutdown     ending all pods before the node goes, where that is configured
//	stats        what the node and its pods use
//	objectcache  the ConfigMaps, Secrets, trust bundles and certificate requests of pods
//	static       pods from files and pages (package staticpods), and their mirrors in the API server
//	cgroups      the bounds of pods, and of all pods together
//	userns       the user namespaces of pods
//	containerlog the rotation of logs
//	volumes, probe
//
// And packages that know nothing of any of them. Pure: podspec (a pod's definition), podstate (what the runtime
// knows, and kubelet's words for it), decide (the next step), podstatus (the status), allocatable (what the node offers),
// environ (variables), runconfig (what the runtime is asked for), backoff. With effects: cri (the runtime's client),
// hardware (the machine), cni.
//
// The truth about what runs is in the runtime, never in this process: a restart of
// Mortise reads it back and leaves what runs alone.
package agent
