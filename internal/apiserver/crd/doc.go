// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package crd serves CustomResourceDefinitions. [Compile] turns a CustomResourceDefinition into a resource.Descriptor,
// so that a custom resource uses the same code as a Pod. [Definitions] is the descriptor of the
// CustomResourceDefinition kind itself. A [Registry] follows the stored definitions: it resolves conflicts of names,
// publishes the descriptors, writes the definitions' status, and deletes the objects of a definition that is being
// deleted.
//
// The effects of a schema on an object, in the order of a write:
//
//	decode    Version.Coerce     reject malformed metadata
//	          Version.Prune      drop unknown fields and nulls that the schema does not allow
//	          Version.Default    fill in defaults
//	convert   Version.ToHub      to the stored version, pruned by its schema
//	strategy  Prepare…           status kept or dropped, generation
//	          Validate…          schema, embedded metadata, list types, then CEL rules
//
// An object is validated by the schema of the version in which it was sent. Updates ratchet: invalid values that an update
// does not change are accepted.
//
// Descriptors are immutable and safe for concurrent use. The expensive and rarely needed parts, validators and CEL
// programs, are compiled at the first write of a kind in a version and cached with the descriptor; a changed definition
// gets a new descriptor.
package crd
