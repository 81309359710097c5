// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package resourcemanagers compares the node's CPU, memory and topology managers with kubelet's own: on made-up machines, pods come and go
// by a seed, and both sides must give the same CPUs and the same memory, and reject the same pods with the same words. It is a module of
// its own, so that what kubelet needs does not weigh on Mortise's go.mod.
//
// machines.go makes machines, pods.go pods; kubelet.go runs kubelet's managers and mortise.go Mortise's; allocations_test.go compares.
//
// programs_test.go builds programs of k8s.io/kubernetes that plug into a node, and has `mortise node plugin-bench` drive them.
package resourcemanagers
