// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// Audit configures the audit log and webhook. Without a policy there are no events. Nil and empty fields have kube-apiserver's defaults.
type Audit struct {
	// PolicyFile is a Policy of audit.k8s.io/v1.
	PolicyFile string
	Log        AuditLog
	Webhook    AuditWebhook
}

// AuditLog is a file of events.
type AuditLog struct {
	// Path of the file; "-" is standard output; empty: no log.
	Path string
	// MaxAge is the number of days that old files are kept, MaxBackups the number of files; 0: no limit. Nil: 366 and 100.
	MaxAge, MaxBackups *int
	// MaxSize is the size in megabytes at which a file is rotated; 0: no limit. Nil: 100.
	MaxSize *int
	// Compress compresses rotated files.
	Compress bool
	// Format is json or legacy; empty: json.
	Format string
	// Version of the events; empty: audit.k8s.io/v1, the only one.
	Version  string
	Batch    AuditBatch
	Truncate AuditTruncate
}

// AuditWebhook is a server that receives events.
type AuditWebhook struct {
	// ConfigFile is a kubeconfig: the cluster is the webhook, the user is this server. Empty: no webhook.
	ConfigFile string
	// InitialBackoff is the pause after a failed call; nil: 10 s.
	InitialBackoff *time.Duration
	// Version of the events; empty: audit.k8s.io/v1, the only one.
	Version  string
	Batch    AuditBatch
	Truncate AuditTruncate
}

// AuditBatch configures whether requests wait for their events, and if not, how events are batched.
type AuditBatch struct {
	// Mode is batch, blocking or blocking-strict; empty: blocking for a log, batch for a webhook.
	Mode string
	// BufferSize is the number of events that may wait, MaxSize the number in one batch; nil: 10000, and 400 to a webhook.
	BufferSize, MaxSize *int
	// MaxWait is the longest time to wait for a full batch; nil: 30 s for a webhook.
	MaxWait *time.Duration
	// Throttle limits the batches per second to QPS and Burst; nil: for a webhook, 10 and 15.
	Throttle *bool
	QPS      *float32
	Burst    *int
}

// AuditTruncate limits the sizes of events.
type AuditTruncate struct {
	Enabled bool
	// MaxBatchSize and MaxEventSize are in bytes; nil: 10 MiB and 100 KiB.
	MaxBatchSize, MaxEventSize *int64
}

// The defaults of flags that are not set.
const (
	AuditMaxSize, AuditMaxAge, AuditMaxBackups = 100, 366, 100
	AuditBufferSize, AuditBatchSize            = 10000, 400
	AuditQPS, AuditBurst                       = 10, 15
	AuditMaxBatchBytes, AuditMaxEventBytes     = 10 << 20, 100 << 10
	AuditMaxWait, AuditInitialBackoff          = 30 * time.Second, 10 * time.Second
	AuditVersion, AuditFormatJSON, AuditLegacy = "audit.k8s.io/v1", "json", "legacy"
	AuditModeBatch, AuditBlocking, AuditStrict = "batch", "blocking", "blocking-strict"
)

