// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package aggregated is the other half of API aggregation: a [Server] serves API groups from a few functions, as a process of its
// own behind any Kubernetes API server, with the authentication and authorization that clients expect.
//
//	s := &aggregated.Server{
//		Config: config, // how to reach the cluster
//		Resources: []aggregated.Resource{{
//			Group: "example.com", Version: "v1", Name: "greetings", Kind: "Greeting", Namespaced: true,
//			List: func(ctx context.Context, r *aggregated.Request) (aggregated.List, error) { … },
//		}},
//	}
//	if err := s.Start(ctx); err != nil { … }
//	err := s.Register(ctx, "127.0.0.1") // a Service of type ExternalName, and an APIService for each group version
//
// The functions that a [Resource] sets determine its verbs: List alone serves get and list, with selectors, columns and
// metadata-only responses; Watch, Create, Update and Delete serve the verbs of these names, Update also patch, and Delete
// also deletecollection. Discovery (old and aggregated) and OpenAPI (v2 and v3) are derived from the resources.
//
// It is for servers that compute or fetch their objects, not for those that store them: it does not support server-side
// apply and strategic merge patches (both get 415), subresources such as status, protobuf, admission, and field selectors
// other than names. For these, use a CustomResourceDefinition, or k8s.io/apiserver, whose servers work behind Mortise
// unmodified.
//
// It authenticates as kube-apiserver's own libraries do: by the front proxy's headers if its certificate is signed by the
// CA that ConfigMap kube-system/extension-apiserver-authentication names, by a client certificate of the cluster's CA, or
// by a TokenReview; otherwise the user is system:anonymous. It authorizes by a SubjectAccessReview of the cluster, except
// for the group system:masters. It caches the answers for ten seconds. It watches the ConfigMap, so that a new CA needs no
// restart. Config's user needs the Role extension-apiserver-authentication-reader in kube-system and the ClusterRole
// system:auth-delegator.
//
// # Concurrency
//
// The server calls the functions of resources concurrently. Their context ends with the request.
//
// # Stability
//
// What this package exports only grows: a committed list of it is compared in a test, and a change that breaks a program is announced in a
// release before.
package aggregated

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Server serves resources. Start it once, Stop it once. Config and Resources are required. Start reads the fields; do not change them
// afterwards.
type Server struct {
	// Config is the client configuration for the cluster: for the ConfigMap, for reviews, and for Register.
	Config *rest.Config
	// Resources are the served resources.
	Resources []Resource

	// Listen is HOST:PORT; empty: a free port of 127.0.0.1.
	Listen string
	// CertFile and KeyFile are the server's certificate; empty: the process creates one for Namespace and Service, and loses it when it
	// ends.
	CertFile, KeyFile string
	// Namespace and Service name the Service by which the cluster reaches this server; empty: default and aggregated.
	Namespace, Service string
	// Logger receives the server's logs; nil discards them.
	Logger *slog.Logger
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	client  kubernetes.Interface
	api     *api
	serving *material
	address net.Addr
	cancel  context.CancelFunc
	http    *http.Server
	done    sync.WaitGroup
	once    sync.Once
	failed  chan error
}

// Start starts the server, and returns once it serves and knows the CAs for clients. Ending ctx before that abandons the start; afterwards
// it has no effect.
func (s *Server) Start(ctx context.Context) (err error) {
	s.Namespace, s.Service = cmp.Or(s.Namespace, "default"), cmp.Or(s.Service, "aggregated")
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	if s.Config == nil {
		return errors.New("start aggregated server: no Config")
	}
	if s.api, err = newAPI(s.Resources); err != nil {
		return fmt.Errorf("start aggregated server: %w", err)
	}
	if s.client, err = kubernetes.NewForConfig(s.Config); err != nil {
		return fmt.Errorf("start aggregated server: %w", err)
	}
	if s.serving, err = s.material(); err != nil {
		return fmt.Errorf("start aggregated server: %w", err)
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel, s.failed = cancel, make(chan error, 1)
	defer func() {
		if err != nil {
			_ = s.Stop() // the error of the start is more informative
		}
	}()
	trust := newTrust(s.client, s.Logger)
	s.done.Go(func() { trust.run(life) })
	if err := trust.wait(ctx); err != nil {
		return fmt.Errorf("start aggregated server: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cmp.Or(s.Listen, "127.0.0.1:0"))
	if err != nil {
		return fmt.Errorf("start aggregated server: %w", err)
	}
	s.address = listener.Addr()
	s.http = &http.Server{
		Handler: s.handler(trust),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert, GetCertificate: s.serving.certificate,
			NextProtos: []string{"h2", "http/1.1"}},
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(s.Logger.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return life },
	}
	s.Logger.InfoContext(ctx, "Serving", "address", s.address.String())
	s.done.Go(func() {
		if err := s.http.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- err
			cancel()
		}
	})
	return nil
}

// Stop ends the server: it ends watches, and gives other requests ten seconds. It returns when everything has ended.
func (s *Server) Stop() (err error) {
	s.once.Do(func() {
		s.cancel() // ends the requests' contexts, and so watches
		if s.http != nil {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err = s.http.Shutdown(ctx); err != nil {
				err = errors.Join(err, s.http.Close())
			}
		}
		s.done.Wait()
	})
	return err
}

// Run calls Start, waits until ctx ends or serving fails, and calls Stop.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Start(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return s.Stop()
	case err := <-s.failed:
		return errors.Join(fmt.Errorf("serve aggregated API: %w", err), s.Stop())
	}
}

// Address returns the address on which the server listens.
func (s *Server) Address() net.Addr { return s.address }

// CA returns the PEM bundle that verifies the server's certificate, for an APIService's caBundle. With CertFile it is that file's content.
func (s *Server) CA() []byte { return s.serving.bundle }
