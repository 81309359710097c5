// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/rest"
	upstream "sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/mortise-dev/mortise/embed"
)

// WebhookServer is a controller-runtime webhook server without a port and without certificates of its own: the API server of one
// cluster, and of its forks, calls it through pipes. It is the WebhookServer of a manager's options:
//
//	hooks, err := envtest.NewWebhookServer(cluster)
//	manager, err := ctrl.NewManager(config, ctrl.Options{WebhookServer: hooks})
//	err = hooks.Install(config, &envtest.WebhookInstallOptions{Paths: []string{filepath.Join("..", "config", "webhook")}})
//
// It answers while its Start runs; before and afterwards it drops connections.
type WebhookServer struct {
	process *embed.InProcess
	mux     *http.ServeMux
	running atomic.Bool

	mu    sync.Mutex
	paths map[string]bool
}

var _ webhook.Server = (*WebhookServer)(nil)

// NewWebhookServer returns a webhook server of a cluster that runs, with its store in memory.
func NewWebhookServer(cluster *embed.Server) (*WebhookServer, error) {
	s := &WebhookServer{mux: http.NewServeMux(), paths: map[string]bool{}}
	process, err := cluster.ServeInProcess(http.HandlerFunc(s.serve))
	if err != nil {
		return nil, fmt.Errorf("make webhook server: %w", err)
	}
	s.process = process
	return s, nil
}

func (s *WebhookServer) serve(w http.ResponseWriter, r *http.Request) {
	if !s.running.Load() {
		panic(http.ErrAbortHandler)
	}
	s.mux.ServeHTTP(w, r)
}

// NeedLeaderElection implements [webhook.Server]: the server runs in every replica.
func (s *WebhookServer) NeedLeaderElection() bool { return false }

// Register implements [webhook.Server]. It panics if the path has a handler.
func (s *WebhookServer) Register(path string, hook http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paths[path] {
		panic(fmt.Sprintf("register webhook: %s has a handler", path))
	}
	s.paths[path] = true
	s.mux.Handle(path, hook)
}

// Start implements [webhook.Server]. It returns when ctx ends.
func (s *WebhookServer) Start(ctx context.Context) error {
	s.running.Store(true)
	defer s.running.Store(false)
	<-ctx.Done()
	return nil
}

// StartedChecker implements [webhook.Server].
func (s *WebhookServer) StartedChecker() healthz.Checker {
	return func(*http.Request) error {
		if !s.running.Load() {
			return errors.New("the webhook server does not run")
		}
		return nil
	}
}

// WebhookMux implements [webhook.Server].
func (s *WebhookServer) WebhookMux() *http.ServeMux { return s.mux }

// Install creates the webhook configurations of the options, for this server: it serves the paths of their Services. CRDs that
// are installed with the options afterwards (CRDInstallOptions.WebhookOptions) are converted by this server too.
func (s *WebhookServer) Install(config *rest.Config, o *WebhookInstallOptions) error {
	if err := s.prepare(o); err != nil {
		return err
	}
	if err := o.Install(config); err != nil {
		return fmt.Errorf("install webhooks: %w", err)
	}
	return nil
}

// prepare reads the configurations, and names this server in them.
func (s *WebhookServer) prepare(o *WebhookInstallOptions) error {
	o.LocalServingHost, o.LocalServingPort, o.LocalServingHostExternalName = s.process.Host(), s.process.Port(), ""
	if err := o.PrepWithoutInstalling(); err != nil {
		return fmt.Errorf("read webhooks: %w", err)
	}
	if err := o.Cleanup(); err != nil { // of the certificate that was made for a port
		return fmt.Errorf("read webhooks: %w", err)
	}
	o.LocalServingCertDir, o.LocalServingCAData = "", s.process.CA()
	if err := o.ModifyWebhookDefinitions(); err != nil {
		return fmt.Errorf("read webhooks: %w", err)
	}
	return nil
}

// installFor installs what the environment has, with its webhooks on the server.
func (s *WebhookServer) installFor(e *Environment) error {
	if err := s.prepare(&e.WebhookInstallOptions); err != nil {
		return err
	}
	o := &e.CRDInstallOptions
	if o.Scheme == nil {
		o.Scheme = e.Scheme
	}
	o.CRDs = append(slices.Clone(o.CRDs), e.CRDs...)
	for _, p := range e.CRDDirectoryPaths {
		if !slices.Contains(o.Paths, p) {
			o.Paths = append(o.Paths, p)
		}
	}
	o.ErrorIfPathMissing, o.WebhookOptions = e.ErrorIfCRDPathMissing, e.WebhookInstallOptions
	crds, err := upstream.InstallCRDs(e.Config, *o)
	if err != nil {
		return fmt.Errorf("install definitions: %w", err)
	}
	e.CRDs = crds
	if err := e.WebhookInstallOptions.Install(e.Config); err != nil {
		return fmt.Errorf("install webhooks: %w", err)
	}
	return nil
}
