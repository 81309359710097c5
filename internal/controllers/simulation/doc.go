// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package simulation runs the workload controllers together in a world with all kinds of faults (controllertest.World), by seeds: `make
// test` tries 200, `make soak` 10,000. simulation_test.go has the users' requests, and promises_test.go and order_test.go the invariants
// and the eventual outcomes: never more pods than surge allows, never fewer than a budget or a rollout keeps available, one pod of each
// ordinal, created and deleted in order, one daemon on a node, at most one active job of a CronJob that forbids more, no orphan left. A
// test judges a controller by what its informers could show it.
//
// A failure prints the seed and the fewest steps that still fail:
//
//	go test -tags grpcnotrace ./internal/controllers/simulation -simulations 1 -simulations.seed 89
//
// The same seed fails again: it decides the time of every event. -simulations.twice plays each seed twice to check that.
package simulation
