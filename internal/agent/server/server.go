// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package server implements the node's own HTTP API, as a kubelet serves it: the API server calls it for logs, exec, attach and
// port-forward, and metrics collectors call it for metrics.
//
//	/healthz                                   ok
//	/pods, /runningpods/                       the node's pods, as a PodList
//	/containerLogs/NAMESPACE/POD/CONTAINER     logs.go
//	/exec, /attach, /portForward, /run         stream.go
//	/stats/summary                             summary.go, host.go
//	/metrics, /metrics/resource                metrics.go
//	/metrics/probes                            results of probes
//	/checkpoint                                a container's checkpoint: checkpoint.go
//	/metrics/cadvisor                          the kernel's accounting of all cgroups: cadvisor.go
//	/configz                                   the kubelet configuration in effect
//	/statusz, /flagz                           versions and uptime; the effective flags
//
// readonly.go serves some of them to every client, at kubelet's read-only port.
//
// A [Server] knows nothing of containers: it serves an [nodeapi.Node], which is the real node or a simulated one. It proxies streams to the
// streaming server of the container runtime, which speaks SPDY, and translates newer WebSocket clients.
//
// Without a kubelet configuration, every request needs a client certificate that the cluster's CA signed, of a user that Options.Allow
// accepts. With one, the API server also reviews tokens and other users (review.go). One Server serves any number of connections, which end
// when Serve's context ends. [ServeNodes] serves many nodes on one listener (nodes.go).
package server

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/lru"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/agent/nodeapi"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/stats"
	"github.com/mortise-dev/mortise/internal/zpages"
)

// Options decide which clients a Server accepts, and what it serves beside the node's data. The zero value accepts no client.
type Options struct {
	// ClientCAs verify client certificates. Nil: the listener's TLS configuration verifies them.
	ClientCAs *x509.CertPool
	// Allow decides on a user by the certificate's common name and organizations; nil: members of system:masters, and
	// the API server's customary names.
	Allow func(user string, groups []string) bool
	// Metrics are served at /metrics; nil: those of the process. Requests are added to them; nil: requests are not counted.
	Metrics  prometheus.Gatherer
	Requests *RequestMetrics
	// Probes are the metrics at /metrics/probes; nil: the page does not exist.
	Probes prometheus.Gatherer
	// Host measures the machine; nil: the server reports Host of the node's stats, or nothing if that is nil.
	Host func() (stats.Host, error)
	// Logger; nil: nothing is logged.
	Logger *slog.Logger
	// Clock; nil: time.Now.
	Clock func() time.Time
	// MoreClientCAs verify client certificates as well; nil: none.
	MoreClientCAs *x509.CertPool
	// Kubelet decides which other clients the server accepts, and what it serves. Nil: clients need certificates, and only Allow decides.
	Kubelet *configv1beta1.KubeletConfiguration
	// Effective returns the contents of /configz; nil: the page does not exist.
	Effective *configv1beta1.KubeletConfiguration
	// Pages are /statusz and /flagz, without their paths; nil: the pages do not exist.
	Pages *zpages.Component
	// Extensions are served at trace.NodeRoute; nil: the page does not exist.
	Extensions *extension.Ledger
	// Reviews reviews tokens and users, if Kubelet is set; nil: there are no reviews.
	Reviews kubernetes.Interface
}

// Server serves one node's API.
type Server struct {
	node   nodeapi.Node
	o      Options
	mux    *http.ServeMux
	closed streams

	reviews *reviewer // nil: there are no reviews
	rates   rates
}

// New makes the API of a node.
func New(node nodeapi.Node, o Options) *Server {
	if o.Allow == nil {
		o.Allow = allowAPIServer
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	s := &Server{node: node, o: o, mux: http.NewServeMux()}
	if o.Kubelet != nil && o.Reviews != nil {
		s.reviews = &reviewer{client: o.Reviews, node: node.Name(), now: o.Clock, config: o.Kubelet, answers: lru.New(kept)}
	}
	s.routes()
	return s
}

// Serve returns the function with which a node serves its API.
func Serve(o Options) nodeapi.ServeFunc {
	return func(ctx context.Context, node nodeapi.Node, listener net.Listener) error {
		return New(node, o).Serve(ctx, listener)
	}
}

// Serve serves on a listener that returns TLS connections until ctx is done. Then it closes all connections and returns nil.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	defer s.closed.closeAll()
	return serve(ctx, s, listener, s.o.Logger)
}

