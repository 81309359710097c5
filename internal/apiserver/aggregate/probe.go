// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// Times of probes; upstream's where it has them.
const (
	probeAgain    = 30 * time.Second // interval between probes
	probeTime     = 5 * time.Second  // of one attempt
	probeAttempts = 5
	probeAhead    = 500 * time.Millisecond // delay before the concurrent attempts begin
	backOffFirst  = 5 * time.Millisecond
	backOffMost   = 30 * time.Second
)

// keep checks the availability of a server and writes it to its registration, until ctx ends.
func (a *Aggregator) keep(ctx context.Context, e *entry) {
	wait := backOffFirst
	for {
		again := probeAgain
		if err := a.check(ctx, e); err != nil {
			again, wait = wait, min(2*wait, backOffMost)
		} else {
			wait = backOffFirst
		}
		t := a.o.Clock.NewTimer(again)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C():
		case <-e.wake:
			t.Stop()
			wait = backOffFirst
		}
	}
}

// check probes the server once and writes the condition. The error is the server's, or that of the write.
func (a *Aggregator) check(ctx context.Context, e *entry) error {
	a.mu.Lock()
	s := e.service
	a.mu.Unlock()
	found, err := a.find(ctx, s)
	if ctx.Err() != nil {
		return nil
	}
	if e := a.write(ctx, s, found); e != nil && ctx.Err() == nil {
		a.o.Log.WarnContext(ctx, "Could not write the condition of a registration", "kind", a.o.Form.Kind, "name", s.Name, "error", e)
		return e
	}
	if found.status != apiregistrationv1.ConditionTrue {
		e.reading.Store(nil) // earlier read errors do not count once the server is available again
	}
	return err
}

// probe requests the group version that the server must serve. It makes one attempt first. If that fails or takes long,
// it makes the others concurrently, so that one of several endpoints is enough. The error is that of the last attempt
// to fail.
func (a *Aggregator) probe(ctx context.Context, s *Service) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error, probeAttempts)
	attempt := func() { go func() { results <- a.attempt(ctx, s) }() }
	attempt()
	ahead := a.o.Clock.NewTimer(probeAhead)
	defer ahead.Stop()
	under, made := 1, 1
	for {
		var err error
		select {
		case <-ahead.C():
		case err = <-results:
			if err == nil {
				return nil
			}
			under--
		}
		for ; made < probeAttempts; made++ {
			attempt()
			under++
		}
		if under == 0 {
			return err
		}
	}
}

// attempt is one GET.
func (a *Aggregator) attempt(ctx context.Context, s *Service) error {
	host, err := s.host(ctx)
	if err != nil {
		return err
	}
	if s.way.err != nil {
		return s.way.err
	}
	url := "https://" + host + s.root()
	client := &http.Client{
		Transport: &fixed{s, host}, Timeout: probeTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode >= http.StatusOK && resp.StatusCode < http.StatusMultipleChoices {
			return nil
		}
		err = fmt.Errorf("bad status from %v: %d", url, resp.StatusCode)
		if resp.StatusCode == http.StatusLoopDetected {
			err = errLoop
		}
	}
	s.way.close()
	return fmt.Errorf("failing or missing response from %v: %w", url, err)
}

// fixed is the transport to one endpoint of a server.
type fixed struct {
	service *Service
	host    string
}

// RoundTrip implements [http.RoundTripper].
func (f *fixed) RoundTrip(r *http.Request) (*http.Response, error) {
	out := r.Clone(r.Context())
	identify(out.Header, Discovery())
	return f.service.send(out)
}

// keepLocals writes the condition of registrations without a service, until ctx ends.
func (a *Aggregator) keepLocals(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.due:
		}
		a.mu.Lock()
		names := a.locals
		a.locals = map[string]bool{}
		a.mu.Unlock()
		for name := range names {
			err := a.o.Backend().UpdateStatus(ctx, registrations, "", name, writer, local)
			if err != nil && !apierrors.IsNotFound(err) && !errors.Is(err, context.Canceled) {
				a.o.Log.WarnContext(ctx, "Could not write the condition of an APIService", "name", name, "error", err)
			}
		}
	}
}
