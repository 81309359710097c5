// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/store"
)

// unreadObjects tells of stored objects that cannot be decoded: by a metric, and by a line of the log for each.
type unreadObjects struct {
	*prometheus.CounterVec
	log *slog.Logger
}

func newUnreadObjects(log *slog.Logger) *unreadObjects {
	return &unreadObjects{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_storage_decode_errors_total", // upstream's words
		Help: "[ALPHA] Number of stored object decode errors split by object type",
	}, []string{"group", "resource"}), log}
}

func (u *unreadObjects) note(r schema.GroupResource, e *store.UnreadableError, first bool) {
	u.WithLabelValues(r.Group, r.Resource).Inc()
	if first {
		u.log.Error("An object in the store cannot be read; lists of its kind fail until it is deleted or replaced", "key", e.Key,
			"revision", e.Revision, "error", e.Err)
	}
}
