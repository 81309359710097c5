// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package ingress proves with Skipper, an ingress controller of other people's, that Ingresses lead from outside of the machine to pods.
// Its program is unmodified, its manifests are its documentation's, and docs/ingress.md has the commands. The program is of a module of
// its own, skipper.mod, with the versions that it is shipped with.
package ingress
