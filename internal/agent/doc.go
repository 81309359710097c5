// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package agent implements the node: it registers a Node object, renews its Lease, and runs the pods that are bound to the node through a
// container runtime, as kubelet does.
//
// Read it in this order:
//
//	agent.go      Options: the configuration of a node
//	run.go        Run: makes the rooms, and has THE table of the parts that run, in the order in which they stop
//	node.go       the interface between the node and its HTTP API (package server)
//	api.go        the implementation of that interface
//
// The packages below are its rooms. Each has its own state and lock, and uses the others through small interfaces only:
//
//	podworkers   THE pods: one worker for each pod, and queries of other rooms about pods
//	nodestatus   the Node object, its conditions, its Lease, and the pod network
//	pleg         the pod lifecycle event generator: wakes workers on events of the runtime, and relists for safety
//	images       pulls, credentials and garbage collection of images (packages pullmanager, imagegc)
//	eviction     node-pressure eviction (package evict decides)
//	podadmission which pods the node rejects
//	podresize    in-place resize of running pods
//	podkiller    stops pods and containers (package containerhooks: postStart and preStop)
//	podgc        removes what deleted pods have left behind
//	podstreams   logs, exec and the like, for the node's API
//	plugins      registration of plug-ins
//	shutdown     graceful node shutdown
//	stats        resource usage of the node and its pods
//	objectcache  the ConfigMaps, Secrets, trust bundles and certificate requests of pods
//	static       static pods from files and URLs (package staticpods), and their mirror pods
//	cgroups      the cgroups of pods, and of all pods together
//	userns       the user namespaces of pods
//	containerlog log rotation
//	volumes, probe
//
// The other packages depend on none of these. Pure: podspec (a pod's definition), podstate (the runtime's state of a pod, in kubelet's
// terms), decide (the next step), podstatus (the status), allocatable (the node's resources), environ (variables), runconfig (requests to
// the runtime), backoff. With effects: cri (the client of the runtime), hardware (the machine), cni.
//
// The runtime, and never this process, holds the truth about running containers: a restart of Mortise reads it back and leaves the
// containers alone.
package agent
