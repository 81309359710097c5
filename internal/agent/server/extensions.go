// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"net/http"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/trace"
)

// extensions returns the handler that responds with the node's plug-ins, and with the calls to them for the pod that the query names.
func extensions(ledger *extension.Ledger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer := trace.OnNode{Extensions: []extension.Row{}}
		for _, e := range ledger.Snapshot() {
			answer.Extensions = append(answer.Extensions, e.Row())
		}
		if name := r.FormValue(trace.ParamName); name != "" {
			answer.Calls = trace.Calls(ledger.Spans(r.FormValue(trace.ParamNamespace), name))
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(&answer) // the client may have left
	}
}
