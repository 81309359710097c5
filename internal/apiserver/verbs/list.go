// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	found, err := q.find(q.ctx, q.kind, q.ns, s)
	if err != nil {
		return err
	}
	return q.respondList(http.StatusOK, found)
}

// found is what a list came to. Records that need not be decoded to be selected are not.
type found struct {
	records []*store.Record
	meta    metav1.ListMeta
}
