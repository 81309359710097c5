// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package audit gives every request an identity: the Audit-ID header, taken from the client when it sends one, drawn otherwise,
// and sent with the answer. Events for audit policies hang on the same identity.
package audit

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/util/uuid"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
)

// Header carries the identity, both ways.
const Header = "Audit-Id"

type key struct{}

// With answers with the request's identity in its context and in the answer's headers.
func With(w http.ResponseWriter, r *http.Request) *http.Request {
	id := r.Header.Get(Header)
	if id == "" {
		id = string(uuid.NewUUID())
	}
	w.Header()[Header] = []string{id}
	return r.WithContext(context.WithValue(r.Context(), key{}, id))
}

// ID is the identity of the request that the context belongs to; empty if it has none.
func ID(ctx context.Context) string {
	id, _ := ctx.Value(key{}).(string)
	return id
}

// Annotate adds an annotation to the audit event of the request that ctx belongs to; nothing when nobody audits it. The first
// value of a key stays. It is what upstream's audit.AddAuditAnnotation does, so that libraries that call that annotate too.
func Annotate(ctx context.Context, key, value string) {
	audit.AddAuditAnnotation(ctx, key, value)
}

// AnnotateAt is Annotate for what belongs only into events of a level, and above: a webhook's patch, say.
func AnnotateAt(ctx context.Context, level auditinternal.Level, key, value string) {
	if Reaches(ctx, level) {
		audit.AddAuditAnnotation(ctx, key, value)
	}
}

// Reaches says whether the request is audited at the level or above, for what is costly to make.
func Reaches(ctx context.Context, level auditinternal.Level) bool {
	ac := audit.AuditContextFrom(ctx)
	return ac != nil && ac.GetEventLevel().GreaterOrEqual(level)
}
