// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package discovery answers which groups, versions and resources there are: /api, /apis, /api/v1, /apis/GROUP and
// /apis/GROUP/VERSION, and the two aggregated documents (APIGroupDiscoveryList) that tell all in one answer.
//
// A [Handler] asks its list of descriptors on each request and compares it, pointer by pointer, with the list that
// its documents were made from; only when a kind has come, gone or changed are they made anew. A document is encoded at most
// once for each media type. Readers take no lock: they hold one immutable set of documents (see [documents]), which a
// newer one replaces.
//
// Groups are ordered by upstream's priorities, then by name; a group's versions by priority, then as Kubernetes orders
// version names, v2 before v1 before v1beta1. Groups of CRDs come after the built-in ones.
package discovery
