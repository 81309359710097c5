// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package table turns objects into the forms that say less than the whole: the Table of kubectl get (meta.k8s.io/v1,
// one row of cells an object) and PartialObjectMetadata, the metadata alone.
//
// A client asks for a form in its Accept header; [Target] names what it asked for. [Converter] is made once a request from
// the kind's version and the query's options, and then makes the table of a get, a list or one watch event after
// the other. All is computed from hub objects, which are shared and are only read. Nothing here is kept between requests,
// so everything may be used by many goroutines, save a Converter, which belongs to its request: the first table that it
// makes has the column definitions, and in a watch the later ones do not.
package table
