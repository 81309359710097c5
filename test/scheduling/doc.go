// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package scheduling puts other people's extensions into the scheduler, as their authors would: a plug-in that is a module of
// its own and knows nothing but k8s.io/kube-scheduler/framework (seats), compiled in through embed.Extensions, and an extender
// that is another process (chooser), named by a KubeSchedulerConfiguration. It is a module of its own, so that the plug-in is
// none of Mortise's dependencies.
package scheduling
