// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package dex has people log in with dex, an OpenID Connect issuer of other people's, over TLS: the programs as they are shipped,
// nothing of either linked in. It is a module of its own, so that dex's dependencies are none of Mortise's.
package dex
