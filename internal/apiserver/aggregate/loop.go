// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"bytes"
	"errors"
	"net/http"
)

// A registration may lead back to this server: its service is default/kubernetes, for example, or its endpoints are
// this server's. A request would then loop until its deadline, and hold a connection and a token of the gate each time.
// A request that loops presents the certificate of our own front proxy, which no one else has, so the check needs no
// header that could be forged or removed. The server's requests to itself for its own discovery and documents are not
// loops.

// errLoop is the result of a probe that finds a loop.
var errLoop = errors.New("the service leads back to this API server")

const textLoop = "the APIService leads back to this API server"

// cameRound reports whether this server itself sent the request.
func (a *Aggregator) cameRound(r *http.Request) bool {
	if a.o.Certificate == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	own := a.o.Certificate()
	return own != nil && len(own.Certificate) > 0 && bytes.Equal(own.Certificate[0], r.TLS.PeerCertificates[0].Raw)
}
