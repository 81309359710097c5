// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package table turns objects into the forms that say less than the whole: the Table of kubectl get (meta.k8s.io/v1,
// one row of cells an object) and PartialObjectMetadata, the metadata alone.
//
// A client requests a form in its Accept header; [Target] names it. A request makes one [Converter] from the kind's version
// and the query's options, and uses it for the table of a get, a list or one watch event after the other. Tables are
// computed from hub objects, which are shared and only read. The package keeps no state between requests, and everything in
// it is safe for concurrent use but a Converter, which belongs to its request: its first table has the column definitions,
// and in a watch the later ones do not.
package table
