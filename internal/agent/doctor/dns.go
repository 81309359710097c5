// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"

	"github.com/mortise-dev/mortise/internal/agent/dns"
)

// checkDNS queries the cluster DNS of a running node.
func checkDNS(ctx context.Context, e *examination) []Finding {
	if !e.inUse {
		return []Finding{{State: OK, What: "not asked: the node does not run"}}
	}
	addresses, err := dns.Probe(ctx)
	switch {
	case err != nil:
		return []Finding{{State: Wrong, What: fmt.Sprintf("the cluster DNS does not answer pods: %v", err), Do: "see the node's log"}}
	case len(addresses) == 0:
		return []Finding{{
			State: Note, What: "this node does not serve the cluster DNS",
			Do: "if the cluster has no other, create the Service kube-system/kube-dns: `mortise token create` does",
		}}
	}
	return []Finding{{State: OK, What: fmt.Sprintf("the cluster DNS answers at %s", addresses[0])}}
}
