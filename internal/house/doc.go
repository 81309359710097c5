// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package house holds the house rules as Go tests: what a reviewer would otherwise have to say again. It reads the tree's
// sources as text and syntax and runs nothing. Each rule names what to do instead.
package house
