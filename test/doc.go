// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package test holds the whole-program tests: a cluster as a user starts it, and clients that we did not write (kubectl,
// client-go, controller-runtime), over TLS. Tests of one room stand with that room.
//
// kubectl_test.go holds the sessions of testdata/kubectl, whole dialogues in a shell; encodings_test.go, informers_test.go
// and clientgo_test.go are client-go's parts, clients_test.go and manager_test.go operators on controller-runtime. Helm has
// a module of its own in helm.
package test
