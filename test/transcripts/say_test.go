// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package transcripts

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/yaml"
)

// shown are the headers of an answer that a transcript keeps.
var shown = []string{"Allow", "Content-Encoding", "ETag", "Location", "Retry-After", "Warning", "Www-Authenticate"}

// patience is how long one exchange may take.
const patience = 20 * time.Second

// server is who is spoken to.
type server struct {
	url      string
	client   *http.Client
	stranger *http.Client // shows no certificate: for exchanges that bring a token of their own
	types    *runtime.Scheme
}

func newServer(t *testing.T, config *rest.Config) *server {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := rest.HTTPClientFor(rest.AnonymousClientConfig(config))
	if err != nil {
		t.Fatal(err)
	}
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme,
		metav1.AddMetaToScheme} {
		if err := add(types); err != nil {
			t.Fatal(err)
		}
	}
	return &server{url: strings.TrimRight(config.Host, "/"), client: client, stranger: stranger, types: types}
}

// dialogue says the exchanges in order, and gives the whole text.
func (s *server) dialogue(ctx context.Context, intro string, es []exchange) (string, error) {
	var b strings.Builder
	b.WriteString(intro)
	v, answers := newView(), map[string]any{}
	for i, e := range es {
		if i > 0 || intro != "" && !strings.HasSuffix(intro, "\n\n") {
			b.WriteByte('\n')
		}
		answer, err := s.say(ctx, e, v, answers)
		if err != nil {
			return "", fmt.Errorf("%s: %w", e.title, err)
		}
		fmt.Fprintf(&b, "%s---\n%s", e, answer)
	}
	return b.String(), nil
}

// say makes one exchange.
func (s *server) say(ctx context.Context, e exchange, v *view, answers map[string]any) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	path, err := substitute(e.path, answers)
	if err != nil {
		return "", err
	}
	body, err := e.payload(answers)
	if err != nil {
		return "", err
	}
	request, err := http.NewRequestWithContext(ctx, e.method, s.url+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	if body == "" {
		request.Body, request.ContentLength = http.NoBody, 0
	}
	request.Header.Set("User-Agent", "transcript/1")
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Accept-Encoding", "identity")
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for _, h := range e.headers {
		if h[1] == "none" {
			request.Header.Del(h[0])
		} else {
			request.Header.Set(h[0], h[1])
		}
	}
	client := s.client
	if request.Header.Get("Authorization") != "" {
		client = s.stranger
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s\n", response.StatusCode, response.Header.Get("Content-Type"))
	for _, h := range shown {
		for _, x := range response.Header.Values(h) {
			fmt.Fprintf(&b, "%s: %s\n", h, v.line(x))
		}
	}
	var text string
	if response.StatusCode == http.StatusOK && strings.Contains(path, "watch") && e.method == http.MethodGet {
		text, err = s.events(response, e, v)
	} else {
		text, err = s.whole(response, e, v, answers)
	}
	if err != nil {
		return "", err
	}
	if text != "" {
		b.WriteString("\n" + text)
	}
	return b.String(), nil
}

// whole reads an answer that is no stream.
func (s *server) whole(response *http.Response, e exchange, v *view, answers map[string]any) (string, error) {
	data, err := io.ReadAll(io.LimitReader(response.Body, 64<<20))
	if err != nil {
		return "", fmt.Errorf("read answer: %w", err)
	}
	if response.Header.Get("Content-Encoding") != "" {
		return "(compressed)\n", nil
	}
	x, err := s.decode(data, response.Header.Get("Content-Type"))
	if err != nil {
		return "", fmt.Errorf("decode answer %.200q: %w", data, err)
	}
	answers[e.title] = x
	if text, ok := x.(string); ok {
		if text == "" {
			return "", nil
		}
		return v.line(strings.TrimRight(text, "\n")) + "\n", nil
	}
	return v.body(x), nil
}

// decode reads a body of any media type as what its JSON would be.
func (s *server) decode(data []byte, contentType string) (any, error) {
	media, _, _ := mime.ParseMediaType(contentType)
	var x any
	switch media {
	case "application/json":
		return x, json.Unmarshal(data, &x)
	case "application/yaml":
		return x, yaml.Unmarshal(data, &x)
	case "application/cbor":
		if err := direct.Unmarshal(data, &x); err != nil {
			return nil, err
		}
	case "application/vnd.kubernetes.protobuf":
		obj, _, err := protobuf.NewSerializer(s.types, s.types).Decode(data, nil, nil)
		if err != nil {
			return nil, err
		}
		x = obj
	default:
		return string(data), nil
	}
	again, err := json.Marshal(x)
	if err != nil {
		return nil, err
	}
	x = nil
	return x, json.Unmarshal(again, &x)
}

// events reads a watch until its end, or until what the exchange waits for.
func (s *server) events(response *http.Response, e exchange, v *view) (string, error) {
	var b strings.Builder
	next := s.frames(response)
	count := 0
	for {
		kind, object, err := next()
		if err == io.EOF {
			if e.until != "" {
				return b.String() + "(the stream ended)\n", nil
			}
			return b.String(), nil
		}
		if err != nil {
			return "", fmt.Errorf("read event after\n%s: %w", b.String(), err)
		}
		b.WriteString(v.event(kind, object))
		if kind == e.until {
			if count++; count == e.untilCount {
				return b.String(), nil
			}
		}
	}
}

// frames gives a reader of events.
func (s *server) frames(response *http.Response) func() (string, any, error) {
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch media {
	case "application/vnd.kubernetes.protobuf":
		return func() (string, any, error) {
			var size [4]byte
			if _, err := io.ReadFull(response.Body, size[:]); err != nil {
				return "", nil, err
			}
			frame := make([]byte, binary.BigEndian.Uint32(size[:]))
			if _, err := io.ReadFull(response.Body, frame); err != nil {
				return "", nil, err
			}
			var w metav1.WatchEvent
			if err := w.Unmarshal(frame); err != nil {
				return "", nil, err
			}
			x, err := s.decode(w.Object.Raw, media)
			return w.Type, x, err
		}
	case "application/cbor-seq":
		var rest []byte
		return func() (string, any, error) {
			buffer := make([]byte, 64<<10)
			for {
				if size, ok := firstCBOR(rest); ok {
					x, err := s.decode(rest[:size], "application/cbor")
					rest = slices.Clone(rest[size:])
					m, _ := x.(map[string]any)
					kind, _ := m["type"].(string)
					return kind, m["object"], err
				}
				n, err := response.Body.Read(buffer)
				if rest = append(rest, buffer[:n]...); err != nil && n == 0 {
					return "", nil, err
				}
			}
		}
	}
	lines := json.NewDecoder(response.Body)
	if media != "application/json" {
		return func() (string, any, error) {
			data, err := io.ReadAll(response.Body)
			if err == nil && len(data) == 0 {
				err = io.EOF
			}
			return media, string(bytes.TrimSpace(data)), err
		}
	}
	return func() (string, any, error) {
		var w struct {
			Type   string `json:"type"`
			Object any    `json:"object"`
		}
		err := lines.Decode(&w)
		return w.Type, w.Object, err
	}
}

// firstCBOR finds where the first item of a sequence ends.
func firstCBOR(data []byte) (int, bool) {
	for size := 1; size <= len(data); size++ {
		var x any
		if direct.Unmarshal(data[:size], &x) == nil {
			return size, true
		}
	}
	return 0, false
}
