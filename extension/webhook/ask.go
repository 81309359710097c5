// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/json"
)

// A webhook's answer is nearly always a 200 with JSON, which needs little of the work that client-go's requests do around
// it. So this file makes the request with client-go's transport, and passes any other answer to a client-go request as the
// result of its first attempt: client-go handles and reports it.

// address is the URL of requests that carry the remaining time.
type address struct {
	left time.Duration
	url  string
}

// ask posts JSON and decodes the answer.
func (c *Client) ask(ctx context.Context, body []byte, into runtime.Object) error {
	left := time.Duration(0)
	if deadline, ok := ctx.Deadline(); ok {
		if left = time.Until(deadline); left > 0 {
			if whole := left.Truncate(time.Second); whole != left {
				left = whole + time.Second
			}
		}
	}
	if left < 0 || ctx.Err() != nil || c.rest.Client == nil {
		return c.request(body, left).Do(ctx).Into(into)
	}
	at := c.known.Load()
	if at == nil || at.left != left {
		u := c.request(nil, left).URL()
		if left > 0 {
			q := u.Query()
			q.Set("timeout", left.String())
			u.RawQuery = q.Encode()
		}
		at = &address{left, u.String()}
		c.known.Store(at)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, at.url, bytes.NewReader(body))
	if err != nil {
		return c.request(body, left).Do(ctx).Into(into)
	}
	// An entry without a value is not sent. It tells net/http to make the request again if the webhook closes a connection that has been
	// used before, as it does when it ends, without a byte of an answer. Webhooks must be idempotent: they are called more than once anyway.
	r.Header = http.Header{"Accept": accepts, "Content-Type": sends, "Idempotency-Key": nil}
	w, err := c.trip(r, left > 0)
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(w.Body)
	if e := w.Body.Close(); err == nil && w.StatusCode == http.StatusOK && e == nil && plain(w.Header) && decoded(answer, into) {
		return nil
	}
	w.Body = &again{bytes.NewReader(answer), err}
	w.TLS = nil // the certificate has been looked at
	return c.request(body, left).Do(context.WithValue(ctx, firstKey{}, &first{w})).Into(into)
}

// trip makes a request. If the context has a deadline, it uses the transport without the http.Client around it, whose own
// timeout would need a timer and a goroutine for each request, since the transport is not net/http's own. A redirect is an
// unexpected answer as any other: client-go's request follows it.
func (c *Client) trip(r *http.Request, bounded bool) (*http.Response, error) {
	t := c.rest.Client.Transport
	if !bounded || t == nil || r.URL.User != nil || c.rest.Client.Jar != nil {
		return c.rest.Client.Do(r)
	}
	w, err := t.RoundTrip(r)
	if err != nil {
		return nil, &url.Error{Op: "Post", URL: r.URL.String(), Err: err} // as http.Client has it
	}
	return w, nil
}

var accepts, sends = []string{runtime.ContentTypeJSON + ", */*"}, []string{runtime.ContentTypeJSON}

// request is client-go's.
func (c *Client) request(body []byte, left time.Duration) *rest.Request {
	r := c.rest.Post().SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body)
	if left > 0 {
		r.Timeout(left)
	}
	return r
}

// plain reports whether the content type of an answer is exactly JSON.
func plain(h http.Header) bool {
	said := h["Content-Type"]
	return len(said) == 1 && said[0] == runtime.ContentTypeJSON
}

// decoded decodes a valid answer; false: it is not valid, and into is unchanged.
func decoded(answer []byte, into runtime.Object) bool {
	var want schema.GroupVersionKind
	switch into.(type) {
	case *admissionv1.AdmissionReview:
		want = admissionv1.SchemeGroupVersion.WithKind("AdmissionReview")
	case *admissionv1beta1.AdmissionReview:
		want = admissionv1beta1.SchemeGroupVersion.WithKind("AdmissionReview")
	default:
		return false
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(answer, into); err == nil && into.GetObjectKind().GroupVersionKind() == want {
		return true
	}
	switch o := into.(type) {
	case *admissionv1.AdmissionReview:
		*o = admissionv1.AdmissionReview{}
	case *admissionv1beta1.AdmissionReview:
		*o = admissionv1beta1.AdmissionReview{}
	}
	return false
}

// again is a body that has been read, and how that ended.
type again struct {
	*bytes.Reader
	err error // nil: it was whole
}

func (b *again) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) && b.err != nil {
		err = b.err
	}
	return n, err
}

// WriteTo must not go around the error.
func (b *again) WriteTo(w io.Writer) (int64, error) {
	n, err := b.Reader.WriteTo(w)
	if err == nil {
		err = b.err
	}
	return n, err
}

// Close does nothing: the connection has been given back.
func (b *again) Close() error { return nil }

type firstKey struct{}

// first is the answer that a request has before it is made.
type first struct{ *http.Response }

// replay is a transport that has the answer of some requests already; the tries after that are made.
type replay struct{ http.RoundTripper }

// RoundTrip gives the answer, or asks for it.
func (t replay) RoundTrip(r *http.Request) (*http.Response, error) {
	if f, ok := r.Context().Value(firstKey{}).(*first); ok && f.Response != nil {
		w := f.Response
		f.Response, w.Request = nil, r
		if r.Body != nil {
			if err := r.Body.Close(); err != nil {
				return nil, err
			}
		}
		return w, nil
	}
	return t.RoundTripper.RoundTrip(r)
}

// WrappedRoundTripper returns the wrapped transport, for callers that unwrap transports.
func (t replay) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// wrapping has clients' transports wrapped.
type wrapping struct {
	webhook.AuthenticationInfoResolver
	wrap func(http.RoundTripper) http.RoundTripper
}

// ClientConfigFor is for a host.
func (a wrapping) ClientConfigFor(host string) (*rest.Config, error) {
	return a.wrapped(a.AuthenticationInfoResolver.ClientConfigFor(host))
}

// ClientConfigForService is for a service.
func (a wrapping) ClientConfigForService(name, namespace string, port int) (*rest.Config, error) {
	return a.wrapped(a.AuthenticationInfoResolver.ClientConfigForService(name, namespace, port))
}

func (a wrapping) wrapped(c *rest.Config, err error) (*rest.Config, error) {
	if err != nil {
		return nil, err
	}
	c = rest.CopyConfig(c)
	c.Wrap(a.wrap)
	return c, nil
}
