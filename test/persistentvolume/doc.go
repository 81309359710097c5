// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package persistentvolume checks the controller that binds claims to volumes against kube-controller-manager's own, on random scenarios:
// volumes and claims of all modes, classes and policies, that users create, edit and delete in any order. Both controllers run on the same
// steps, each with an API of its own, and have to make the same writes and record the same events. It is a module of its own, so that what
// kube-controller-manager needs does not weigh on Mortise's go.mod.
//
// scenarios.go makes scenarios from a seed; differential_test.go runs both controllers on them and compares. Time is that of
// testing/synctest.
package persistentvolume
