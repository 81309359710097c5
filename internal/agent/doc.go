// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package agent is the node: it registers a Node object, keeps its lease, and
// makes the pods that are bound to the node real through a container runtime.
//
// Read it in this order:
//
//	agent.go      Options and Run: what is started, and in which order it stops
//	node.go       the contract that the node's HTTP API (package server) is built on
//	register.go   the Node object, its conditions and its lease
//	hooks.go      THE ordered table of what is done to a pod before it has a sandbox
//	worker.go     one goroutine a pod; level-driven: look at the runtime, decide, act
//	decide/       the decision as a pure function of spec and runtime state
//	podstatus/    the status as a pure function of spec, runtime state and probes
//	act.go        carrying a decision out: sandboxes, images, containers
//	terminate.go  preStop, grace, removal
//
// Under it are packages that know nothing of workers: cri (the runtime's client),
// labels (the state that lives in the runtime, in kubelet's words), volumes,
// environ, probe, images, cni and logs.
//
// The truth about what runs is in the runtime, never in this process: a restart of
// Mortise reads it back and leaves what runs alone.
package agent
