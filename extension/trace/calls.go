// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package trace

// Call is one call to an extension on behalf of an object, such as a device plug-in that allocates a pod's devices.
type Call struct {
	Time      string  `json:"time"` // RFC 3339
	Point     string  `json:"point"`
	Extension string  `json:"extension"`
	Method    string  `json:"method,omitempty"` // of the extension's protocol
	Seconds   float64 `json:"seconds"`
	Code      string  `json:"code,omitempty"` // of the protocol, if it has codes
	Error     string  `json:"error,omitempty"`
}
