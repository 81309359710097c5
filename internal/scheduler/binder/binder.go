// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package binder sends the scheduler's most frequent writes, a binding and an event for each pod, at a fraction of the cost
// of client-go's requests. For each request client-go makes the URL three times, measures latencies for metrics that are
// not exposed, and decodes a response that is not used; that costs as much as a third of the server's own work for a
// binding. Decoding each bound pod once more costs as much again.
//
// [NewForConfig] returns a clientset whose bindings are sent this way; [Events] returns a sender of events. client-go still
// sends retries that the server demands, requests with options, and every request of a rate-limited client.
package binder

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/sharedobjects"
)

// NewForConfig returns a clientset. It sends bindings directly if there is no rate limit and bodies are protobuf. If the
// server is in this process and its objects may be shared, watched pods and nodes are the server's own: they must not be
// changed, and have all stored fields.
func NewForConfig(config *rest.Config, share bool) (kubernetes.Interface, error) {
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if config.QPS >= 0 || config.RateLimiter != nil || config.Timeout > 0 || config.ContentType != runtime.ContentTypeProtobuf {
		return clientset, nil
	}
	s, err := newSender(config)
	if err != nil {
		return nil, err
	}
	client := kubernetes.Interface(clientset)
	if share {
		client = sharedobjects.Clientset(client)
	}
	return &straight{Interface: client, core: core{client.CoreV1(), s}, sender: s}, nil
}

// Events returns a clientset's sender of events. Create returns the event as it was sent.
func Events(client kubernetes.Interface) typedeventsv1.EventsV1Interface {
	if s, ok := client.(*straight); ok {
		return group{s.EventsV1(), s.sender}
	}
	return client.EventsV1()
}

type straight struct {
	kubernetes.Interface
	core   core
	sender *sender
}

// CoreV1 returns the client for pods, whose Bind method sends directly.
func (s *straight) CoreV1() typedcorev1.CoreV1Interface { return &s.core }

type core struct {
	typedcorev1.CoreV1Interface
	sender *sender
}

// Pods returns the client for a namespace's pods.
func (c *core) Pods(namespace string) typedcorev1.PodInterface {
	return pods{c.CoreV1Interface.Pods(namespace), c.sender, namespace}
}

type pods struct {
	typedcorev1.PodInterface
	sender    *sender
	namespace string
}

// Bind binds a pod to a node.
func (p pods) Bind(ctx context.Context, binding *corev1.Binding, o metav1.CreateOptions) error {
	if !plain(o) {
		return p.PodInterface.Bind(ctx, binding, o)
	}
	b := *binding
	b.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Binding"))
	path := "/api/v1/namespaces/" + p.namespace + "/pods/" + b.Name + "/binding"
	again, err := p.sender.post(ctx, path, &b, runtime.ContentTypeProtobuf)
	if again {
		return p.PodInterface.Bind(ctx, binding, o)
	}
	return err
}

type group struct {
	typedeventsv1.EventsV1Interface
	sender *sender
}

// Events returns the client for a namespace's events.
func (g group) Events(namespace string) typedeventsv1.EventInterface {
	return event{g.EventsV1Interface.Events(namespace), g.sender, namespace}
}

type event struct {
	typedeventsv1.EventInterface
	sender    *sender
	namespace string
}

// nameOnly is the Accept header that requests only the metadata of the created object.
const nameOnly = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1," + runtime.ContentTypeProtobuf

// Create creates an event.
func (e event) Create(ctx context.Context, written *eventsv1.Event, o metav1.CreateOptions) (*eventsv1.Event, error) {
	if !plain(o) {
		return e.EventInterface.Create(ctx, written, o)
	}
	v := *written
	v.SetGroupVersionKind(eventsv1.SchemeGroupVersion.WithKind("Event"))
	again, err := e.sender.post(ctx, "/apis/events.k8s.io/v1/namespaces/"+e.namespace+"/events", &v, nameOnly)
	if again {
		return e.EventInterface.Create(ctx, written, o)
	}
	if err != nil {
		return nil, err
	}
	return written, nil
}

// plain reports whether the options need no query parameters.
func plain(o metav1.CreateOptions) bool {
	return len(o.DryRun) == 0 && o.FieldManager == "" && o.FieldValidation == ""
}

// sender holds what all requests share.
type sender struct {
	transport http.RoundTripper
	base      *url.URL
	agent     []string
	encoder   runtime.Encoder
	warned    rest.WarningHandlerWithContext
}

func newSender(config *rest.Config) (*sender, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("find server: %w", err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("make transport: %w", err)
	}
	agent := config.UserAgent
	if agent == "" {
		agent = rest.DefaultKubernetesUserAgent()
	}
	return &sender{transport: transport, base: base, agent: []string{agent}, encoder: protobuf.NewSerializer(scheme.Scheme, scheme.Scheme),
		warned: warned(config)}, nil
}

// warned returns the handler of a server's warnings: by default the log, as in client-go.
func warned(config *rest.Config) rest.WarningHandlerWithContext {
	switch {
	case config.WarningHandlerWithContext != nil:
		return config.WarningHandlerWithContext
	case config.WarningHandler != nil:
		return withoutContext{config.WarningHandler}
	}
	return rest.WarningLogger{}
}

type withoutContext struct{ rest.WarningHandler }

// HandleWarningHeaderWithContext passes a warning on.
func (w withoutContext) HandleWarningHeaderWithContext(_ context.Context, code int, agent, text string) {
	w.HandleWarningHeader(code, agent, text)
}

var protobufType = []string{runtime.ContentTypeProtobuf}

// post creates an object. again reports that the server demands a retry later.
func (s *sender) post(ctx context.Context, path string, obj runtime.Object, accept string) (again bool, err error) {
	body, err := runtime.Encode(s.encoder, obj)
	if err != nil {
		return false, fmt.Errorf("encode %s: %w", path, err)
	}
	to := &url.URL{Scheme: s.base.Scheme, Host: s.base.Host, Path: strings.TrimSuffix(s.base.Path, "/") + path}
	request := (&http.Request{
		Method: http.MethodPost, URL: to, Host: s.base.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Accept": {accept}, "Content-Type": protobufType, "User-Agent": s.agent}, ContentLength: int64(len(body)),
		Body:    io.NopCloser(bytes.NewReader(body)),
		GetBody: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil },
	}).WithContext(ctx)
	response, err := s.transport.RoundTrip(request)
	if err != nil {
		return false, fmt.Errorf("post %s: %w", path, err)
	}
	defer response.Body.Close()
	if said := response.Header["Warning"]; len(said) > 0 {
		warnings, _ := utilnet.ParseWarningHeaders(said) // ignore unreadable warnings, as client-go does
		for _, w := range warnings {
			s.warned.HandleWarningHeaderWithContext(ctx, w.Code, w.Agent, w.Text)
		}
	}
	switch code := response.StatusCode; {
	case code >= http.StatusOK && code < http.StatusMultipleChoices:
		_, _ = io.Copy(io.Discard, response.Body) // so that the connection can be reused
		return false, nil
	case (code == http.StatusTooManyRequests || code >= http.StatusInternalServerError) && response.Header.Get("Retry-After") != "":
		return true, nil
	}
	return false, refused(response)
}

// refused returns the error for a response without success.
func refused(response *http.Response) error {
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil); err == nil {
		if status, ok := obj.(*metav1.Status); ok && status.Status != metav1.StatusSuccess {
			return apierrors.FromObject(status)
		}
	}
	return apierrors.NewGenericServerResponse(response.StatusCode, "post", schema.GroupResource{}, "", strings.TrimSpace(string(body)),
		0, true)
}
