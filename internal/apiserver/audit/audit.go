// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package audit gives every request an identity: the Audit-ID header, taken from the client when it sends one, drawn otherwise,
// and sent with the answer. Events for audit policies hang on the same identity.
package audit

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/util/uuid"
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
