// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package table converts objects to forms that contain a part of them: the Table of kubectl get (meta.k8s.io/v1, one
// row of cells per object) and PartialObjectMetadata, the metadata alone.
//
// A client requests a form in its Accept header; [Target] names it. A request makes one [Converter] from the kind's
// version and the query's options, and uses it for the tables of a get, a list or the successive watch events. Tables
// are computed from hub objects, which are shared and read-only. The package keeps no state between requests.
// Everything in it is safe for concurrent use except a Converter, which belongs to its request: its first table has the
// column definitions, and in a watch the later ones do not.
package table
