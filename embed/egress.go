// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"

	"github.com/mortise-dev/mortise/extension/egress"
)

// checkEgress reads by which way connections leave.
func checkEgress(_ context.Context, p *parts, o *settled) (err error) {
	p.egress, err = egress.Load(o.apiserver.Egress.ConfigFile, p.ledger)
	return err
}
