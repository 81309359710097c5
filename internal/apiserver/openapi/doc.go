// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package openapi serves the documents that describe every kind: /openapi/v3, an index of one document per group
// version, and /openapi/v2, one document for all, both as JSON and as protobuf. kubectl explain, client-side validation
// and client generators read them.
//
// The documents of built-in kinds are made at go generate time (see gen) and embedded compressed (z_data). Clients that
// accept gzip receive them as they are; the server never parses them. The documents of custom resources are made at
// their first request, from the same descriptors that serve the kinds. They are cached, compressed, until the list of
// descriptors changes.
//
// An index names each document with its hash. Clients may cache a request with the current hash forever; a request with
// an old hash is redirected to the new one.
package openapi

//go:generate go run ./gen
