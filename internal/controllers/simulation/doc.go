// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package simulation has the controllers of workloads work together in a world in which everything goes wrong that can
// (controllertest.World), by seeds: `make test` tries 200, `make soak` 10,000. simulation_test.go has what users ask for, and
// promises_test.go and order_test.go what must hold at each moment and what must come about: never more pods than surge allows, never
// fewer than a budget or a roll-out keeps available, one pod of each ordinal, made and taken in order, one daemon on a node, at most one
// active job of a CronJob that forbids more, no orphan left. A controller is judged by what its informers could show it.
//
// A failure prints the seed and the fewest steps that still fail:
//
//	go test -tags grpcnotrace ./internal/controllers/simulation -simulations 1 -simulations.seed 89
//
// The same seed fails again: it decides the moment of everything that happens. -simulations.twice plays each seed twice to see that.
package simulation
