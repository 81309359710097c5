// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/mortise-dev/mortise/resource"
)

// connectLog copies a container's log from its node.
func connectLog(ctx context.Context, b resource.Backend, namespace, name string, opts runtime.Object, _ string) (http.Handler, error) {
	o := opts.(*corev1.PodLogOptions)
	if errs := checkLogOptions(o); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "PodLogOptions"}, name, errs)
	}
	pod, container, err := podAndContainer(ctx, b, namespace, name, o.Container)
	if err != nil {
		return nil, err
	}
	if pod.Spec.NodeName == "" { // there is no log yet
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }), nil
	}
	location, transport, err := agentOf(ctx, b, pod)
	if err != nil {
		return nil, err
	}
	location.Path = strings.Join([]string{"", "containerLogs", pod.Namespace, pod.Name, container}, "/")
	location.RawQuery = logQuery(o).Encode()
	return &logHandler{location: location, transport: transport, name: name, follow: o.Follow}, nil
}

// checkLogOptions checks what a client asked for.
func checkLogOptions(o *corev1.PodLogOptions) field.ErrorList {
	var errs field.ErrorList
	if o.TailLines != nil && *o.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines, "must be greater than or equal to 0"))
	}
	if o.LimitBytes != nil && *o.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *o.LimitBytes, "must be greater than 0"))
	}
	switch {
	case o.SinceSeconds != nil && o.SinceTime != nil:
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case o.SinceSeconds != nil && *o.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be greater than 0"))
	}
	if o.Stream != nil { // the gate PodLogsQuerySplitStreams is off
		errs = append(errs, field.Forbidden(field.NewPath("stream"), "may not be specified"))
	}
	return errs
}

// logQuery returns an agent's query parameters for the options.
func logQuery(o *corev1.PodLogOptions) url.Values {
	q := url.Values{}
	for name, set := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if set {
			q.Set(name, "true")
		}
	}
	for name, n := range map[string]*int64{"sinceSeconds": o.SinceSeconds, "tailLines": o.TailLines, "limitBytes": o.LimitBytes} {
		if n != nil {
			q.Set(name, strconv.FormatInt(*n, 10))
		}
	}
	if o.SinceTime != nil {
		q.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	return q
}

type logHandler struct {
	location  *url.URL
	transport http.RoundTripper
	name      string
	follow    bool
}

// ServeHTTP copies until the log or the client ends.
func (h *logHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, leave := context.WithCancel(r.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.location.String(), nil)
	if err != nil {
		writeStatus(w, err)
		return
	}
	client := &http.Client{Transport: h.transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("redirects forbidden")
	}}
	resp, err := client.Do(req)
	if err != nil {
		writeStatus(w, err)
		return
	}
	defer resp.Body.Close()
	if err := h.check(resp); err != nil {
		writeStatus(w, err)
		return
	}
	if wsstream.IsWebSocketRequest(r) {
		logOverWebSocket(w, r, resp.Body, leave)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	var out io.Writer = w
	if h.follow {
		out = flushing{w, http.NewResponseController(w)}
	}
	// The status is sent already, so an error can only end the log.
	io.Copy(out, resp.Body)
}

// check converts the agent's error text to a status.
func (h *logHandler) check(resp *http.Response) error {
	if resp.StatusCode >= 200 && resp.StatusCode <= 206 {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 50000))
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	text := strings.TrimSuffix(string(body), "\n")
	switch resp.StatusCode {
	case http.StatusInternalServerError:
		return apierrors.NewInternalError(errors.New(text))
	case http.StatusBadRequest:
		return apierrors.NewBadRequest(text)
	}
	return apierrors.NewGenericServerResponse(resp.StatusCode, "", schema.GroupResource{Resource: "pods/log"}, h.name, text, 0, false)
}

// flushing flushes each piece as it comes.
type flushing struct {
	w http.ResponseWriter
	c *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = f.c.Flush()
	}
	return n, err
}
