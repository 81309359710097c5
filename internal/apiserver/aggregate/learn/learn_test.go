// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package learn

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/apiserver/discovery"
	"github.com/mortise-dev/mortise/internal/apiserver/openapi"
)

const (
	flunders = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{"name":"wardle.example.com"},"versions":[
		{"version":"v1","resources":[{"resource":"flunders","scope":"Namespaced","responseKind":{"kind":"Flunder"},"subresources":[{"subresource":"status"}]}]},
		{"version":"v2","resources":[{"resource":"fischers","scope":"Cluster"}]}]}]}`
	swagger = `{"swagger":"2.0","info":{"title":"x","version":"1"},"paths":{"/apis/wardle.example.com/v1/flunders":{"get":{"produces":["application/json"],"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/Flunder"}}}}}},
		"definitions":{"Flunder":{"type":"object"}}}`
)

// fake is a server whose behaviour can be changed.
type fake struct {
	*httptest.Server
	mu     sync.Mutex
	serve  http.HandlerFunc
	counts map[string]int
}

func newFake(t *testing.T, serve http.HandlerFunc) *fake {
	f := &fake{serve: serve, counts: map[string]int{}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		serve := f.serve
		f.counts[r.URL.Path]++
		f.mu.Unlock()
		serve(w, r)
	}))
	t.Cleanup(func() { f.CloseClientConnections(); f.Close() })
	return f
}

func (f *fake) set(serve http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.serve = serve
}

func (f *fake) remote(name, state string) Remote {
	version, group, _ := strings.Cut(name, ".")
	base, err := url.Parse(f.URL)
	if err != nil {
		panic(err)
	}
	return Remote{Name: name, Group: group, Version: version, GroupPriority: 1000, VersionPriority: 15, Server: f.URL, State: state,
		Base: base, Discovery: http.DefaultTransport, OpenAPI: http.DefaultTransport}
}

// timed is a clock that reports each timer.
type timed struct {
	*clocktesting.FakeClock
	timers chan struct{}
}

func (c *timed) NewTimer(d time.Duration) clock.Timer {
	defer func() { c.timers <- struct{}{} }()
	return c.FakeClock.NewTimer(d)
}

// plant is a learner with its inputs.
type plant struct {
	*Learner
	mu      sync.Mutex
	remotes []Remote
	changed chan struct{}
	log     bytes.Buffer
	states  chan struct{} // receives when a state was published or reported
	told    []string      // the reports in order: NAME, and REASON URL for a failure
}

func (p *plant) tell(remotes ...Remote) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remotes = remotes
	close(p.changed)
	p.changed = make(chan struct{})
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

func learner(t *testing.T, c clock.Clock, remotes ...Remote) *plant {
	p := &plant{remotes: remotes, changed: make(chan struct{}), states: make(chan struct{}, 1)}
	some := func() {
		select {
		case p.states <- struct{}{}:
		default:
		}
	}
	p.Learner = New(Options{
		Told: func(r *Remote, err error) {
			text := r.Name
			if trouble := (*Trouble)(nil); errors.As(err, &trouble) {
				text += " " + trouble.Reason + " " + strings.TrimPrefix(trouble.URL, r.Server)
			} else if err != nil {
				text += " " + err.Error()
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.told = append(p.told, text)
			defer some()
		},
		Remotes: func() []Remote { p.mu.Lock(); defer p.mu.Unlock(); return p.remotes },
		Changed: func() <-chan struct{} { p.mu.Lock(); defer p.mu.Unlock(); return p.changed },
		Log:     slog.New(slog.NewTextHandler(lockedWriter{&p.mu, &p.log}, nil)), Clock: c,
		published: some,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return p
}

// await waits for a condition, and checks it again after each published state.
func (p *plant) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	late := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-p.states:
		case <-late:
			t.Fatalf("not within 20 s: %s; there are %+v and %+v", what, p.Discovery(), p.OpenAPI())
		}
	}
}

func (p *plant) until(t *testing.T, what string, ok func(d *discovery.Remote) bool) (d *discovery.Remote) {
	t.Helper()
	p.await(t, what, func() bool { d = p.Discovery(); return d != nil && ok(d) })
	return d
}

func states(d *discovery.Remote) map[string]string {
	out := map[string]string{}
	for _, v := range d.Versions {
		var names []string
		for _, r := range v.Document.Resources {
			names = append(names, r.Resource)
		}
		out[v.Group+"/"+v.Version] = string(v.Document.Freshness) + " " + strings.Join(names, ",")
	}
	return out
}

func good(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/apis":
		w.Header().Set("ETag", `"1"`)
		if r.Header.Get("If-None-Match") == `"1"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Content-Type", aggregatedType)
		_, _ = io.WriteString(w, flunders)
	case "/openapi/v2":
		w.Header().Set("ETag", `"s"`)
		if r.Header.Get("If-None-Match") == `"s"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, swagger)
	case "/openapi/v3":
		_, _ = io.WriteString(w, `{"paths":{"apis/wardle.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/wardle.example.com/v1?hash=H"},"version":{"serverRelativeURL":"/openapi/v3/version?hash=V"}}}`)
	case "/openapi/v3/apis/wardle.example.com/v1":
		w.Header().Set("ETag", `"H"`)
		_, _ = io.WriteString(w, `{"openapi":"3.0.0"}`)
	default:
		http.NotFound(w, r)
	}
}

// TestOneServerIsAskedOnce checks that one response serves two versions, and that the next request, after a minute, has
// its ETag.
func TestOneServerIsAskedOnce(t *testing.T) {
	f := newFake(t, good)
	c := &timed{clocktesting.NewFakeClock(time.Unix(0, 0)), make(chan struct{}, 10)}
	p := learner(t, c, f.remote("v1.wardle.example.com", "a"), f.remote("v2.wardle.example.com", "a"))
	d := p.until(t, "both are current", func(d *discovery.Remote) bool {
		return cmp.Equal(states(d), map[string]string{"wardle.example.com/v1": "Current flunders", "wardle.example.com/v2": "Current fischers"})
	})
	if sub := d.Versions[0].Document.Resources[0].Subresources[0]; sub.ResponseKind == nil {
		t.Error("a subresource has no kind, which old clients cannot bear")
	}
	f.mu.Lock()
	if n := f.counts["/apis"]; n != 1 {
		t.Errorf("asked %d times", n)
	}
	f.mu.Unlock()
	again := make(chan struct{})
	var once sync.Once
	f.set(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/apis" && r.Header.Get("If-None-Match") == `"1"` {
			once.Do(func() { close(again) })
		}
		good(w, r)
	})
	for range 2 { // both workers are idle
		<-c.timers
	}
	c.Step(period)
	<-again
	p.tell() // and no registration is left
	p.await(t, "documents of servers that are gone go", func() bool { return p.Discovery() == nil && p.OpenAPI() == nil })
}

// TestWhatGoesWrong checks that after a failure the last results stay, marked stale, that the log names the APIService,
// and that the learner recovers.
func TestWhatGoesWrong(t *testing.T) {
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	wrongs := map[string]http.HandlerFunc{
		"Refused /apis": func(w http.ResponseWriter,
			_ *http.Request) {
			http.Error(w, "no", http.StatusServiceUnavailable)
		},
		"Refused /apis/wardle.example.com/v1": func(w http.ResponseWriter,
			_ *http.Request) {
			http.Error(w, "boom", http.StatusInternalServerError)
		},
		"NotUnderstood /apis": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", aggregatedType)
			_, _ = io.WriteString(w, "{\"items\":[\x00\xff")
		},
		"NotUnderstood /apis/wardle.example.com/v1": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/apis" {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", aggregatedType)
			_, _ = io.WriteString(w, `{"kind":"PodList","items":[]}`)
		},
		"TooLong /apis": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", aggregatedType)
			for b := bytes.Repeat([]byte(" "), 1<<20); ; {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		},
		"NoAnswer /apis": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	}
	other := map[string]http.HandlerFunc{ // the same by other responses
		"Refused /apis/wardle.example.com/v1": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		},
		"NotUnderstood /apis": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", aggregatedType)
			_, _ = io.WriteString(w, `{"kind":"PodList","items":[]}`)
		},
		"NotUnderstood /apis/wardle.example.com/v1": func(w http.ResponseWriter, _ *http.Request) {
			_,
				_ = io.WriteString(w, "<html>welcome</html>")
		},
	}
	for name, wrong := range other {
		wrongs[name+" "] = wrong
	}
	for name, wrong := range wrongs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, good)
			healthy := newFake(t, good)
			other := healthy.remote("v1.other.example.com", "a")
			p := learner(t, clock.RealClock{}, f.remote("v1.wardle.example.com", "a"), other)
			p.until(t, "current", func(d *discovery.Remote) bool {
				return states(d)["wardle.example.com/v1"] == "Current flunders" && states(d)["other.example.com/v1"] == "Current "
			})
			f.set(wrong)
			p.tell(f.remote("v1.wardle.example.com", "b"), other)
			d := p.until(t, "stale", func(d *discovery.Remote) bool { return states(d)["wardle.example.com/v1"] == "Stale flunders" })
			if states(d)["other.example.com/v1"] != "Current " {
				t.Errorf("another server suffers: %v", states(d))
			}
			p.await(t, "trouble is told of", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return slices.Contains(p.told, "v1.wardle.example.com "+strings.TrimSpace(name))
			})
			f.set(good)
			p.until(t, "current again, without being told", func(
				d *discovery.Remote) bool {
				return states(d)["wardle.example.com/v1"] == "Current flunders"
			})
			p.await(t, "all is well is told of", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				its := slices.DeleteFunc(slices.Clone(p.told), func(text string) bool { return !strings.HasPrefix(text, "v1.wardle.") })
				return its[len(its)-1] == "v1.wardle.example.com"
			})
			p.mu.Lock()
			said := p.log.String()
			p.mu.Unlock()
			if !strings.Contains(said, "v1.wardle.example.com") || strings.Contains(said, "v1.other.example.com") {
				t.Errorf("the log says:\n%s", said)
			}
		})
	}
}

// TestSlowServersHoldUpNobody has a server that does not respond beside one that does.
func TestSlowServersHoldUpNobody(t *testing.T) {
	release := make(chan struct{})
	slow := newFake(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	f := newFake(t, good)
	p := learner(t, clock.RealClock{}, slow.remote("v1.slow.example.com", "a"), f.remote("v1.wardle.example.com", "a"))
	d := p.until(t, "the other one is current", func(d *discovery.Remote) bool {
		return states(
			d)["wardle.example.com/v1"] == "Current flunders"
	})
	if got := states(d)["slow.example.com/v1"]; got != "Stale " {
		t.Errorf("the slow one is %q: namespaces must not be deleted without it", got)
	}
}

// crowd responds when n requests have arrived.
type crowd struct {
	mu   sync.Mutex
	n    int
	here int
	all  chan struct{}
}

// wait returns false if the client left before the other requests arrived.
func (c *crowd) wait(ctx context.Context) bool {
	c.mu.Lock()
	if c.here++; c.here == c.n {
		close(c.all)
	}
	c.mu.Unlock()
	select {
	case <-c.all:
		return true
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		c.here--
		return false
	}
}

// TestServersAreAskedAtTheSameTime has servers that respond only when all of them have received a request. Sequential
// requests would never end. Discovery and OpenAPI do not wait for each other either.
func TestServersAreAskedAtTheSameTime(t *testing.T) {
	const n = 4
	c := &crowd{n: 2 * n, all: make(chan struct{})}
	var remotes []Remote
	for i := range n {
		group := fmt.Sprintf("g%d.example.com", i)
		f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/apis":
				if c.wait(r.Context()) {
					w.Header().Set("Content-Type", aggregatedType)
					_, _ = io.WriteString(w, strings.Replace(flunders, "wardle.example.com", group, 1))
				}
			case "/openapi/v2":
				c.wait(r.Context())
				http.NotFound(w, r)
			default:
				http.NotFound(w, r)
			}
		})
		remotes = append(remotes, f.remote("v1."+group, "a"))
	}
	p := learner(t, clock.RealClock{}, remotes...)
	p.until(t, "all are current", func(d *discovery.Remote) bool {
		for _, s := range states(d) {
			if s != "Current flunders" {
				return false
			}
		}
		return len(states(d)) == n
	})
}

// TestUnavailableServersAreNotBelieved has a server that responds but whose registration is not available: its last
// results stay, marked stale, and it is asked again as soon as the registration is available.
func TestUnavailableServersAreNotBelieved(t *testing.T) {
	f, other := newFake(t, good), newFake(t, good)
	r := f.remote("v1.wardle.example.com", "a")
	r.Unavailable = true
	o := other.remote("v1.other.example.com", "a")
	p := learner(t, clock.RealClock{}, r, o)
	p.until(t, "the other one is current", func(d *discovery.Remote) bool {
		return cmp.Equal(states(d), map[string]string{"wardle.example.com/v1": "Stale ", "other.example.com/v1": "Current "})
	})
	f.mu.Lock()
	asked := len(f.counts)
	f.mu.Unlock()
	if asked > 0 {
		t.Errorf("it was asked for %d paths", asked)
	}
	r.Unavailable, r.State = false, "b"
	p.tell(r, o)
	p.until(t, "current", func(d *discovery.Remote) bool { return states(d)["wardle.example.com/v1"] == "Current flunders" })
	r.Unavailable, r.State = true, "c"
	p.tell(r, o)
	p.until(t, "stale", func(d *discovery.Remote) bool { return states(d)["wardle.example.com/v1"] == "Stale flunders" })
}

// TestLegacyDiscovery covers servers without aggregated discovery: each version is requested separately, and a failing
// one as often as the others.
func TestLegacyDiscovery(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/apis":
			_, _ = io.WriteString(w, `{"kind":"APIGroupList","groups":[]}`)
		case "/apis/wardle.example.com/v1":
			_, _ = io.WriteString(w, `{"kind":"APIResourceList","groupVersion":"wardle.example.com/v1","resources":[{"name":"flunders","kind":"Flunder"},{"name":"flunders/status","kind":"Flunder"}]}`)
		default:
			http.NotFound(w, r)
		}
	})
	p := learner(t, clock.RealClock{}, f.remote("v1.wardle.example.com", "a"), f.remote("v2.wardle.example.com", "a"))
	p.until(t, "one current, one stale", func(d *discovery.Remote) bool {
		return cmp.Equal(states(d), map[string]string{"wardle.example.com/v1": "Current flunders", "wardle.example.com/v2": "Stale "})
	})
}

func (p *plant) untilDocuments(t *testing.T, what string, ok func(a *openapi.Remote) bool) (a *openapi.Remote) {
	t.Helper()
	p.await(t, what, func() bool { a = p.OpenAPI(); return a != nil && ok(a) })
	return a
}

// TestOpenAPI checks that only documents of registered versions are listed, that each is fetched once, and that the
// last valid ones stay.
func TestOpenAPI(t *testing.T) {
	var fetched atomic.Int64
	serve := func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/openapi/v3/") {
			fetched.Add(1)
		}
		good(w, r)
	}
	f := newFake(t, serve)
	p := learner(t, clock.RealClock{}, f.remote("v1.wardle.example.com", "a"))
	whole := func(a *openapi.Remote) bool { return len(a.V3) == 1 && len(a.V2) == 1 }
	a := p.untilDocuments(t, "documents", whole)
	doc := a.V3["apis/wardle.example.com/v1"]
	if doc == nil || doc.Hash != "H" {
		t.Fatalf("documents: %v", a.V3)
	}
	for range 3 {
		b, current, err := doc.Get(t.Context(), "application/json")
		if err != nil || !current || unzip(t, b) != `{"openapi":"3.0.0"}` {
			t.Fatalf("document: %q, current %t, error %v", b, current, err)
		}
	}
	if n := fetched.Load(); n != 1 {
		t.Errorf("fetched %d times", n)
	}
	// the server is asked while the documents are fetched
	p.until(t, "current", func(d *discovery.Remote) bool { return states(d)["wardle.example.com/v1"] == "Current flunders" })
	f.set(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "}garbage") })
	p.tell(f.remote("v1.wardle.example.com", "b"))
	p.until(t, "stale", func(d *discovery.Remote) bool { return states(d)["wardle.example.com/v1"] == "Stale flunders" })
	p.tell(f.remote("v1.wardle.example.com", "c"))
	if a := p.OpenAPI(); !whole(a) {
		t.Errorf("the last good documents are gone: %v", a)
	}
}

// TestOldServersGetV3FromV2 checks that the v3 document of a server without v3 is converted from its v2 document.
func TestOldServersGetV3FromV2(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/openapi/v3") {
			http.NotFound(w, r)
			return
		}
		good(w, r)
	})
	p := learner(t, clock.RealClock{}, f.remote("v1.wardle.example.com", "a"))
	a := p.untilDocuments(t, "documents", func(a *openapi.Remote) bool { return len(a.V3) == 1 })
	b, current, err := a.V3["apis/wardle.example.com/v1"].Get(t.Context(), "application/json")
	if err != nil || !current {
		t.Fatal(err)
	}
	if got := unzip(t, b); !strings.Contains(got, "#/components/schemas/Flunder") || !strings.Contains(got, `"openapi":"3.0.0"`) {
		t.Errorf("document: %s", got)
	}
}

func unzip(t *testing.T, b []byte) string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func FuzzDiscovery(f *testing.F) {
	f.Add([]byte(flunders))
	f.Add([]byte(`{"items":[{"versions":[{"resources":[{}]}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		said, err := parseAggregated(b)
		if err != nil {
			return
		}
		for gv, v := range said {
			for _, r := range v.Resources {
				if r.ResponseKind == nil {
					t.Fatal(fmt.Sprint(gv, ": a resource without a kind"))
				}
			}
		}
	})
}
