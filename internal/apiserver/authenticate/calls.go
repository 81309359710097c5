// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"fmt"
	"net/http"

	"github.com/mortise-dev/mortise/extension"
)

// booked records each HTTP request to an extension as a call in the ledger. A response with a status of 400 or above
// counts as a failed call, and is returned as well.
type booked struct {
	ledger *extension.Ledger
	ref    extension.Ref
	next   http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (b *booked) RoundTrip(r *http.Request) (*http.Response, error) {
	var resp *http.Response
	var own error
	err := b.ledger.Call(r.Context(), b.ref, extension.Policy{}, func(ctx context.Context) error {
		resp, own = b.next.RoundTrip(r.WithContext(ctx))
		if own == nil && resp.StatusCode >= http.StatusBadRequest {
			return fmt.Errorf("answered %s", resp.Status)
		}
		return own
	})
	if resp != nil {
		return resp, nil
	}
	if own != nil {
		return nil, own
	}
	return nil, err
}
