// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package managedfields keeps metadata.managedFields: who wrote which field of an object, and with it server-side apply.
//
// [Manager] is asked after each write's object is made and before it is validated. Update finds which fields a
// writer changed; Apply merges a configuration into an object, and refuses with a 409 that names every field on which
// another manager disagrees. Both work in the version of the request: a field's owner is recorded under the version that it was
// written in.
//
// The rules are those of k8s.io/apimachinery/pkg/util/managedfields, which needs to know the shape of each kind. Of built-in
// kinds it comes from client-go, made quick to read at go generate time (see gen), and is read once, on first use or in
// [Manager.Warm]. Of kinds from definitions it comes from their schema. What was made for a descriptor is kept as long as the descriptor is.
//
// Most objects are created like others were: pods of one owner, events of one cause. What fields those have was found when the first came,
// and is kept by their likeness (see likeness.go), which is quicker to tell than the fields themselves.
//
// A Manager is safe for concurrent use.
package managedfields
