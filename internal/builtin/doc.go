// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package builtin has the lists of this binary's extensions of each kind, one function and one file a list, in their order.
// To add a kind, admission plug-in, controller, scheduler plug-in or volume plug-in, write its package and add one line
// here. Nothing registers itself.
package builtin
