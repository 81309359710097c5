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

// WebhookOptions are the options of [NewWebhook].
type WebhookOptions struct {
	Mode     Mode
	Truncate Truncate
	// Backoff is the pause after a failed call; each further pause is 1.5 times as long.
	Backoff time.Duration
	// Settings of batch mode: the number of buffered events, of events in one batch, and how long a batch waits for
	// more events.
	Buffer, BatchSize int
	BatchWait         time.Duration
	// Rate and Burst limit the batches per second; Rate 0: no limit.
	Rate  float32
	Burst int
	// Dial connects to the webhook; nil: the default dialer.
	Dial egress.Dial
}

const (
	tries     = 5                // for each batch
	factor    = 1.5              // between two waits
	jitter    = 0.2              // of the first wait
	inFlight  = 32               // maximum number of concurrent batches
	flushWait = 30 * time.Second // maximum time for unsent events when the server ends
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

// NewWebhook posts events to the server in a kubeconfig. The ledger records the calls under the server's host.
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

// send posts a list of n events, with retries.
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

// list returns lines as an EventList.
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

// run posts queued events until ctx ends and the queue is empty, or until the flush takes too long.
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
		// an abandoned batch is sent as well: it fails immediately, and is counted
		if limit != nil {
			_ = limit.Wait(sending)
		}
		slots <- struct{}{}
		body, n := list(batch), len(batch) // from here on the lines may be reused
		g.Go(func() {
			defer func() { <-slots; s.queue.done(size) }()
			s.send(sending, body, n)
		})
	}
}

// collect waits for a batch of events: until it is full, or until its time is over. Without events the queue has ended.
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
