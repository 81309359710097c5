// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"fmt"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// Readable is the type of the condition that reports whether the server's discovery and OpenAPI are readable. Available
// only reports that the server responds. The condition appears beside Available when an available server could not be
// read for the first time; other registrations do not have it.
const Readable apiregistrationv1.APIServiceConditionType = "DiscoveryReadable"

// reading is the result of the latest discovery of a server. Empty: it succeeded.
type reading struct{ reason, message string }

// Read receives the result of discovery at host (that of [Service.URL]) for a registration. Reason and message are empty if
// it succeeded. It does nothing for a server that is not available: that explains the failure.
func (a *Aggregator) Read(name, host, reason, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entries[name]
	if e == nil || e.service.URL("").Host != host {
		return // the registration names another server by now
	}
	if reason != "" && !e.service.Available {
		return
	}
	now := &reading{reason, clip(message)}
	was := e.reading.Swap(now)
	if was == nil && *now == (reading{}) && e.service.Unreadable == "" || was != nil && *was == *now {
		return
	}
	e.poke()
}

// Read is [Aggregator.Read] for the service.
func (s *Service) Read(reason, message string) {
	s.aggregator.Read(s.Name, s.URL("").Host, reason, message)
}

// finding returns the new content of the condition after a probe of the registration's availability; false: the condition stays.
func (r *reading) finding(of *apiregistrationv1.APIService, availability finding) (finding, bool) {
	switch {
	case r == nil || availability.status != apiregistrationv1.ConditionTrue:
		return finding{}, false
	case r.reason != "":
		return finding{Readable, apiregistrationv1.ConditionFalse, r.reason, r.message}, true
	case condition(of, Readable) == nil:
		return finding{}, false
	}
	return finding{Readable, apiregistrationv1.ConditionTrue, "Read", "the server's discovery and OpenAPI documents are readable"}, true
}

// unread returns the warning for discovery of a server that cannot be read; empty: none.
func (s *Service) unread() string {
	if s.Unreadable == "" {
		return ""
	}
	return fmt.Sprintf(`299 - "%s: %s is False: %s"`, s.Title(), Readable, s.Unreadable)
}
