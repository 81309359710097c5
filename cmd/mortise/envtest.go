// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/embed"
)

// The package envtest of controller-runtime starts two binaries from the directory of KUBEBUILDER_ASSETS. Under their names
// the program takes their place, with the flags that envtest passes: kube-apiserver is an API server without controllers
// and with a store in its own memory. It needs no etcd, so that etcd only says that it is healthy.

// programNamed returns the program of that name: one of envtest's, or kubelet; nil: it is neither.
func programNamed(name string) func(ctx context.Context, args []string) error {
	switch strings.TrimSuffix(filepath.Base(name), ".exe") {
	case "kube-apiserver":
		return runAPIServer
	case "etcd":
		return runEtcd
	case "kubelet":
		return runKubelet
	}
	return nil
}

// mainOf runs a program until a signal ends it.
func mainOf(run func(ctx context.Context, args []string) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := run(ctx, os.Args[1:]); {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

// runAPIServer runs an API server with kube-apiserver's flags. Its store is in memory, whatever --etcd-servers says.
func runAPIServer(ctx context.Context, args []string) error {
	s := &embed.Server{Controllers: []string{"none"}, Store: "memory", Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	f := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	embed.AddFlags(f, &s.APIServer)
	bind := f.String("bind-address", "127.0.0.1", "Address of the secure port.")
	port := f.String("secure-port", "6443", "Port that serves HTTPS.")
	f.StringVar(&s.ServiceCIDR, "service-cluster-ip-range", "10.0.0.0/24", "Range of the addresses of Services.")
	f.StringToStringVar(&s.RuntimeConfig, "runtime-config", nil, "Group-versions and resources to enable or disable.")
	if err := f.Parse(args); err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}
	s.Listen, s.APIServer.Etcd.Servers = net.JoinHostPort(*bind, *port), nil
	if err := s.Start(ctx); err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	select {
	case <-ctx.Done():
		return s.Stop()
	case err := <-ended:
		return errors.Join(err, s.Stop())
	}
}

// runEtcd answers the question whether etcd is healthy at the addresses for clients.
func runEtcd(ctx context.Context, args []string) error {
	f := pflag.NewFlagSet("etcd", pflag.ContinueOnError)
	f.ParseErrorsAllowlist.UnknownFlags = true // nothing of etcd runs that could heed them
	urls := f.StringSlice("listen-client-urls", []string{"http://127.0.0.1:2379"}, "Addresses at which it says that it is healthy.")
	if err := f.Parse(args); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"health":"true","reason":""}`)
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, len(*urls))
	var lc net.ListenConfig
	for _, text := range *urls {
		u, err := url.Parse(text)
		if err != nil {
			return fmt.Errorf("etcd: %w", err)
		}
		l, err := lc.Listen(ctx, "tcp", u.Host)
		if err != nil {
			return errors.Join(fmt.Errorf("etcd: %w", err), srv.Close())
		}
		go func() { ended <- srv.Serve(l) }()
	}
	select {
	case <-ctx.Done():
		return srv.Close()
	case err := <-ended:
		return errors.Join(err, srv.Close())
	}
}
