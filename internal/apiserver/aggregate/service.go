// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"bytes"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/extension"
)

// Service is the state of a registration of another server at one time.
type Service struct {
	Name                           string // VERSION.GROUP, or that of a registration of another form
	Group, Version                 string
	GroupPriority, VersionPriority int32
	UID                            types.UID
	Created                        metav1.Time
	// Available, Reason and Message are those of the condition.
	Available       bool
	Reason, Message string
	// Unreadable is why discovery or OpenAPI of an available server failed; empty: it succeeded, or is not known yet.
	Unreadable string

	at         address
	way        *way
	entry      *entry
	aggregator *Aggregator
}

type reference struct{ namespace, name string }

type address struct {
	reference
	port int32
}

// describe converts a registration to a Service.
func (a *Aggregator) describe(r *apiregistrationv1.APIService) *Service {
	s := &Service{
		Name: r.Name, Group: r.Spec.Group, Version: r.Spec.Version, UID: r.UID, Created: r.CreationTimestamp,
		GroupPriority: r.Spec.GroupPriorityMinimum, VersionPriority: r.Spec.VersionPriority,
		aggregator: a, at: address{reference{r.Spec.Service.Namespace, r.Spec.Service.Name}, 443},
	}
	if p := r.Spec.Service.Port; p != nil {
		s.at.port = *p
	}
	if c := condition(r, apiregistrationv1.Available); c != nil {
		s.Available, s.Reason, s.Message = c.Status == apiregistrationv1.ConditionTrue, c.Reason, c.Message
	}
	if c := condition(r, Readable); s.Available && c != nil && c.Status == apiregistrationv1.ConditionFalse {
		s.Unreadable = c.Reason
	}
	return s
}

// says reports whether o has the same content, apart from its connections.
func (s *Service) says(o *Service) bool {
	return s.UID == o.UID && s.GroupPriority == o.GroupPriority && s.VersionPriority == o.VersionPriority &&
		s.Available == o.Available && s.Reason == o.Reason && s.Message == o.Message && s.Unreadable == o.Unreadable
}

// key is what [Aggregator.Find] finds the service by.
func (s *Service) key() string {
	switch {
	case s.aggregator.o.Form.ByName:
		return s.Name
	case s.Group == "":
		return ""
	}
	return s.Group + "/" + s.Version
}

// root is the path of the server's own discovery document.
func (s *Service) root() string {
	if s.Group == "" {
		return "/api/" + s.Version
	}
	return "/apis/" + s.Group + "/" + s.Version
}

// Title returns the kind and the name of the registration.
func (s *Service) Title() string { return s.aggregator.o.Form.Kind + " " + s.Name }

// Epoch changes with each change of the service or its endpoints.
func (s *Service) Epoch() int64 { return s.entry.epoch.Load() }

func (s *Service) ref() extension.Ref {
	return s.aggregator.o.Form.ref(s.Group, s.Name)
}

// URL returns the URL of a path at the server. Its host is the service's name; each call resolves it to an endpoint.
func (s *Service) URL(path string) *url.URL {
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(s.at.serverName(), strconv.Itoa(int(s.at.port))), Path: path}
}

func (r reference) serverName() string { return r.name + "." + r.namespace + ".svc" }

// way is how to connect to the server: the certificate that it must present, and ours.
type way struct {
	name      string
	insecure  bool
	authority []byte
	transport *http.Transport
	err       error // why there is no transport
}

// fits reports whether the way still matches the registration.
func (w *way) fits(r *apiregistrationv1.APIService) bool {
	return w.name == serverName(r) && w.insecure == r.Spec.InsecureSkipTLSVerify && bytes.Equal(w.authority, r.Spec.CABundle)
}

func serverName(r *apiregistrationv1.APIService) string {
	return reference{r.Spec.Service.Namespace, r.Spec.Service.Name}.serverName()
}

func (w *way) close() {
	if w.transport != nil {
		w.transport.CloseIdleConnections()
	}
}

// Sizes and times of connections. A client that does not read one stream delays only that stream.
const (
	streamBuffer = 1 << 20
	frameSize    = 1 << 20
	pingAfter    = 30 * time.Second // without data on a connection
	pingWait     = 15 * time.Second
)

func wayTo(r *apiregistrationv1.APIService) *way {
	return &way{name: serverName(r), insecure: r.Spec.InsecureSkipTLSVerify, authority: r.Spec.CABundle}
}

// open makes the transport of a way that has none yet.
func (a *Aggregator) open(w *way) *way {
	var conf *tls.Config
	conf, w.err = transport.TLSConfigFor(&transport.Config{TLS: transport.TLSConfig{Insecure: w.insecure, ServerName: w.name,
		CAData: w.authority}})
	if w.err != nil {
		return w
	}
	if conf == nil {
		conf = &tls.Config{ServerName: w.name, MinVersion: tls.VersionTLS12}
	}
	conf.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if a.o.Certificate != nil {
			if c := a.o.Certificate(); c != nil {
				return c, nil
			}
		}
		return &tls.Certificate{}, nil
	}
	dial := a.o.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	w.transport = &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dial, TLSClientConfig: conf, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 25, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: true,
		DisableCompression: true, // the client decides which encodings it accepts
		ReadBufferSize:     64 << 10, WriteBufferSize: 64 << 10,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingAfter, PingTimeout: pingWait, MaxReadFrameSize: frameSize,
			MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: 1 << 30,
		},
	}
	return w
}

// Where returns NAMESPACE/NAME:PORT of the service.
func (s *Service) Where() string {
	return s.at.namespace + "/" + net.JoinHostPort(s.at.name, strconv.Itoa(int(s.at.port)))
}
