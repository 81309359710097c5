// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

// project is a Go module with suites.
type project struct {
	name, module, version string
	// unchanged suites run with Mortise's program in KUBEBUILDER_ASSETS; others by the changed import.
	unchanged bool
	// edits are arguments of `go mod edit`, for what the module's replace directives find in its repository only.
	edits []string
	// suites are folders.
	suites []string
}

// projects are in the order of their output.
var projects = []project{
	{
		name: "controller-runtime", module: "sigs.k8s.io/controller-runtime", version: "v0.25.2", unchanged: true,
		suites: []string{
			"pkg/builder", "pkg/cache", "pkg/client", "pkg/cluster", "pkg/controller", "pkg/controller/controllerutil", "pkg/envtest",
			"pkg/handler", "pkg/internal/controller", "pkg/internal/recorder", "pkg/internal/testing/controlplane", "pkg/manager",
			"pkg/manager/internal/integration", "pkg/metrics/filters", "pkg/reconcile", "pkg/source", "pkg/webhook",
		},
	},
	{
		name: "cluster-api", module: "sigs.k8s.io/cluster-api", version: "v1.14.2",
		edits:  []string{"-dropreplace=sigs.k8s.io/cluster-api/api", "-require=sigs.k8s.io/cluster-api/api@v1.14.2"},
		suites: []string{"core/reconcilers/machineset"},
	},
	{
		name: "jobset", module: "sigs.k8s.io/jobset", version: "v0.12.0",
		suites: []string{"test/integration/controller", "test/integration/webhook"},
	},
	{
		name: "lws", module: "sigs.k8s.io/lws", version: "v0.9.0",
		suites: []string{"test/integration/controllers", "test/integration/webhooks"},
	},
}
