// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/authenticate"
	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

// newAuthentication makes the authenticators. Keys and authorities that the settings leave open come from the server's
// material.
func (s *Server) newAuthentication(ctx context.Context) error {
	settings := s.opts.Authentication
	var own *authenticate.Certificate
	if m := s.opts.Material; m != nil {
		own = &authenticate.Certificate{Roots: m.CA.Pool(), Own: m.Admin.Certificate, Now: s.opts.Now, Seen: s.metrics.Certificate}
		if settings.Accounts.Signer == nil {
			signer, err := authenticate.NewSigner(m.ServiceAccount)
			if err != nil {
				return err
			}
			settings.Accounts.Signer = signer
		}
		if settings.FrontProxy == nil {
			ca, err := authenticate.NewBundle(m.FrontProxyCA.CertPEM)
			if err != nil {
				return err
			}
			settings.FrontProxy = &authenticate.FrontProxy{
				Authorities: ca, Names: []string{m.FrontProxyClient.Certificate.Subject.CommonName}, Headers: authenticate.StandardHeaders(),
			}
		}
	}
	var err error
	s.access.authn, err = authenticate.New(ctx, settings, own, authenticate.Deps{
		Objects: func() authenticate.Objects { return s.registry.Backend() }, Label: s.labelSecret, Ledger: s.opts.Ledger, Egress: s.opts.Egress,
		Log: s.opts.Log, Now: s.opts.Now, ID: settings.ServerID,
	}, s.opts.Authenticators...)
	if err != nil {
		return fmt.Errorf("make authentication: %w", err)
	}
	if err := s.metrics.Registry().Register(s.access.authn.Metrics()); err != nil {
		return fmt.Errorf("make authentication: %w", err)
	}
	s.trust = func() *x509.CertPool { return nil }
	if own != nil {
		s.trust = trusted([]byte(s.opts.Material.CA.CertPEM), settings.FrontProxy.Authorities, settings.ClientCAs)
	}
	return nil
}

// labelSecret labels a secret as the server itself, so that the label has a field manager and the audit log an event.
func (s *Server) labelSecret(_ context.Context, namespace, name string, uid types.UID, key, value string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid, "labels": map[string]string{key: value}}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	config := s.Config(&user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}})
	config.UserAgent = "kube-apiserver"
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	// This request is separate from the one with the token: it has its own audit event and deadline.
	own, cancel := context.WithTimeout(s.lifetime.Context, labelWait)
	defer cancel()
	_, err = client.Secrets(namespace).Patch(own, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// labelWait is the deadline of a request that labels a secret.
const labelWait = 10 * time.Second

// trusted returns a function that returns all CAs of client certificates. It returns the same pool until one of the
// bundles changes.
func trusted(own []byte, bundles ...*authenticate.Bundle) func() *x509.CertPool {
	type made struct {
		of  []*x509.CertPool
		all *x509.CertPool
	}
	var last atomic.Pointer[made]
	return func() *x509.CertPool {
		now := &made{}
		for _, b := range bundles {
			if b != nil {
				now.of = append(now.of, b.Pool())
			}
		}
		if m := last.Load(); m != nil {
			same := true
			for i := range m.of {
				same = same && m.of[i] == now.of[i]
			}
			if same {
				return m.all
			}
		}
		now.all = x509.NewCertPool()
		now.all.AppendCertsFromPEM(own)
		for _, b := range bundles {
			if b != nil {
				now.all.AppendCertsFromPEM(b.PEM())
			}
		}
		last.Store(now)
		return now.all
	}
}

// askCertificates makes each TLS handshake request client certificates of the current CAs.
func (s *Server) askCertificates(base *tls.Config) {
	type made struct {
		pool   *x509.CertPool
		config *tls.Config
	}
	base.ClientCAs = s.trust()
	last := atomic.Pointer[made]{}
	last.Store(&made{pool: base.ClientCAs})
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, m := s.trust(), last.Load()
		if m.pool != pool {
			c := base.Clone()
			c.ClientCAs, c.GetConfigForClient = pool, nil
			m = &made{pool, c}
			last.Store(m)
		}
		return m.config, nil // nil: the initial configuration
	}
}

// authenticateStage authenticates the request. In-process clients have set their user already.
func authenticateStage(s *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	if _, ok := request.UserFrom(r.Context()); ok {
		next.ServeHTTP(w, r)
		return
	}
	asks := r
	if len(r.Header["Authorization"]) > 0 {
		asks = r.WithContext(warning.WithWarningRecorder(r.Context(), warner{w.Header()}))
	}
	who, err := s.access.authenticated(r, asks)
	if err != nil {
		s.opts.Log.DebugContext(r.Context(), "Could not authenticate a request", "error", err)
		closeAfter(w, r)
		e := apierrors.NewUnauthorized("Unauthorized")
		e.ErrStatus.Details = nil
		s.refused(w, r, audit.Attempted(r), func(w http.ResponseWriter, r *http.Request) { status.Write(w, r, e) })
		return
	}
	if isAnonymous(who) {
		closeAfter(w, r)
	}
	next.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), who)))
}

// closeAfter closes the HTTP/2 connection of an unauthenticated client after this request: such connections are cheap to abuse.
func closeAfter(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 {
		w.Header().Set("Connection", "close")
	}
}

func isAnonymous(who user.Info) bool {
	if who.GetName() == authenticate.AnonymousUser {
		return true
	}
	for _, g := range who.GetGroups() {
		if g == authenticate.Unauthenticated {
			return true
		}
	}
	return false
}

// warner adds the warnings of authenticators to the response.
type warner struct{ header http.Header }

// AddWarning implements [warning.Recorder].
func (w warner) AddWarning(agent, text string) {
	if text == "" {
		return
	}
	if agent == "" {
		agent = "-"
	}
	if line, err := utilnet.NewWarningHeader(299, agent, text); err == nil {
		w.header.Add("Warning", line)
	}
}

// Authenticators returns the authenticators, which also sign tokens.
func (s *Server) Authenticators() *authenticate.Authenticators { return s.access.authn }

// discoverKeys serves the paths from which clients that verify service-account tokens themselves read the keys.
func discoverKeys(mux map[string]http.Handler, a *authenticate.Accounts, log *slog.Logger) {
	if a == nil {
		return
	}
	if _, _, _, ok, err := a.Discovery("localhost"); !ok || err != nil {
		log.Warn("Not serving the discovery documents of service account tokens, because the issuer is not an https URL",
			"issuer", a.Issuers[0], "error", err)
		return
	}
	document := func(media string, pick func(config, keys []byte) []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			config, keys, age, _, err := a.Discovery(address(r))
			if err != nil {
				status.Write(w, r, err)
				return
			}
			b := pick(config, keys)
			w.Header().Set("Content-Type", media)
			w.Header().Set("Cache-Control", "public, max-age="+strconv.Itoa(age))
			w.Header().Set("Content-Length", strconv.Itoa(len(b)))
			_, _ = w.Write(b) // the client may have left
		}
	}
	routes(mux, "/.well-known/openid-configuration", negotiate.JSON, document(negotiate.JSON, func(config, _ []byte) []byte { return config }))
	routes(mux, "/openid/v1/jwks", mediaKeySet, document(mediaKeySet, func(_, keys []byte) []byte { return keys }))
}

// address returns the server's address that a request used, as HOST:PORT.
func address(r *http.Request) string {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		return local.String()
	}
	return r.Host
}
