// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package managedfields maintains metadata.managedFields, the owners of an object's fields, and implements server-side
// apply.
//
// [Manager] is asked after each write's object is made and before it is validated. Update finds which fields a
// writer changed; Apply merges a configuration into an object, and refuses with a 409 that names every field on which
// another manager disagrees. Both work in the version of the request: a field's owner is recorded under the version that it was
// written in.
//
// The rules are those of k8s.io/apimachinery/pkg/util/managedfields, which needs the schema of each kind. The schemas of
// built-in kinds come from client-go, converted at go generate time (see gen), and are read once, at first use or in
// [Manager.Warm]; those of custom resources come from their definition. The managers of a descriptor are cached as long as
// the descriptor.
//
// Most objects are created like others before: pods of one owner, events of one cause. The field set of the first is cached
// by a fingerprint (see likeness.go), which is faster to compute than the set.
//
// A Manager is safe for concurrent use.
package managedfields
