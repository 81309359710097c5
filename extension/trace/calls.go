// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"time"

	"github.com/mortise-dev/mortise/extension"
)

// NodeRoute is where the API of a node that is not in the server's process answers with [OnNode]. With [ParamNamespace] and [ParamName],
// the answer has the calls for that pod.
const NodeRoute = "/debug/extensions"

// OnNode is what a node tells of its plug-ins.
type OnNode struct {
	Extensions []extension.Row `json:"extensions"`
	Calls      []Call          `json:"calls,omitempty"`
}

// Calls returns spans as calls.
func Calls(spans []extension.Span) (out []Call) {
	for _, one := range spans {
		out = append(out, Call{
			Time: one.Began.UTC().Format(time.RFC3339Nano), Point: string(one.Point), Extension: one.Name, Method: one.Method,
			Seconds: one.Took.Seconds(), Code: one.Code, Error: one.Error,
		})
	}
	return out
}

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
