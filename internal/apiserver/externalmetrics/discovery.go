// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package externalmetrics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/aggregate"
	"github.com/mortise-dev/mortise/internal/apiserver/aggregate/learn"
)

// The priorities of the group without an APIService: those of most external-metrics servers.
const (
	groupPriority   = 100
	versionPriority = 100
)

// Bounds of discovery at one server.
const (
	discoveryTime = 5 * time.Second
	discoverySize = 16 << 20
)

// found is the result of discovery at one server.
type found struct {
	server *aggregate.Service
	list   metav1.APIResourceList
	err    error
}

// discover asks all available servers for their resources at once. The results have the servers' order.
func (r *Routes) discover(ctx context.Context) []found {
	ctx, cancel := context.WithTimeout(ctx, discoveryTime)
	defer cancel()
	servers := r.all()
	out := make([]found, len(servers))
	var asking sync.WaitGroup
	for i, s := range servers {
		out[i].server = s
		if !s.Available {
			out[i].err = errors.New("it is not available")
			continue
		}
		asking.Go(func() {
			reason, err := discoverAt(ctx, s, &out[i].list)
			out[i].err = err
			switch {
			case err == nil:
				s.Read("", "")
			case !errors.Is(ctx.Err(), context.Canceled): // the client left
				s.Read(reason, err.Error())
			}
		})
	}
	asking.Wait()
	return out
}

// discoverAt asks one server for its resources. The reason is that of an error.
func discoverAt(ctx context.Context, s *aggregate.Service, into *metav1.APIResourceList) (reason string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL(root).String(), http.NoBody)
	if err != nil {
		return learn.NoAnswer, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := s.As(aggregate.Discovery()).RoundTrip(req)
	if err != nil {
		return learn.NoAnswer, fmt.Errorf("ask for %s: %w", root, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, discoverySize+1))
	switch {
	case err != nil:
		return learn.NoAnswer, fmt.Errorf("read %s: %w", root, err)
	case len(body) > discoverySize:
		return learn.TooLong, fmt.Errorf("read %s: the answer is longer than %d bytes", root, discoverySize)
	case resp.StatusCode != http.StatusOK:
		return learn.Refused, fmt.Errorf("ask for %s: status %d", root, resp.StatusCode)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return learn.NotUnderstood, fmt.Errorf("parse %s: %w", root, err)
	}
	if into.Kind != "" && into.Kind != "APIResourceList" {
		return learn.NotUnderstood, fmt.Errorf("parse %s: it is a %q, not an APIResourceList", root, into.Kind)
	}
	return "", nil
}

// merged returns the resources of all servers that respond, and the servers that do not; false: none does. A resource of
// several servers appears once.
func (r *Routes) merged(ctx context.Context) (list *metav1.APIResourceList, failed []string, ok bool) {
	list = &metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: Group + "/" + Version,
		APIResources: []metav1.APIResource{},
	}
	seen := map[string]bool{}
	for _, f := range r.discover(ctx) {
		if f.err != nil {
			failed = append(failed, f.server.Title())
			continue
		}
		ok = true
		for _, a := range f.list.APIResources {
			if !seen[a.Name] {
				seen[a.Name] = true
				list.APIResources = append(list.APIResources, a)
			}
		}
	}
	return list, failed, ok
}

// ServeHTTP serves the resources of the group version: those of all servers that respond. Warnings name the others.
func (r *Routes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		http.Error(w, "405: Method Not Allowed", http.StatusMethodNotAllowed)
		return
	}
	list, failed, ok := r.merged(req.Context())
	for _, title := range failed {
		w.Header().Add("Warning", fmt.Sprintf(`299 - "%s: its resources are not listed"`, title))
	}
	b, err := json.Marshal(list)
	switch {
	case !ok:
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(b, '\n')) // the client may have left
	}
}

// Remote returns the group version of all servers for the learner; false: there are no routes.
func (r *Routes) Remote() (learn.Remote, bool) {
	if !r.Any() {
		return learn.Remote{}, false
	}
	out := learn.Remote{
		Name: Name, Group: Group, Version: Version, GroupPriority: groupPriority, VersionPriority: versionPriority,
		Server: "routes." + Group, Unavailable: true, Base: &url.URL{Scheme: "https", Host: Group},
		Discovery: &Transport{r, aggregate.Discovery()}, OpenAPI: &Transport{r, aggregate.OpenAPI()},
	}
	var state strings.Builder
	for _, s := range r.all() {
		out.Unavailable = out.Unavailable && !s.Available
		fmt.Fprint(&state, s.Title(), s.UID, s.Available, s.Epoch(), ";")
	}
	if s := r.o.Default(); s != nil {
		out.GroupPriority, out.VersionPriority = int(s.GroupPriority), int(s.VersionPriority)
	}
	out.State = state.String()
	return out, true
}

// Transport is the transport of the server's own discovery to all servers of the group version as if they were one.
type Transport struct {
	routes *Routes
	who    user.Info
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if Discovers(req.URL.Path) {
		list, _, ok := t.routes.merged(req.Context())
		if !ok {
			return respond(req, http.StatusServiceUnavailable, nil), nil
		}
		b, err := json.Marshal(list)
		return respond(req, http.StatusOK, b), err
	}
	if strings.HasPrefix(req.URL.Path, "/openapi/") {
		for _, s := range t.routes.all() {
			if s.Available {
				return s.As(t.who).RoundTrip(req)
			}
		}
	}
	return respond(req, http.StatusNotFound, nil), nil // discovery of all groups at once, for example
}

func respond(to *http.Request, code int, body []byte) *http.Response {
	return &http.Response{
		StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: to,
	}
}
