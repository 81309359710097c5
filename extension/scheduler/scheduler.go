// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package scheduler is the contract of scheduler plug-ins in Go. It is kube-scheduler's own: plug-ins are written to package
// k8s.io/kube-scheduler/framework, and run in kube-scheduler unmodified. embed.Extensions takes their factories by name.
//
// # Stability
//
// The interfaces are those of the Kubernetes release that Mortise implements, and change with it. What this package exports only grows: a
// committed list of it is compared in a test.
package scheduler

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-scheduler/framework"
)

// Factory creates a plug-in. It is the factory function of kube-scheduler's app.WithPlugin. The arguments are a runtime.Unknown with the
// configuration's JSON. The handle is the scheduler: its clients, informers and snapshot of the nodes.
type Factory = func(ctx context.Context, args runtime.Object, h framework.Handle) (framework.Plugin, error)
