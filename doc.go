// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package mortise is the root of a Kubernetes-compatible control plane and node. It has no code; this is the tour of the
// tree, in reading order.
//
//   - store: [github.com/mortise-dev/mortise/store] keeps bytes under keys, in revisions. Engine is implemented, Store is
//     used; the promises have names and a conformance suite (store/storetest).
//   - resource: the Descriptor, what built-in kinds and CRDs have in common.
//   - internal/apiserver: a request's way. pipeline.go is the only place where the order of the stages is written; verbs
//     has a file for each verb, registry reads and writes the stored objects, admit is what changes and checks writes, crd the
//     kinds that come at run time.
//   - internal/kinds: one descriptor a file; internal/kinds/upstream alone touches k8s.io/kubernetes.
//   - internal/controllers, internal/scheduler, internal/agent: the loops, the scheduler, the node. Each is a client of the
//     API server and nothing else.
//   - internal/builtin: the lists of all of the above.
//   - internal/cluster: a whole cluster from these lists, by the one table in steps.go; internal/node: the nodes of a
//     cluster, simulated or (node/containers) real, here or elsewhere; internal/lifecycle starts and stops such tables.
//   - embed: the library, a Server to start in a Go program; embed/embedtest in a Go test; embed/aggregated, the
//     other half of aggregation: an API server of one's own behind a cluster. embed/options are the API server's
//     settings under kube-apiserver's flag names.
//   - internal/cli, cmd/mortise: the command line; internal/config: the configuration file, a field for each flag.
//   - internal/console: the web page in front of the API server, which acts as the user who signed in.
//   - extension: the catalogue of extension points and the ledger of calls out to them.
//   - internal/house: the house rules as tests. test: whole-program tests. bench: the load generator.
package mortise
