// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"slices"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/initializers"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/verbs"
)

// Plug-ins that do not review an object again as a new one when an initializer has changed it: the mutating webhooks, which run before
// initializers; the quota, which has counted the object; and the check that the namespace accepts new objects.
var (
	notFilledAgain  = []string{initializers.Name, "MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "NamespaceLifecycle"}
	notCheckedAgain = []string{initializers.Name, "ResourceQuota", "NamespaceLifecycle"}
)

// initialization is what verbs must know when objects may wait for initializers; nil: none does.
func initialization(all admit.Chain) *verbs.Initialization {
	if !slices.ContainsFunc(all, func(p admit.Plugin) bool { return p.Name() == initializers.Name }) {
		return nil
	}
	without := func(names []string) (some admit.Chain) {
		for _, p := range all {
			if !slices.Contains(names, p.Name()) {
				some = append(some, p)
			}
		}
		return some
	}
	return &verbs.Initialization{Fill: without(notFilledAgain), Check: without(notCheckedAgain)}
}

// initializersStage lets a request that creates an object, and then waits for it to be initialised, give up what it holds of the
// server meanwhile: its seat, and its turn if it has one. The stage is there when objects may wait.
func initializersStage(_ *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	rec := recordOf(r.Context())
	verb := rec.info.Verb
	if (verb == "create" || verb == "patch" || verb == "update") && (rec.ticket != nil || rec.limited) {
		r = r.WithContext(flowcontrol.WithBeginning(r.Context(), func() {
			rec.leaveSeat()
			if rec.turn != nil {
				rec.turn.End()
			}
		}))
	}
	next.ServeHTTP(w, r)
}
