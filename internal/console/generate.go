// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

//go:generate npm --prefix web ci --no-audit --no-fund --loglevel=error
//go:generate npm --prefix web run --silent check
//go:generate npm --prefix web run --silent build
//go:generate go run ./pack
