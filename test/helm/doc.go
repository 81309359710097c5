// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package helm proves with Helm's own library that charts install, upgrade, roll back and uninstall: charts that other
// people ship (cert-manager's, ingress-nginx's, metrics-server's, out of the module cache), and one of our own for what
// those leave out. It is a module of its own, so that Helm's hundred dependencies do not weigh on Mortise's go.mod; the
// tests therefore speak to the program, which they build, over TLS with the kubeconfig that it wrote.
package helm
