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

// initialization returns the admission chains for initialized objects; nil: no objects wait for initializers.
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

// initializersStage releases the seat and the turn of a request that created an object and waits for its
// initialization. The stage exists only if objects may wait.
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
