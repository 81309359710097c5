// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Pages are the pages that kube-proxy serves at its metricsBindAddress.
type Pages struct {
	Mode          func() string // the backend of the rules
	Metrics       *Metrics
	Configuration any // a KubeProxyConfiguration
	Profiling     bool
}

// Handler serves /healthz, /proxyMode, /metrics and /configz, and with Profiling /debug/pprof.
func (p Pages) Handler() http.Handler {
	mux := http.NewServeMux()
	said := func(text func() string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = io.WriteString(w, text()) // the client may have gone away
		}
	}
	mux.HandleFunc("/healthz", said(func() string { return "ok" }))
	mux.HandleFunc("/proxyMode", said(p.Mode))
	mux.Handle("/metrics", promhttp.HandlerFor(p.Metrics.Gatherer(), promhttp.HandlerOpts{}))
	mux.HandleFunc("/configz", p.configz)
	if p.Profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// configz serves the configuration by its component, as kube-proxy does.
func (p Pages) configz(w http.ResponseWriter, _ *http.Request) {
	body, err := json.Marshal(map[string]any{"kubeproxy.config.k8s.io": p.Configuration})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body) // the client may have gone away
}
