// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
)

// page is the source of manifests at a URL.
type page struct {
	o      Options
	client *http.Client
	data   []byte
}

func newPage(o Options) *page {
	return &page{o: o, client: &http.Client{Timeout: 10 * time.Second}}
}

// run polls: there is no notification of changed URLs.
func (p *page) run(ctx context.Context) error {
	var failures backoff.Failures
	failing := false
	ticker := p.o.Clock.NewTicker(p.o.URLPeriod)
	defer ticker.Stop()
	for {
		err := p.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			failing = true
			failures.Log(p.o.Clock.Now(), p.o.Logger.Warn, "Could not read static pods, retrying", "url", p.o.URL, "err", err)
		case failing:
			failing = false
			failures.Clear()
			p.o.Logger.Info("Read static pods again after a failure", "url", p.o.URL)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

func (p *page) look(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.o.URL, nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	for name, values := range p.o.Header {
		request.Header[http.CanonicalHeaderKey(name)] = values
	}
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, largest+1))
	switch {
	case err != nil:
		return fmt.Errorf("read answer: %w", err)
	case response.StatusCode != http.StatusOK:
		return errors.New(response.Status)
	case len(data) > largest:
		return fmt.Errorf("the answer is larger than %d bytes", largest)
	case len(data) == 0:
		p.data = nil
		p.o.Set(HTTP, nil)
		return errors.New("zero-length data received") // upstream's words
	case bytes.Equal(data, p.data):
		return nil
	}
	p.data = data
	pods, err := p.o.Decode(data, p.o.URL, false)
	if err != nil {
		return err
	}
	p.o.Set(HTTP, pods)
	return nil
}
