// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package webhook implements the two admission plug-ins that call HTTPS servers: MutatingAdmissionWebhook and
// ValidatingAdmissionWebhook, as in kube-apiserver.
//
// A [Plugin] holds the webhooks of all configurations of its kind (hooks.go), ready for matching and calls; the feed hands
// it each change of a configuration before the write is answered. [Plugin.Mutate] calls the matching webhooks one after the
// other, each with the object that the previous one returned (mutate.go); [Plugin.Validate] calls all concurrently
// (validate.go). The request is encoded once for each version of the object (review.go), and an answer is validated before
// it counts (answer.go).
//
// # Concurrency
//
// Requests read the list of webhooks without a lock; it is replaced as a whole.
package webhook
