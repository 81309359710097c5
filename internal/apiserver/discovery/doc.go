// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package discovery serves the discovery of groups, versions and resources: /api, /apis, /api/v1, /apis/GROUP and
// /apis/GROUP/VERSION, and the two aggregated documents (APIGroupDiscoveryList) with all of them in one response.
//
// On each request a [Handler] gets its list of descriptors, and compares it, pointer by pointer, with the list from
// which its documents were made. It makes them again only if a kind was added, removed or changed. A document is
// encoded at most once for each media type. Readers take no lock: they read an immutable set of documents (see
// [documents]), which the next one replaces.
//
// Groups are ordered by upstream's priorities, then by name; a group's versions by priority, then as Kubernetes orders
// version names, v2 before v1 before v1beta1. Groups of CRDs come after the built-in ones.
package discovery
