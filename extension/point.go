// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package extension knows what can be plugged into Mortise, and every call that goes out to what is.
//
// [Points] is the catalogue: one row for each extension point of Kubernetes. A [Ledger] makes the calls: it gives each a
// deadline, counts and times it, keeps the newest error, and stops calling an extension that keeps failing until a trial
// call succeeds ([Ledger.Call]). What it knows is read with [Ledger.Snapshot].
//
// A Ledger may be used by many goroutines at once; it starts none.
package extension

// Point is a place where Mortise calls out, or lets itself be driven.
type Point string

// The points that this release calls. The catalogue grows a row with each point that comes to life.
const (
	ContainerRuntime  Point = "cri"
	ConversionWebhook Point = "conversion-webhook"
)

// Description is one row of the catalogue.
type Description struct {
	Point      Point
	Title      string
	Contract   string // the protocol and its version
	Configured string // how an extension is plugged in
}

// Points is the catalogue, in the order in which a user meets them.
func Points() []Description {
	return []Description{
		{ConversionWebhook, "CRD conversion webhook", "apiextensions.k8s.io ConversionReview v1, v1beta1 over HTTPS", "spec.conversion.webhook of a CustomResourceDefinition"},
		{ContainerRuntime, "container runtime", "CRI runtime.v1 over a unix socket", "mortise up --cri-socket PATH"},
	}
}
