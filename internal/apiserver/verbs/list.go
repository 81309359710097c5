// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import "net/http"

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
	if err != nil {
		return err
	}
	return q.respondList(http.StatusOK, found)
}
