// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package robustness records what clients of Mortise's API do and see while parts of the cluster are killed, stopped, slowed and cut
// off, and judges the history by the state machine of etcd's own robustness tests, with porcupine. Two clusters are tested: three servers
// on three members of etcd, on three machines that are network namespaces, and one server with the store of its data directory.
//
// The files:
//
//	history.go   what clients did and saw
//	order.go     is there an order of all operations that the state machine allows?
//	judge.go     the promises that a history is held to: of writes, and of watches
//
// It is a module of its own, so that etcd's server is none of Mortise's dependencies. By default the tests run some short seeds. The
// environment variable MORTISE_ROBUSTNESS_SEEDS sets how many, and MORTISE_ROBUSTNESS_FIRST which is the first:
//
//	MORTISE_ROBUSTNESS_SEEDS=500 go test -tags grpcnotrace -timeout 4h -v ./...
//
// A seed fixes which faults happen in which order, and what each client tries; how they meet is up to the machine.
package robustness
