// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package test holds the whole-program tests: a cluster as a user starts it, and clients that we did not write (kubectl,
// client-go, controller-runtime), over TLS. Tests of one room stand with that room.
package test
