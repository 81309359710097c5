// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package resource says what a kind is: the [Descriptor], all that the server knows of one kind, be it built in or from a
// CustomResourceDefinition.
//
// Read [Descriptor] first: names, versions, codec, strategy, columns, subresources. [Version] is one served form of the
// kind and converts to the hub form; [Strategy] is what the kind does to an object on its way in; [Subresource] is one
// path below an object. [Backend] is the other direction: what a kind's own actions (binding, eviction, allocation) may
// ask of the server.
//
// Descriptors are values made once and never changed; everything in them may be called by many requests at once.
package resource
