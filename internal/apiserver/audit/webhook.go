// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
)

var (
	errFull     = errors.New("audit buffer queue blocked")               // upstream's words
	errClosed   = errors.New("audit backend shut down")                  // upstream's words
	errTooLarge = errors.New("event is too large even after truncating") // upstream's words
)

// WebhookOptions are those of [NewWebhook].
type WebhookOptions struct {
	Mode     Mode
	Truncate Truncate
	// Backoff is the pause after a failed call; each further pause is half as long again.
	Backoff time.Duration
	// In batch mode: how many events wait, are sent at once, and how long they wait at most for more of them.
	Buffer, BatchSize int
	BatchWait         time.Duration
	// Rate and Burst bound the batches a second; Rate 0: nothing does.
	Rate  float32
	Burst int
	// Dial is the way to the webhook; nil: the ordinary one.
	Dial egress.Dial
}

const (
	tries     = 5                // of each batch
	factor    = 1.5              // from one wait to the next
	jitter    = 0.2              // of the first wait
	inFlight  = 32               // maximum of concurrent batches
	flushWait = 30 * time.Second // what is still on its way when the server ends may take so long
)

// sender posts events to a webhook.
type sender struct {
	duties
	o      WebhookOptions
	client rest.Interface
	ledger *extension.Ledger
	ref    extension.Ref
	queue  *queue
}

// NewWebhook posts events to the server that a kubeconfig names. Calls are booked under the server's host.
func NewWebhook(kubeconfig string, l *extension.Ledger, o WebhookOptions) (Backend, error) {
	config, err := webhook.LoadKubeconfig(kubeconfig, o.Dial)
	if err != nil {
		return nil, fmt.Errorf("read audit webhook configuration: %w", err)
	}
	config.ContentType = runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NegotiatedSerializerWrapper(runtime.SerializerInfo{Serializer: audit.Codecs.LegacyCodec()})
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make audit webhook client: %w", err)
	}
	client.Client = egress.SameOriginClient(client.Client)
	host := config.Host
	if u, err := url.Parse(config.Host); err == nil && u.Host != "" {
		host = u.Host
	}
	s := &sender{o: o, client: client, ledger: l, ref: extension.Ref{Point: extension.AuditWebhook, Name: host}}
	if o.Mode == Batch {
		s.queue = newQueue(o.Buffer)
	}
	l.Register(s.ref, kubeconfig)
	return s, nil
}

func (s *sender) take(e *auditinternal.Event, line []byte) bool {
	line, ok := s.o.Truncate.fit(e, line)
	if !ok {
		s.lost(pluginTruncate, 1, errTooLarge)
		return true
	}
	if s.queue == nil {
		return s.send(context.Background(), list([][]byte{line}), 1) || s.o.Mode != BlockingStrict
	}
	if err := s.queue.put(line); err != nil {
		s.lost(pluginBuffered, 1, err)
	}
	return true
}

// send posts a list of n events, as often as it takes or may.
func (s *sender) send(ctx context.Context, body []byte, n int) bool {
	p := extension.Policy{Retries: tries - 1, Factor: factor, Backoff: s.o.Backoff + time.Duration(jitter*rand.Float64()*float64(s.o.Backoff))}
	err := s.ledger.Call(ctx, s.ref, p, func(ctx context.Context) error {
		return s.client.Post().SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Error()
	})
	if err != nil {
		s.lost(pluginWebhook, n, err)
	}
	return err == nil
}

// list is lines as an EventList.
func list(lines [][]byte) []byte {
	size := 128
	for _, l := range lines {
		size += len(l)
	}
	b := append(make([]byte, 0, size), `{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[`...)
	for i, l := range lines {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		b = append(b, l[len(head):len(l)-1]...)
	}
	return append(b, "]}\n"...)
}

// run posts what is queued until ctx ends and nothing is left, or it takes too long.
func (s *sender) run(ctx context.Context) {
	if s.queue == nil {
		return
	}
	stop := context.AfterFunc(ctx, s.queue.close)
	defer stop()
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	late := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(flushWait, cancel)
		context.AfterFunc(sending, func() { t.Stop() })
	})
	defer late()
	var limit flowcontrol.RateLimiter
	if s.o.Rate > 0 {
		limit = flowcontrol.NewTokenBucketRateLimiter(s.o.Rate, s.o.Burst)
	}
	var g sync.WaitGroup
	defer g.Wait()
	slots := make(chan struct{}, inFlight)
	for {
		batch, size := s.collect()
		if len(batch) == 0 {
			return
		}
		// an abandoned batch is sent all the same: it fails immediately, and is counted
		if limit != nil {
			_ = limit.Wait(sending)
		}
		slots <- struct{}{}
		body, n := list(batch), len(batch) // from here on the lines themselves may go
		g.Go(func() {
			defer func() { <-slots; s.queue.done(size) }()
			s.send(sending, body, n)
		})
	}
}

// collect waits for events: as many as go into a batch, or those that have come within the time for that. None: there will be
// no more.
func (s *sender) collect() (batch [][]byte, size int) {
	var wait <-chan time.Time
	for len(batch) < s.o.BatchSize {
		select {
		case line, ok := <-s.queue.lines:
			if !ok {
				return batch, size
			}
			batch, size = append(batch, line), size+len(line)
			if t := s.o.Truncate.Batch; t > 0 && int64(size) >= t {
				return batch, size
			}
			if wait == nil {
				t := time.NewTimer(s.o.BatchWait)
				defer t.Stop()
				wait = t.C
			}
		case <-wait:
			return batch, size
		}
	}
	return batch, size
}
