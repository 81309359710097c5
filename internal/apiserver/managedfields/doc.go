// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package managedfields maintains metadata.managedFields, the owners of an object's fields, and implements server-side
// apply.
//
// [Manager] runs in each write after the object is made and before it is validated. Update finds the fields that a
// writer changed. Apply merges a configuration into an object, and returns a 409 that names every field on which
// another manager disagrees. Both use the version of the request: a field's owner is recorded under the version in
// which it was written.
//
// The rules are those of k8s.io/apimachinery/pkg/util/managedfields, which needs the schema of each kind. The schemas
// of built-in kinds come from client-go. They are converted at go generate time (see gen), and read once, at first use
// or in [Manager.Warm]. The schemas of custom resources come from their definition. The field managers of a descriptor
// are cached as long as the descriptor.
//
// Most new objects are like earlier ones: pods of one owner, events of one cause. The field set of the first is cached
// by a fingerprint (see likeness.go), which is faster to compute than the set.
//
// A Manager is safe for concurrent use.
package managedfields
