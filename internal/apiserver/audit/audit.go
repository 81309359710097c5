// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package audit records the requests to the API and their responses, as kube-apiserver does: by a policy of
// audit.k8s.io/v1, to a log or a webhook.
//
// Every request has an audit ID, the Audit-ID header ([With]), which the client sends or the server generates, and
// which the response returns. If there is a policy, an [Auditor] evaluates it for each request and creates an event for
// each stage that the policy does not omit ([Auditor.Serve], [Auditor.Refused]). Handlers add data to the event:
// [Annotate], [Request], [Patch], [Status]; all of them do nothing without auditing. An event is encoded once
// (encode.go) and passed to each [Backend]: a log ([NewLog], [File]) or a webhook ([NewWebhook]), whose [Mode] decides
// whether the request waits.
//
// # Concurrency and bounds
//
// An Auditor is safe for concurrent use; [Auditor.Run] owns the goroutines of its backends and returns when all accepted
// events are sent. In batch mode no request ever waits: the number and bytes of buffered events are bounded, and further
// events are dropped and counted ([Counters]).
package audit

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/util/uuid"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Header is the header of the audit ID, in requests and responses.
const Header = "Audit-Id"

type key struct{}

// With adds the request's audit ID to its context and to the response's headers.
func With(w http.ResponseWriter, r *http.Request) *http.Request {
	id := r.Header.Get(Header)
	if id == "" {
		id = string(uuid.NewUUID())
	}
	w.Header()[Header] = []string{id}
	return r.WithContext(context.WithValue(r.Context(), key{}, id))
}

// ID returns the audit ID of ctx's request; empty if it has none.
func ID(ctx context.Context) string {
	id, _ := ctx.Value(key{}).(string)
	return id
}

// Annotate adds an annotation to the audit event of ctx's request; it does nothing without auditing. The first value of
// a key stays. Upstream's audit.AddAuditAnnotation has the same effect, so annotations of libraries work too.
func Annotate(ctx context.Context, key, value string) {
	audit.AddAuditAnnotation(ctx, key, value)
}

// AnnotateAt is Annotate for data that only belongs into events of a level and above, such as a webhook's patch.
func AnnotateAt(ctx context.Context, level auditinternal.Level, key, value string) {
	if Reaches(ctx, level) {
		audit.AddAuditAnnotation(ctx, key, value)
	}
}

// Reaches reports whether the request is audited at the level or above. Callers check it before they compute expensive
// data.
func Reaches(ctx context.Context, level auditinternal.Level) bool {
	ac := audit.AuditContextFrom(ctx)
	return ac != nil && ac.GetEventLevel().GreaterOrEqual(level)
}

// Decided records the authorization decision and its reason for ctx's request.
func Decided(ctx context.Context, allowed bool, reason string) {
	ac := audit.AuditContextFrom(ctx)
	if !ac.Enabled() {
		return
	}
	decision := "forbid"
	if allowed {
		decision = "allow"
	}
	audit.AddAuditAnnotations(ctx, "authorization.k8s.io/decision", decision, "authorization.k8s.io/reason", reason)
}

// Undecided records that authorization failed with an error.
func Undecided(ctx context.Context) {
	audit.AddAuditAnnotation(ctx, "authorization.k8s.io/reason", "internal error")
}

// Impersonated records the impersonated user of the request. constraint is the verb that allowed constrained
// impersonation.
func Impersonated(ctx context.Context, who user.Info, constraint string) {
	audit.LogImpersonatedUser(ctx, who, constraint)
}
