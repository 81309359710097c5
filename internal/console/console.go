// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
)

// Root is the path below which the console is, without a proxy's prefix.
const Root = "/console/"

// Authenticator returns the user of a request's own credentials: a client certificate, a bearer token. It may remove them from the
// request's headers.
type Authenticator interface {
	Authenticate(r *http.Request) (user.Info, error)
}

// Options of [New]. API, Authenticator and Key are required.
type Options struct {
	// API is the API server's pipeline. It takes the user of a request from its context (request.WithUser), if there is one, and
	// otherwise authenticates the request.
	API           http.Handler
	Authenticator Authenticator
	// Key seals sessions.
	Key Key
	// Host reports whether clients may address the server by a name, beside addresses and localhost; nil: by none.
	Host func(name string) bool
	// Issuers returns the issuers of ID tokens at which users sign in; nil: there are none.
	Issuers Issuers
	Log     *slog.Logger     // nil: nothing is logged
	Now     func() time.Time // nil: time.Now

	// WatchBytes limits the events of one watch that the browser has not received yet; 0: 1 MiB.
	WatchBytes int
}

// Console serves the page, its sessions, and the API for it.
type Console struct {
	api      http.Handler
	users    *users
	sessions *sessions
	host     func(name string) bool
	issuers  *signIns
	log      *slog.Logger
	now      func() time.Time
	codes    *codes
	static   *static
	sockets  *sockets
	watchMax int
	routes   map[string]route // by path below api/
}

// route is one path below /console/api/.
type route struct {
	method string
	serve  func(w http.ResponseWriter, r *http.Request, at *place)
	kind   requestKind
}

// requestKind is what must be shown before a request is served.
type requestKind int

const (
	readKind     requestKind = iota // a fetch of the page, if it comes from a browser
	writeKind                       // also the header of the page's writes, and the origin
	socketKind                      // a WebSocket of the page
	navigateKind                    // a navigation, which another site may have begun
	ownKind                         // a write with the client's own credentials, not those of a session
)

// New makes a console.
func New(o Options) (*Console, error) {
	if o.API == nil || o.Authenticator == nil {
		return nil, errors.New("make console: no API")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Host == nil {
		o.Host = func(string) bool { return false }
	}
	if o.WatchBytes == 0 {
		o.WatchBytes = watchBytes
	}
	files, err := loadStatic()
	if err != nil {
		return nil, fmt.Errorf("make console: %w", err)
	}
	sealer, err := newSealer(o.Key)
	if err != nil {
		return nil, fmt.Errorf("make console: %w", err)
	}
	c := &Console{
		api: o.API, users: &users{o.Authenticator, o.Now}, sessions: &sessions{sealer, o.Now},
		host: o.Host, issuers: &signIns{of: o.Issuers}, log: o.Log, now: o.Now,
		codes: &codes{now: o.Now}, static: files, sockets: newSockets(), watchMax: o.WatchBytes,
	}
	c.routes = map[string]route{
		"session":       {http.MethodGet, c.session, readKind},
		"login":         {http.MethodPost, c.login, writeKind},
		"logout":        {http.MethodPost, c.logout, writeKind},
		"certificate":   {http.MethodGet, c.certificate, readKind},
		"codes":         {http.MethodPost, c.makeCode, ownKind},
		"oidc/login":    {http.MethodGet, c.beginOIDC, navigateKind},
		"oidc/callback": {http.MethodGet, c.endOIDC, navigateKind},
		"watch":         {http.MethodGet, c.watch, socketKind},
	}
	return c, nil
}

// Before returns a handler that serves the paths of the console, and passes other requests to next.
func (c *Console) Before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, ok := strings.CutPrefix(r.URL.Path, Root)
		switch {
		case ok:
			c.serve(w, r, path)
		case r.URL.Path == strings.TrimSuffix(Root, "/"):
			c.serveBare(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// Run ends the connections that outlast their request's handler when ctx ends, and returns when they have ended.
func (c *Console) Run(ctx context.Context) {
	<-ctx.Done()
	c.sockets.end()
}

// serveBare redirects from the path without its slash.
func (c *Console) serveBare(w http.ResponseWriter, r *http.Request) {
	at, err := c.placeOf(r)
	if err != nil {
		writeError(w, err)
		return
	}
	protect(w.Header())
	http.Redirect(w, r, at.root(), http.StatusPermanentRedirect)
}

// serve serves a path below the root.
func (c *Console) serve(w http.ResponseWriter, r *http.Request, path string) {
	protect(w.Header())
	at, err := c.placeOf(r)
	if err != nil {
		writeError(w, err)
		return
	}
	if in, ok := strings.CutPrefix(path, "cluster/"); ok {
		c.cluster(w, r, at, "/"+in)
		return
	}
	in, ok := strings.CutPrefix(path, "api/")
	if !ok {
		c.static.serve(w, r, path, at)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	to, ok := c.routes[in]
	switch {
	case !ok:
		writeError(w, newStatus(http.StatusNotFound, "the console has no such path"))
	case r.Method != to.method && (r.Method != http.MethodHead || to.method != http.MethodGet):
		w.Header().Set("Allow", to.method)
		writeError(w, newStatus(http.StatusMethodNotAllowed, "the path serves "+to.method+" alone"))
	default:
		if err := at.check(r, to.kind); err != nil {
			writeError(w, err)
			return
		}
		to.serve(w, r, at)
	}
}
