// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// The media types of built-in kinds. client-go asks for JSON unless a program configures protobuf, as Kubernetes' own do.
const (
	JSON     = "application/json"
	Protobuf = protobuf
)

// connections is how many programs a server is measured with. Each has one connection, as client-go's HTTP/2 transport does.
const connections = 8

// Clients are clients as programs have them that use client-go with its defaults: HTTP/2 with one connection each, gzip accepted,
// client-go's headers. Only its limit of requests a second is off.
type Clients struct {
	rest []*rest.RESTClient
	http []*http.Client
}

// Clients connects the clients. They ask for objects as the media type.
func (t *Target) Clients(media string) (*Clients, error) {
	c := &Clients{}
	for range connections {
		config := rest.CopyConfig(t.Config)
		config.QPS = -1
		config.NegotiatedSerializer = scheme.Codecs
		config.AcceptContentTypes, config.ContentType = media, media
		if media == JSON {
			config.AcceptContentTypes = "" // as programs do that set nothing
		}
		config.UserAgent = rest.DefaultKubernetesUserAgent()
		config.Dial = (&net.Dialer{}).DialContext // a dialer of its own makes client-go take a transport of its own
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			return nil, fmt.Errorf("make client: %w", err)
		}
		r, err := rest.UnversionedRESTClientForConfigAndClient(config, client)
		if err != nil {
			return nil, fmt.Errorf("make client: %w", err)
		}
		c.http, c.rest = append(c.http, client), append(c.rest, r)
	}
	return c, nil
}

// Of returns the client of a loop. Loops share the clients evenly.
func (c *Clients) Of(loop int) *rest.RESTClient { return c.rest[loop%len(c.rest)] }

// HTTP returns the client of a loop below client-go's requests.
func (c *Clients) HTTP(loop int) *http.Client { return c.http[loop%len(c.http)] }

// Close closes the connections.
func (c *Clients) Close() {
	for _, h := range c.http {
		h.CloseIdleConnections()
	}
}

// Request is one request of client-go.
type Request struct {
	Method, Path string
	Parameters   map[string]string
	Media        string // of the body
	Body         []byte
}

// Send sends a request, and reads the whole response. A status that is no success is an error.
func Send(ctx context.Context, client *rest.RESTClient, r *Request) ([]byte, error) {
	request := client.Verb(r.Method).AbsPath(r.Path)
	for name, value := range r.Parameters {
		request.Param(name, value)
	}
	if r.Body != nil {
		request.SetHeader("Content-Type", r.Media).Body(r.Body)
	}
	return request.Do(ctx).Raw()
}
