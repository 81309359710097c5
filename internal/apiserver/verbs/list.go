// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"net/http"

	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/store"
)

// list answers with the objects of a kind, all from one revision.
func list(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	s, err := q.listOptions()
	if err != nil {
		return err
	}
	found, err := q.reader.List(q.ctx, q.kind, q.ns, s)
	if err == nil {
		err = q.respondList(http.StatusOK, found)
	}
	if e := (*store.UnreadableError)(nil); errors.As(err, &e) {
		return unreadableList(q, e)
	}
	return err
}

// unreadableList returns the error of a list that has found an object that cannot be read: it names all there are.
func unreadableList(q *req, found *store.UnreadableError) error {
	all, err := q.reader.Unreadable(q.ctx, q.kind, q.ns, status.MaxUnreadable)
	if err != nil {
		return err
	}
	if len(all) == 0 { // it is gone meanwhile, or was of an older revision
		all = []*store.UnreadableError{found}
	}
	return status.UnreadableList(q.kind.GroupResource(), all)
}
