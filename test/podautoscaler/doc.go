// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podautoscaler checks the calculator of the HorizontalPodAutoscaler against kube-controller-manager's own controller, on random
// worlds: autoscalers with all types of metrics, pods in all states, samples that are late or missing, servers that fail. It is a module
// of its own, so that what kube-controller-manager needs does not weigh on Mortise's go.mod.
//
// world.go makes worlds from a seed and changes them as time passes; reference.go runs kube-controller-manager's controller on a world;
// decisions_test.go compares. Time is that of testing/synctest.
package podautoscaler
