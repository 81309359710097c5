// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package learn

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/discovery"
)

// answer is a server's response.
type answer struct {
	code        int
	etag        string
	contentType string
	body        []byte
}

// question is one GET to a server, with limits on the time and size of the response.
type question struct {
	way                http.RoundTripper
	remote             *Remote
	path, accept, etag string
	limit              time.Duration
	size               int64
}

// ask sends the question. It does not follow redirects, but returns them.
func (q question) ask(ctx context.Context) (*answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, q.limit, fmt.Errorf("no whole answer within %v", q.limit))
	defer cancel()
	r, path, size := q.remote, q.path, q.size
	to := *r.Base
	to.Path = path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask for %s: %w", path, err)
	}
	req.Header.Set("Accept", q.accept)
	if q.etag != "" {
		req.Header.Set("If-None-Match", q.etag)
	}
	resp, err := q.way.RoundTrip(req)
	if err != nil {
		return nil, r.trouble(NoAnswer, path, fmt.Errorf("ask for %s: %w", path, because(ctx, err)))
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, size+1))
	switch {
	case err != nil:
		return nil, r.trouble(NoAnswer, path, fmt.Errorf("read %s: %w", path, because(ctx, err)))
	case int64(len(b)) > size:
		return nil, r.trouble(TooLong, path, fmt.Errorf("read %s: the answer is longer than %d bytes", path, size))
	}
	return &answer{resp.StatusCode, resp.Header.Get("ETag"), resp.Header.Get("Content-Type"), b}, nil
}

// because returns the reason why the context ended, if that caused the error.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (a *answer) refused(path string) error {
	text := a.body
	if len(text) > 200 {
		text = text[:200]
	}
	return fmt.Errorf("ask for %s: status %d: %q", path, a.code, bytes.ToValidUTF8(bytes.TrimSpace(text), nil))
}

const aggregatedType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// isAggregated reports whether a content type is that of aggregated discovery.
func isAggregated(contentType string) bool {
	media, params, err := mime.ParseMediaType(contentType)
	return err == nil && media == "application/json" && params["g"] == "apidiscovery.k8s.io" && params["v"] == "v2" &&
		params["as"] == "APIGroupDiscoveryList"
}

// discover requests what the server serves. A version that the server omits has no resources.
func (s *server) discover(ctx context.Context) error {
	remotes, err := s.askable()
	if err != nil {
		return err
	}
	s.learner.mu.Lock()
	etag := s.etag
	s.learner.mu.Unlock()
	a, err := question{remotes[0].Discovery, &remotes[0], "/apis", aggregatedType, etag, discoveryTime, discoverySize}.ask(ctx)
	var said map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery
	switch {
	case err != nil:
	case a.code == http.StatusNotModified && etag != "":
		s.learn(remotes, nil, etag, nil)
		s.tell(ctx, remotes, nil)
		return nil
	case a.code == http.StatusServiceUnavailable:
		err = remotes[0].trouble(Refused, "/apis", a.refused("/apis"))
	case a.code == http.StatusOK && isAggregated(a.contentType):
		if said, err = parseAggregated(a.body); err != nil {
			err = remotes[0].trouble(NotUnderstood, "/apis", err)
		}
	default:
		return s.discoverLegacy(ctx, remotes)
	}
	if err != nil {
		s.fail(remotes)
		troubles := map[string]error{}
		for i := range remotes {
			troubles[remotes[i].Name] = err
		}
		s.tell(ctx, remotes, troubles)
		return err
	}
	s.learn(remotes, said, a.etag, nil)
	s.tell(ctx, remotes, nil)
	return nil
}

// parseAggregated parses the aggregated document of a server. Clients rely on the kinds, so it replaces missing ones
// with empty ones.
func parseAggregated(b []byte) (map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery, error) {
	var list apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("parse /apis: %w", err)
	}
	if list.Kind != "" && list.Kind != "APIGroupDiscoveryList" {
		return nil, fmt.Errorf("parse /apis: it is a %q, not an APIGroupDiscoveryList", list.Kind)
	}
	said := map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery{}
	for _, g := range list.Items {
		for _, v := range g.Versions {
			for i := range v.Resources {
				r := &v.Resources[i]
				if r.ResponseKind == nil {
					r.ResponseKind = &metav1.GroupVersionKind{}
				}
				for j := range r.Subresources {
					if r.Subresources[j].ResponseKind == nil {
						r.Subresources[j].ResponseKind = &metav1.GroupVersionKind{}
					}
				}
			}
			said[schema.GroupVersion{Group: g.Name, Version: v.Version}] = v
		}
	}
	return said, nil
}

// discoverLegacy requests each version separately. It keeps the successful results even if others fail.
func (s *server) discoverLegacy(ctx context.Context, remotes []Remote) error {
	said := map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery{}
	failed, troubles := map[schema.GroupVersion]bool{}, map[string]error{}
	var errs []error
	for i := range remotes {
		r := &remotes[i]
		path := "/apis/" + r.Group + "/" + r.Version
		if r.Group == "" {
			path = "/api/" + r.Version
		}
		a, err := question{r.Discovery, r, path, "application/json", "", discoveryTime, discoverySize}.ask(ctx)
		if err == nil && a.code != http.StatusOK {
			err = r.trouble(Refused, path, a.refused(path))
		}
		var list metav1.APIResourceList
		if err == nil {
			if err = json.Unmarshal(a.body, &list); err != nil {
				err = r.trouble(NotUnderstood, path, fmt.Errorf("parse %s: %w", path, err))
			} else if list.Kind != "" && list.Kind != "APIResourceList" {
				err = r.trouble(NotUnderstood, path, fmt.Errorf("parse %s: it is a %q, not an APIResourceList", path, list.Kind))
			}
		}
		if err != nil {
			errs, failed[r.gv()], troubles[r.Name] = append(errs, fmt.Errorf("%s: %w", r.Name, err)), true, err
			continue
		}
		said[r.gv()] = apidiscoveryv2.APIVersionDiscovery{Version: r.Version, Resources: discovery.Legacy(list.APIResources)}
	}
	s.learn(remotes, said, "", failed)
	s.tell(ctx, remotes, troubles)
	return errors.Join(errs...)
}

// learn stores the server's results; nil: the previous results still hold. Versions that failed keep their results, as
// stale.
func (s *server) learn(remotes []Remote, said map[schema.GroupVersion]apidiscoveryv2.APIVersionDiscovery, etag string,
	failed map[schema.GroupVersion]bool) {
	l := s.learner
	l.mu.Lock()
	defer l.mu.Unlock()
	s.etag = etag
	if said != nil && failed == nil {
		s.versions = map[schema.GroupVersion]version{}
		for gv, doc := range said { // all of them: a version may be registered later
			s.versions[gv] = version{doc, true}
		}
	}
	for i := range remotes {
		gv := remotes[i].gv()
		v := s.versions[gv]
		if doc, ok := said[gv]; ok {
			v.document = doc
		}
		v.current = !failed[gv]
		s.versions[gv] = v
	}
	if l.servers[s.name] == s {
		l.publish()
	}
}

// fail keeps the server's previous results, as stale.
func (s *server) fail(remotes []Remote) {
	failed := map[schema.GroupVersion]bool{}
	for i := range remotes {
		failed[remotes[i].gv()] = true
	}
	s.learner.mu.Lock()
	etag := s.etag
	for gv := range s.versions {
		failed[gv] = true
	}
	s.learner.mu.Unlock()
	s.learn(remotes, nil, etag, failed)
}
