// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// slow is the duration from which on the event of a request contains its latencies.
const slow = 500 * time.Millisecond

// annotateLatency adds the latencies of a slow request to its event, under the keys of apiserver.latency.k8s.io.
func annotateLatency(ctx context.Context, received time.Time) {
	took := time.Since(received)
	if received.IsZero() || took <= slow {
		return
	}
	spent := request.AuditAnnotationsFromLatencyTrackers(ctx)
	if len(spent) == 0 {
		return
	}
	spent["apiserver.latency.k8s.io/total"] = took.String()
	audit.AddAuditAnnotationsMap(ctx, spent)
}
