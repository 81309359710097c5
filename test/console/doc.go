// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package console tests the console in browsers. The tests are in browser, in JavaScript, and drive Chromium and Firefox of the system by
// Playwright; they start `mortise up` with simulated nodes themselves.
package console
