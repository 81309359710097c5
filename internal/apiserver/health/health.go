// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package health serves /healthz, /livez and /readyz, and each check by its name below them.
//
// A [Check] is one part of a server's health: it has a name and returns an error. The roots run all their checks and
// print only names, since all users may read them. A check's own path prints its error. The query can exclude checks
// (exclude) and request all names (verbose). [Handler.Results] counts the roots' results, for /metrics/slis.
package health

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Root is one of the three paths that run all checks.
type Root string

// The roots.
const (
	Healthz Root = "healthz"
	Livez   Root = "livez"
	Readyz  Root = "readyz"
)

// Roots returns all roots.
func Roots() []Root { return []Root{Healthz, Livez, Readyz} }

// Check is one health check.
type Check struct {
	Name string
	// Run returns an error if the check fails.
	Run func(ctx context.Context) error
	// Only lists the roots that run the check; nil: all.
	Only []Root
}

func (c *Check) of(r Root) bool { return c.Only == nil || slices.Contains(c.Only, r) }

// limit is the total time of the checks of one request.
const limit = 5 * time.Second

// Handler serves the health paths.
type Handler struct {
	checks []Check
	log    *slog.Logger
	tally  tally
}

// New returns a handler that runs checks in the given order.
func New(log *slog.Logger, checks ...Check) *Handler {
	return &Handler{checks: checks, log: log, tally: newTally(checks)}
}

// Paths returns all paths of the handler, the roots first.
func (h *Handler) Paths() []string {
	var paths []string
	for _, root := range Roots() {
		paths = append(paths, "/"+string(root))
		for i := range h.checks {
			if h.checks[i].of(root) {
				paths = append(paths, "/"+string(root)+"/"+h.checks[i].Name)
			}
		}
	}
	return paths
}

// ServeHTTP serves a root, or one check below it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	name, one, below := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	root := Root(name)
	if below {
		h.one(ctx, w, root, one)
		return
	}
	q := r.URL.Query()
	out, failed := h.ask(ctx, root, q["exclude"])
	if failed {
		http.Error(w, out.String()+name+" check failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if _, verbose := q["verbose"]; !verbose {
		out.Reset()
		out.WriteString("ok")
	} else {
		fmt.Fprintf(out, "%s check passed\n", name)
	}
	_, _ = w.Write(out.Bytes()) // the client may have left
}

// one serves a single check with its error.
func (h *Handler) one(ctx context.Context, w http.ResponseWriter, root Root, name string) {
	i := slices.IndexFunc(h.checks, func(c Check) bool { return c.Name == name && c.of(root) })
	if i < 0 {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	if err := h.checks[i].Run(ctx); err != nil {
		http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok")
}

// ask runs the checks of a root and writes a line for each. Errors only appear in the log.
func (h *Handler) ask(ctx context.Context, root Root, exclude []string) (out *bytes.Buffer, failed bool) {
	out = &bytes.Buffer{}
	unknown := slices.Clone(exclude)
	slices.Sort(unknown)
	unknown = slices.Compact(unknown)
	for i := range h.checks {
		c := &h.checks[i]
		if !c.of(root) {
			continue
		}
		if slices.Contains(exclude, c.Name) {
			unknown = slices.DeleteFunc(unknown, func(n string) bool { return n == c.Name })
			fmt.Fprintf(out, "[+]%s excluded: ok\n", c.Name)
			continue
		}
		err := c.Run(ctx)
		h.tally.count(i, root, err == nil)
		if err != nil {
			failed = true
			fmt.Fprintf(out, "[-]%s failed: reason withheld\n", c.Name)
			h.log.WarnContext(ctx, "Health check failed", "root", root, "check", c.Name, "error", err)
			continue
		}
		fmt.Fprintf(out, "[+]%s ok\n", c.Name)
	}
	if len(unknown) > 0 {
		for i, n := range unknown {
			unknown[i] = fmt.Sprintf("%q", n)
		}
		fmt.Fprintf(out, "warn: some health checks cannot be excluded: no matches for %s\n", strings.Join(unknown, ","))
	}
	return out, failed
}
