// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package openapi serves the documents that describe every kind: /openapi/v3, an index of one document a group version, and /openapi/v2,
// one document of all; as JSON and as protobuf. kubectl explain, client-side validation and generators of clients read them.
//
// The documents of built-in kinds are made at go generate time (see gen) and embedded compressed (z_data). They are sent as
// they are to clients that accept gzip, and are never parsed. Those of kinds from definitions are made when they are first asked
// for, from the same descriptors that serve the kinds, and are kept, compressed, until the list of descriptors changes.
//
// An index names each document with its hash. A request that carries the hash may be cached for ever; one that carries an
// old hash is sent on to the new one.
package openapi

//go:generate go run ./gen
