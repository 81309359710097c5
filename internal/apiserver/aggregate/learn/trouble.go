// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package learn

import "context"

// Reasons of a [Trouble].
const (
	NoAnswer      = "NoAnswer"      // no response, or an incomplete one
	TooLong       = "TooLong"       // the response is too large
	Refused       = "Refused"       // a status other than 200
	NotUnderstood = "NotUnderstood" // the response is not a list of resources
)

// Trouble is the reason why discovery or OpenAPI of a server is not known.
type Trouble struct {
	Reason string
	URL    string // the requested URL, with the server's own name
	Err    error
}

// Error implements error.
func (t *Trouble) Error() string { return t.Err.Error() }

// Unwrap returns the cause.
func (t *Trouble) Unwrap() error { return t.Err }

func (r *Remote) trouble(reason, path string, err error) *Trouble {
	to := *r.Base
	to.Path = path
	return &Trouble{reason, to.String(), err}
}

// tell reports for each group version whether discovery of the server succeeded; troubles are keyed by the name of the
// APIService. One failure may be chance, such as a restart of the server. So tell reports a trouble only if it occurs
// twice in succession in one state of the registration.
func (s *server) tell(ctx context.Context, remotes []Remote, troubles map[string]error) {
	if s.learner.o.Told == nil || ctx.Err() != nil {
		return // a worker that ends has no result
	}
	was := s.doubts
	s.doubts = map[string]string{}
	for i := range remotes {
		r := &remotes[i]
		err := troubles[r.Name]
		if err != nil {
			s.doubts[r.Name] = r.State
			if state, twice := was[r.Name]; !twice || state != r.State {
				continue
			}
		}
		s.learner.o.Told(r, err)
	}
}
