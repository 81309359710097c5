// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package options has the settings of the API server that users already have in files and on command lines, under kube-apiserver's flag
// names, and those of the controllers under kube-controller-manager's: a concept a file, each with its flags.
//
// `mortise up` binds them to its flags ([APIServer.AddFlags]), package embed has them as a field of its Server; both have the same meaning.
// The package reads no files: the packages that use a file validate it, before anything starts. The package imports no other package of the
// server.
//
// # Stability
//
// The names and meanings are those of the Kubernetes release that Mortise implements, and change with it. A committed list of what this
// package exports is compared in a test.
package options

import "github.com/spf13/pflag"

// APIServer has the settings by concept. The zero value has kube-apiserver's defaults, except for the certificates and service account
// keys, of which a Mortise cluster has its own.
type APIServer struct {
	Authentication Authentication
	Authorization  Authorization
	Audit          Audit
	FlowControl    FlowControl
	Encryption     Encryption
	Etcd           Etcd
	Admission      Admission
	Aggregation    Aggregation
	Egress         Egress
	Explain        Explain
	Pods           Pods
	Webhooks       Webhooks
	Controllers    Controllers
	Scheduler      Scheduler
	Simulated      Simulated
	Node           Node
	Network        Network
	Kubelets       Kubelets
	Serving        Serving
	Compatibility  Compatibility
}

// section is one concept's flags.
type section interface{ addFlags(f *pflag.FlagSet) }

func (o *APIServer) sections() []section {
	return []section{&o.Authentication, &o.Authorization, &o.Audit, &o.FlowControl, &o.Etcd, &o.Encryption, &o.Admission, &o.Aggregation,
		&o.Egress, &o.Explain, &o.Pods, &o.Webhooks, &o.Controllers, &o.Scheduler, &o.Simulated, &o.Node, &o.Network, &o.Kubelets,
		&o.Serving, &o.Compatibility}
}

// AddFlags binds all of them to f.
func (o *APIServer) AddFlags(f *pflag.FlagSet) {
	for _, s := range o.sections() {
		s.addFlags(f)
	}
}
