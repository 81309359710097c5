// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"bytes"
	"errors"
	"net/http"
)

// A registration may lead back here: its service is default/kubernetes, say, or one whose endpoints are this server's. A
// request would then loop until its deadline, and hold a connection and a place in the gate at each turn. A request that
// loops comes with the certificate of our own front proxy, which no one else has: so no header is needed that could be
// forged or removed. The server's requests to itself for its own discovery and documents are no loop.

// errLoop is what a probe finds.
var errLoop = errors.New("the service leads back to this API server")

const textLoop = "the APIService leads back to this API server"

// cameRound is true of a request that this server sent itself.
func (a *Aggregator) cameRound(r *http.Request) bool {
	if a.o.Certificate == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	own := a.o.Certificate()
	return own != nil && len(own.Certificate) > 0 && bytes.Equal(own.Certificate[0], r.TLS.PeerCertificates[0].Raw)
}
