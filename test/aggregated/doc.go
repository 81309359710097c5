// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package aggregated puts other people's API servers under Mortise's roof, unmodified, as processes of the host behind Services of type
// ExternalName: Kubernetes' sample API server with an etcd of its own, the test adapter of custom and external metrics, and metrics-server.
// Beside them stand a server of metrics.k8s.io and the example of embed/aggregated. kubectl is Mortise's own. It is a module of
// its own, so that the programs' dependencies are none of Mortise's.
package aggregated
