// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package compatibility makes the table of docs/compatibility.md: every group, version, resource, subresource and verb that Kubernetes
// serves by default, and whether this server serves it. The list is the discovery document in the k8s.io/kubernetes module,
// without previews; each verb is then tried over TLS, since a discovery document is only a claim.
//
// The test fails when the table in the file is not the one that was found. -update writes it.
package compatibility