func serve(ctx context.Context, handler http.Handler, listener net.Listener, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           handler,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	err := srv.Serve(listener)
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// host returns the usage of the whole machine, which [Options] or else the node measures; nil if neither does.
func (s *Server) host(node *stats.Usage) (*stats.Host, error) {
	if s.o.Host != nil {
		h, err := s.o.Host()
		return &h, err
	}
	return node.Host, nil
}

func (s *Server) routes() {
	s.mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	s.mux.HandleFunc("GET /pods", s.pods)
	s.mux.HandleFunc("GET /runningpods/", s.runningPods)
	if s.o.Effective != nil {
		s.mux.HandleFunc("GET /configz", s.configz)
	}
	if k := s.o.Kubelet; s.o.Pages != nil && (k == nil || *k.EnableDebuggingHandlers) {
		pages := *s.o.Pages
		pages.Now, pages.Paths = s.o.Clock, func() []string { return []string{"/configz", "/flagz", "/healthz", "/metrics"} }
		s.mux.HandleFunc("/statusz", pages.Statusz)
		s.mux.HandleFunc("/flagz", pages.Flagz)
	}
	s.mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.debugging(s.containerLogs))
	for path, handler := range map[string]http.HandlerFunc{"exec": s.exec, "attach": s.attach, "run": s.run} {
		handler, methods := s.debugging(handler), []string{"GET", "POST"}
		if path == "run" {
			methods = methods[1:]
		}
		for _, m := range methods {
			s.mux.HandleFunc(m+" /"+path+"/{namespace}/{pod}/{container}", handler)
			s.mux.HandleFunc(m+" /"+path+"/{namespace}/{pod}/{uid}/{container}", handler)
		}
	}
	if s.o.Extensions != nil {
		s.mux.HandleFunc("GET "+trace.NodeRoute, s.debugging(extensions(s.o.Extensions)))
	}
	for _, m := range []string{"GET", "POST"} {
		s.mux.HandleFunc(m+" /portForward/{namespace}/{pod}", s.debugging(s.portForward))
		s.mux.HandleFunc(m+" /portForward/{namespace}/{pod}/{uid}", s.debugging(s.portForward))
	}
	s.mux.HandleFunc("GET /stats/summary", s.summary)
	s.mux.Handle("GET /metrics", s.processMetrics())
	s.mux.Handle("GET /metrics/resource", s.resourceMetrics())
	if s.o.Probes != nil {
		s.mux.Handle("GET /metrics/probes", promhttp.HandlerFor(s.o.Probes, promhttp.HandlerOpts{}))
	}
	if to, ok := s.node.(nodeapi.Checkpointer); ok {
		s.mux.HandleFunc("POST /checkpoint/{namespace}/{pod}/{container}", checkpoint(s.node, to))
	}
	s.mux.Handle("GET /metrics/cadvisor", s.cadvisorMetrics())
}

// ServeHTTP authenticates and authorizes the client, and serves the request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.o.Requests.serve(http.HandlerFunc(s.serveAllowed), w, r, s.o.Clock)
}

// serveAllowed serves the request of a client that may make it.
func (s *Server) serveAllowed(w http.ResponseWriter, r *http.Request) {
	if s.o.Kubelet != nil {
		if s.admitted(w, r) {
			s.mux.ServeHTTP(w, r)
		}
		return
	}
	user, groups, err := s.authenticate(r)
	if err != nil {
		s.o.Logger.Debug("Refused a client", "remote", r.RemoteAddr, "error", err)
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	if !s.o.Allow(user, groups) {
		http.Error(w, "Forbidden (user="+user+")", http.StatusForbidden)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// authenticate returns the user of the client's certificate.
func (s *Server) authenticate(r *http.Request) (user string, groups []string, err error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return "", nil, errors.New("no client certificate")
	}
	leaf := r.TLS.PeerCertificates[0]
	if s.o.ClientCAs != nil {
		between := x509.NewCertPool()
		for _, c := range r.TLS.PeerCertificates[1:] {
			between.AddCert(c)
		}
		usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		_, err := leaf.Verify(x509.VerifyOptions{Roots: s.o.ClientCAs, Intermediates: between, KeyUsages: usages, CurrentTime: s.o.Clock()})
		if err != nil && s.o.MoreClientCAs != nil {
			_, err = leaf.Verify(x509.VerifyOptions{Roots: s.o.MoreClientCAs, Intermediates: between, KeyUsages: usages, CurrentTime: s.o.Clock()})
		}
		if err != nil {
			return "", nil, err
		}
	} else if len(r.TLS.VerifiedChains) == 0 {
		return "", nil, errors.New("client certificate was not verified")
	}
	return leaf.Subject.CommonName, leaf.Subject.Organization, nil
}

// allowAPIServer accepts administrators, and the names by which API servers authenticate to kubelets.
func allowAPIServer(user string, groups []string) bool {
	return slices.Contains(groups, "system:masters") || slices.Contains(groups, "kubeadm:cluster-admins") ||
		slices.Contains([]string{"system:apiserver", "kube-apiserver", "kube-apiserver-kubelet-client"}, user)
}

// target returns the container that a path names.
func target(r *http.Request) podspec.Target {
	return podspec.Target{
		Namespace: r.PathValue("namespace"), Pod: r.PathValue("pod"),
		UID: uid(r.PathValue("uid")), Container: r.PathValue("container"),
	}
}

// writeError responds as a kubelet does: with the error's text, which the API server puts into its own Status.
func writeError(w http.ResponseWriter, err error, code int) {
	text := err.Error()
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code, text = int(status.Status().Code), status.Status().Message
	}
	http.Error(w, strings.TrimSpace(text), code)
}