func (o *Audit) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.PolicyFile, "audit-policy-file", o.PolicyFile, "File of the audit policy. Without it the server writes no audit events.")
	l, w := &o.Log, &o.Webhook
	f.StringVar(&l.Path, "audit-log-path", l.Path, "File to which the server writes audit events. - means standard output.")
	f.Var(&numeral[int]{&l.MaxAge, AuditMaxAge}, "audit-log-maxage",
		"Number of days for which rotated audit log files are kept. 0 keeps them forever.")
	f.Var(&numeral[int]{&l.MaxBackups, AuditMaxBackups}, "audit-log-maxbackup", "Number of rotated audit log files to keep. 0 keeps all.")
	f.Var(&numeral[int]{&l.MaxSize, AuditMaxSize}, "audit-log-maxsize",
		"Size in megabytes at which the audit log file is rotated. 0 never rotates it.")
	f.BoolVar(&l.Compress, "audit-log-compress", l.Compress, "Compress rotated audit log files with gzip.")
	f.StringVar(&l.Format, "audit-log-format", l.Format,
		"Format of the audit log: json, or legacy for one line of text per event. Default: json.")
	f.StringVar(&l.Version, "audit-log-version", l.Version, "API version of the events in the audit log. Default: "+AuditVersion+".")
	l.Batch.addFlags(f, "log", AuditBlocking, 1, false)
	l.Truncate.addFlags(f, "log")
	f.StringVar(&w.ConfigFile, "audit-webhook-config-file", w.ConfigFile, "File of a kubeconfig of the webhook that receives audit events.")
	backoff := &span{&w.InitialBackoff, AuditInitialBackoff}
	f.Var(backoff, "audit-webhook-initial-backoff", "Time to wait before the first retry of a failed audit webhook call.")
	f.Var(backoff, "audit-webhook-batch-initial-backoff", "Time to wait before the first retry of a failed audit webhook call.")
	f.Lookup("audit-webhook-batch-initial-backoff").Deprecated = "use --audit-webhook-initial-backoff instead"
	f.Lookup("audit-webhook-batch-initial-backoff").Hidden = true
	f.StringVar(&w.Version, "audit-webhook-version", w.Version,
		"API version of the events sent to the audit webhook. Default: "+AuditVersion+".")
	w.Batch.addFlags(f, "webhook", AuditModeBatch, AuditBatchSize, true)
	w.Truncate.addFlags(f, "webhook")
}

func (o *AuditBatch) addFlags(f *pflag.FlagSet, to, mode string, size int, throttle bool) {
	prefix := "audit-" + to + "-"
	f.StringVar(&o.Mode, prefix+"mode", o.Mode, "Whether requests wait for their audit events: batch, blocking or blocking-strict. Default: "+
		mode+".")
	f.Var(&numeral[int]{&o.BufferSize, AuditBufferSize}, prefix+"batch-buffer-size",
		"Number of events to buffer in batch mode. When the buffer is full, events are dropped.")
	f.Var(&numeral[int]{&o.MaxSize, size}, prefix+"batch-max-size", "Maximum number of events in a batch, in batch mode.")
	f.Var(&span{&o.MaxWait, AuditMaxWait}, prefix+"batch-max-wait",
		"Maximum time for which an event waits for its batch to fill, in batch mode.")
	addSwitch(f, &o.Throttle, prefix+"batch-throttle-enable", throttle, "Limit the rate of batches, in batch mode.")
	f.Var(&numeral[float32]{&o.QPS, AuditQPS}, prefix+"batch-throttle-qps", "Maximum average number of batches per second, in batch mode.")
	f.Var(&numeral[int]{&o.Burst, AuditBurst}, prefix+"batch-throttle-burst",
		"Maximum number of batches sent at the same moment if the average was lower before, in batch mode.")
}

func (o *AuditTruncate) addFlags(f *pflag.FlagSet, to string) {
	prefix := "audit-" + to + "-truncate-"
	f.BoolVar(&o.Enabled, prefix+"enabled", o.Enabled,
		"Truncate events that are too large: remove their objects, and drop them if that is not enough.")
	f.Var(&numeral[int64]{&o.MaxBatchSize, AuditMaxBatchBytes}, prefix+"max-batch-size", "Maximum size of a batch in bytes.")
	f.Var(&numeral[int64]{&o.MaxEventSize, AuditMaxEventBytes}, prefix+"max-event-size", "Maximum size of an event in bytes.")
}

// numeral is a flag of a number; it is nil until it is set.
type numeral[T int | int64 | float32] struct {
	to      **T
	without T // the default
}

func (v *numeral[T]) Set(s string) error {
	var n T
	switch p := any(&n).(type) {
	case *float32:
		x, err := strconv.ParseFloat(s, 32)
		if err != nil {
			return err
		}
		*p = float32(x)
	default:
		x, err := strconv.ParseInt(s, 0, 64)
		if err != nil {
			return err
		}
		n = T(x)
	}
	*v.to = &n
	return nil
}

func (v *numeral[T]) String() string {
	if v.to == nil || *v.to == nil {
		return fmt.Sprint(v.without)
	}
	return fmt.Sprint(**v.to)
}

func (v *numeral[T]) Type() string { return fmt.Sprintf("%T", v.without) }

// Given reports whether the flag has a value.
func (v *numeral[T]) Given() bool { return v.to != nil && *v.to != nil }
