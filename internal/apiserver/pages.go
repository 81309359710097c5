// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"k8s.io/klog/v2"

	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/internal/zpages"
)

// pages registers the handlers of /statusz, /flagz and /configz.
func (s *Server) pages(mux map[string]http.Handler) *zpages.Component {
	pages := zpages.New("apiserver", s.opts.Version)
	pages.Started, pages.Now, pages.Pretty = s.started, s.opts.Now, negotiate.Pretty
	pages.Fail = func(w http.ResponseWriter, r *http.Request, err error) { status.Write(w, r, err) }
	pages.Paths = func() []string { return slices.DeleteFunc(listed(s.Kinds(), mux), ownPage) }
	pages.Flags, pages.Config = s.opts.Pages.Flags, s.opts.Pages.Config
	if pages.Flags == nil {
		pages.Flags = func() map[string]string { return nil }
	}
	if pages.Config == nil {
		pages.Config = func() map[string]any { return map[string]any{} }
	}
	return pages
}

// ownPage reports whether a path is Mortise's own: /statusz of kube-apiserver does not list it.
func ownPage(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return !slices.Contains([]string{"flagz", "healthz", "livez", "metrics", "readyz", "statusz", "version"}, first)
}

// debugFlags lists the flags that can be changed at run time, and changes them. There is one: v, the log level of the
// Kubernetes libraries.
func debugFlags(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/debug/flags/v" {
		_, _ = io.WriteString(w, "<html>\n<head>\n<title>/debug/flags/</title>\n</head>\n<body>\n/debug/flags/<br>\n<br>\nflags:<br>\n<table>\n<tr>v<br>\n</table>\n<br>\nfull flags configurable<br>\n</body>\n</html>\n")
		return
	}
	code, text := http.StatusNotAcceptable, "unsupported http method"
	if r.Method == http.MethodPut {
		code, text = setVerbosity(r.Body)
	}
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text)
}

func setVerbosity(body io.Reader) (code int, text string) {
	b, err := io.ReadAll(io.LimitReader(body, 100))
	if err != nil {
		return http.StatusBadRequest, "error reading request body: " + err.Error()
	}
	var level klog.Level
	if _, err := strconv.ParseUint(string(b), 10, 32); err != nil {
		return http.StatusBadRequest, err.Error()
	} else if err := level.Set(string(b)); err != nil {
		return http.StatusBadRequest, err.Error()
	}
	return http.StatusOK, "successfully set klog.logging.verbosity to " + string(b) // upstream's words
}
