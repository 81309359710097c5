// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package resource describes kinds: a [Descriptor] is all that the server knows of one kind, whether built in or from a
// CustomResourceDefinition.
//
// Read [Descriptor] first: names, versions, codec, strategy, columns, subresources. [Version] is one served version of the
// kind and converts to the hub form; [Strategy] is what the kind does to an object on its way in; [Subresource] is one path
// below an object. [Backend] is the other direction: the part of the server that a kind's own actions (binding, eviction,
// allocation) use.
//
// Descriptors are immutable values; everything in them is safe for concurrent use.
//
// # Stability
//
// What this package exports only grows: a committed list of it is compared in a test, and a change that breaks a program is announced in a
// release before.
package resource
