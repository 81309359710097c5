// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver/audit"
)

// checkAudit refuses invalid settings, before anything is written.
func checkAudit(a *options.Audit) error {
	var errs []error
	if l := &a.Log; l.Path != "" {
		errs = append(errs, checkAuditBackend("log", l.Batch, l.Truncate, l.Version, options.AuditBlocking))
		if f := cmp.Or(l.Format, options.AuditFormatJSON); f != options.AuditFormatJSON && f != options.AuditLegacy {
			errs = append(errs, fmt.Errorf("invalid audit log format %s, allowed formats are %q", f, "legacy,json")) // upstream's words
		}
		for flag, n := range map[string]*int{"maxage": l.MaxAge, "maxbackup": l.MaxBackups, "maxsize": l.MaxSize} {
			if n != nil && *n < 0 {
				errs = append(errs, fmt.Errorf("--audit-log-%s %d can't be a negative number", flag, *n)) // upstream's words
			}
		}
	}
	if w := &a.Webhook; w.ConfigFile != "" {
		errs = append(errs, checkAuditBackend("webhook", w.Batch, w.Truncate, w.Version, options.AuditModeBatch))
	}
	if err := errors.Join(errs...); err != nil || a.PolicyFile == "" {
		return err
	}
	if _, err := os.ReadFile(a.PolicyFile); err != nil {
		return fmt.Errorf("read audit policy: %w", err)
	}
	return nil
}

// checkAuditBackend returns errors in upstream's words.
func checkAuditBackend(name string, b options.AuditBatch, t options.AuditTruncate, version, mode string) error {
	var errs []error
	switch mode = cmp.Or(b.Mode, mode); mode {
	case options.AuditBlocking, options.AuditStrict:
	case options.AuditModeBatch:
		if n := or(b.BufferSize, 1); n <= 0 {
			errs = append(errs, fmt.Errorf("invalid audit batch %s buffer size %d, must be a positive number", name, n))
		}
		if n := or(b.MaxSize, 1); n <= 0 {
			errs = append(errs, fmt.Errorf("invalid audit batch %s max batch size %d, must be a positive number", name, n))
		}
		if or(b.Throttle, name == "webhook") {
			if n := or(b.QPS, 1); n <= 0 {
				errs = append(errs, fmt.Errorf("invalid audit batch %s throttle QPS %v, must be a positive number", name, n))
			}
			if n := or(b.Burst, 1); n <= 0 {
				errs = append(errs, fmt.Errorf("invalid audit batch %s throttle burst %d, must be a positive number", name, n))
			}
		}
	default:
		errs = append(errs, fmt.Errorf("invalid audit %s mode %s, allowed modes are %q", name, mode, "batch,blocking,blocking-strict"))
	}
	event, batch := or(t.MaxEventSize, options.AuditMaxEventBytes), or(t.MaxBatchSize, options.AuditMaxBatchBytes)
	switch {
	case event <= 0:
		errs = append(errs, fmt.Errorf("invalid audit truncate %s max event size %d, must be a positive number", name, event))
	case batch < event:
		errs = append(errs, fmt.Errorf("invalid audit truncate %s max batch size %d, must be greater than max event size (%d)", name, batch,
			event))
	}
	if v := cmp.Or(version, options.AuditVersion); v != options.AuditVersion {
		errs = append(errs, fmt.Errorf("invalid group version, allowed versions are %q", []string{options.AuditVersion}))
	}
	return errors.Join(errs...)
}

// or returns *p, or without if p is nil.
func or[T any](p *T, without T) T {
	if p == nil {
		return without
	}
	return *p
}

// makeAuditor reads the policy and opens the backends. It returns nil without a policy or without a backend.
func makeAuditor(a *options.Audit, log *slog.Logger, ledger *extension.Ledger, egress *egress.Selector) (*audit.Auditor, error) {
	if a.PolicyFile == "" {
		return nil, nil
	}
	b, err := os.ReadFile(a.PolicyFile)
	if err != nil {
		return nil, fmt.Errorf("read audit policy: %w", err)
	}
	policy, err := audit.ReadPolicy(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.PolicyFile, err)
	}
	var backends []audit.Backend
	if w := &a.Webhook; w.ConfigFile != "" {
		wo := audit.WebhookOptions{
			Dial: egress.ControlPlane(),
			Mode: audit.Mode(cmp.Or(w.Batch.Mode, options.AuditModeBatch)), Truncate: truncation(w.Truncate),
			Backoff: or(w.InitialBackoff, options.AuditInitialBackoff), Buffer: or(w.Batch.BufferSize, options.AuditBufferSize),
			BatchSize: or(w.Batch.MaxSize, options.AuditBatchSize), BatchWait: or(w.Batch.MaxWait, options.AuditMaxWait),
		}
		if or(w.Batch.Throttle, true) {
			wo.Rate, wo.Burst = or(w.Batch.QPS, options.AuditQPS), or(w.Batch.Burst, options.AuditBurst)
		}
		webhook, err := audit.NewWebhook(w.ConfigFile, ledger, wo)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.ConfigFile, err)
		}
		backends = append(backends, webhook)
	}
	if l := &a.Log; l.Path != "" {
		out := io.Writer(os.Stdout)
		if l.Path != "-" {
			if out, err = audit.OpenFile(audit.FileOptions{
				Path: l.Path, MaxSize: int64(or(l.MaxSize, options.AuditMaxSize)) << 20,
				MaxAge:     time.Duration(or(l.MaxAge, options.AuditMaxAge)) * 24 * time.Hour,
				MaxBackups: or(l.MaxBackups, options.AuditMaxBackups), Compress: l.Compress, Log: log, Clock: clock.RealClock{},
			}); err != nil {
				return nil, err
			}
		}
		backends = append([]audit.Backend{audit.NewLog(out, audit.LogOptions{
			Mode: audit.Mode(cmp.Or(l.Batch.Mode, options.AuditBlocking)), Legacy: l.Format == options.AuditLegacy,
			Truncate: truncation(l.Truncate), Buffer: or(l.Batch.BufferSize, options.AuditBufferSize),
		})}, backends...)
	}
	if len(backends) == 0 {
		return nil, nil
	}
	return audit.New(policy, log, backends...), nil
}

func truncation(t options.AuditTruncate) audit.Truncate {
	if !t.Enabled {
		return audit.Truncate{}
	}
	return audit.Truncate{Event: or(t.MaxEventSize, options.AuditMaxEventBytes), Batch: or(t.MaxBatchSize, options.AuditMaxBatchBytes)}
}
