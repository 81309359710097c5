// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package encryption

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"time"

	"github.com/mortise-dev/mortise/internal/apiserver/reload"
)

const (
	reread      = time.Minute
	healthyIn   = 10 * time.Second // minimum time for new plug-ins to become healthy
	healthRetry = 100 * time.Millisecond
)

// Run follows the file until ctx ends, if reloads are enabled. A new configuration takes effect once its plug-ins are
// healthy. An invalid file is logged and counted, and changes nothing.
func (t *Transformers) Run(ctx context.Context) error {
	if !t.opts.Reload {
		<-ctx.Done()
		return ctx.Err()
	}
	refused := ""
	reload.Watch(ctx, reread, t.opts.Log, func() {
		if err := t.Reload(ctx); err != nil && ctx.Err() == nil {
			t.metrics.reloaded(false, time.Now())
			if refused != err.Error() {
				refused = err.Error()
				t.opts.Log.ErrorContext(ctx, "Could not reload the encryption configuration, keeping the previous one", "file", t.file, "error", err)
			}
		} else {
			refused = ""
		}
	}, t.file)
	return ctx.Err()
}

// Reload applies the current content of the file if it has changed.
func (t *Transformers) Reload(ctx context.Context) error {
	data, err := os.ReadFile(t.file)
	if err != nil {
		return fmt.Errorf("read encryption configuration: %w", err)
	}
	old := t.current.Load()
	if fmt.Sprintf("sha256:%x", sha256.Sum256(data)) == old.hash {
		return nil
	}
	c, err := Parse(t.file, data, true)
	if err != nil {
		return err
	}
	s, live, err := t.setUp(c)
	if err != nil {
		return err
	}
	if err := s.healthy(ctx); err != nil {
		s.end()
		return fmt.Errorf("check health of KMS plug-ins: %w", err)
	}
	t.register(s)
	t.follow(live, s)
	t.current.Store(s)
	now := time.Now()
	t.metrics.reloaded(true, now)
	t.metrics.inForce(s.hash)
	t.opts.Log.InfoContext(ctx, "Reloaded the encryption configuration", "file", t.file, "hash", s.hash)
	t.group.Go(func() { // requests in flight may use the old one for a while
		timer := time.NewTimer(old.grace())
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-t.context.Done():
		}
		old.end()
	})
	return nil
}

// healthy waits a limited time until all plug-ins are healthy.
func (s *setup) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(s.grace(), healthyIn))
	defer cancel()
	for {
		err := s.check(ctx)
		if err == nil {
			return nil
		}
		timer := time.NewTimer(healthRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
	}
}
