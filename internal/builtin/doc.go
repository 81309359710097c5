// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package builtin holds THE lists: what this binary has of each extensible thing, one function and one file a list, in
// the order in which it counts. To add a kind, admission plug-in, controller, scheduler plug-in or volume plug-in is to write its package
// and add its one line here. Nothing registers itself.
package builtin
