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
//	watch.go      what wakes workers: the runtime's events and, as safety, listing it
//	worker.go     one goroutine a pod; level-driven: look at everything, decide, act
//	hooks.go      THE ordered table of what is done for a pod before it has a sandbox
//	act.go        carrying a decision out: sandboxes and containers; images.go, lifecycle.go
//	terminate.go  preStop, grace, removal
//	status.go     writing what came of it to the API server
//	static.go     pods from files and pages (package staticpods), and their mirrors in the API server
//	eviction.go   what runs short (measure.go, package evict) and who goes for it; imagecollect.go, images that nobody uses
//	shutdown.go   ending all pods before the node goes, where that is configured
//	serve.go      logs, exec and the like, for the node's API
//
// Under it are packages that know nothing of workers. Pure: podstate (what the runtime
// knows, and kubelet's words for it), decide (the next step), podstatus (the status),
// environ (variables), runconfig (what the runtime is asked for), backoff. With effects:
// cri (the runtime's client), volumes, probe, cni.
//
// The truth about what runs is in the runtime, never in this process: a restart of
// Mortise reads it back and leaves what runs alone.
package agent
