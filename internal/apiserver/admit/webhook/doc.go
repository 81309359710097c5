// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package webhook is the two admission plug-ins that ask HTTPS servers: MutatingAdmissionWebhook and
// ValidatingAdmissionWebhook, as kube-apiserver has them.
//
// A [Plugin] holds the webhooks of all configurations of its kind (hooks.go), ready to be matched and called, and is told of each commit of a
// configuration before the write is answered. [Plugin.Mutate] calls those that match one after the other, each with what the
// one before made of the object (mutate.go); [Plugin.Validate] calls all at once (validate.go). What is sent is encoded once
// for each version of the object (review.go), and an answer is believed only if it is one (answer.go).
//
// # Concurrency
//
// Requests read the list of webhooks without a lock; it is replaced as a whole.
package webhook
