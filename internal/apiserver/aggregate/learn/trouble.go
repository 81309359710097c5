// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package learn

import "context"

// Reasons of a [Trouble].
const (
	NoAnswer      = "NoAnswer"      // or none that came to an end in time
	TooLong       = "TooLong"       // an answer without an end, or nearly so
	Refused       = "Refused"       // a status other than 200
	NotUnderstood = "NotUnderstood" // an answer that is no list of resources
)

// Trouble is the reason why discovery or OpenAPI of a server is not known.
type Trouble struct {
	Reason string
	URL    string // what was asked for, at the server's own name
	Err    error
}

// Error implements error.
func (t *Trouble) Error() string { return t.Err.Error() }

// Unwrap returns what went wrong.
func (t *Trouble) Unwrap() error { return t.Err }

func (r *Remote) trouble(reason, path string, err error) *Trouble {
	to := *r.Base
	to.Path = path
	return &Trouble{reason, to.String(), err}
}

// tell reports for each group version whether discovery of the server succeeded; troubles are keyed by the name of the
// APIService. One failure may be chance, as when a server restarts: tell reports trouble that occurs twice in succession,
// in one state of the registration.
func (s *server) tell(ctx context.Context, remotes []Remote, troubles map[string]error) {
	if s.learner.o.Told == nil || ctx.Err() != nil {
		return // a worker that ends found out nothing
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
