// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubescheduler checks the scheduler's decisions on random clusters against kube-scheduler's own plug-ins, run in the
// plainest way: all of them, about every node, for each pod afresh. It is a module of its own, so that what kube-scheduler needs
// does not weigh on Mortise's go.mod.
//
// cluster.go makes clusters and pods from a seed, storage.go their volumes; reference.go is kube-scheduler's verdict;
// decisions_test.go compares. claims_test.go compares for devices, scores_test.go compares their scores.
package kubescheduler
