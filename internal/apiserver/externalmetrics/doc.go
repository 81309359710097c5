// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package externalmetrics lets several servers serve external.metrics.k8s.io/v1beta1. Kubernetes has one: that of the
// APIService v1beta1.external.metrics.k8s.io, which is the default route here.
//
// [Kind] describes the ExternalMetricsRoute. [Routes] follows all routes. [Routes.Find] returns the server of a request's
// path, and an [aggregate.Aggregator] of its own forwards the request as it does for APIServices: it resolves the service,
// names the user, shows the front proxy's certificate, counts the call in the ledger, and writes the condition Available.
//
// # Example
//
// The route keda matches the metrics s*-kafka-*, the route team matches all metrics in the namespaces team-*, with the
// higher priority. A request for s0-kafka-lag in team-a goes to the server of team, in shop to that of keda; one for
// queue-length in shop goes to the APIService. While keda's server is not available, requests for s0-kafka-lag in shop are
// refused. They go to no other server, whose values would be those of another metric.
//
// # Discovery
//
// The resources of the group version are those of all available servers together ([Routes.ServeHTTP]). [Routes.Transport]
// is the same for the server's own discovery; it asks one of the servers for OpenAPI.
//
// # Concurrency
//
// All methods are safe for concurrent use. Requests read an immutable table without a lock.
package externalmetrics
