// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy is the two admission plug-ins that decide by CEL expressions: ValidatingAdmissionPolicy and
// MutatingAdmissionPolicy, as kube-apiserver has them.
//
// A policy counts through its bindings. A [Validating] or [Mutating] plug-in holds each policy with its bindings (source.go), compiled when a request
// first matches it, and is told of each commit of either before the write is answered. Parameters are objects of any kind
// that is served, read when they are needed (params.go), so that there is nothing to wait for. What is right and wrong is
// decided by the expressions' own libraries; here stand matching, order, and what comes of a verdict (validate.go, mutate.go).
//
// # Concurrency
//
// Requests read the list of policies without a lock; it is replaced as a whole.
package policy
