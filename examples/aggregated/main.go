// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command aggregated is an API server of thirty lines: it answers /apis/example.com/v1/customresource with a message,
// behind any cluster's own API server. README.md explains how to run it.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/mortise-dev/mortise/embed/aggregated"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s := &aggregated.Server{
		Config: config, Listen: cmp.Or(os.Getenv("LISTEN"), "127.0.0.1:8443"), Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		CertFile: os.Getenv("CERT_FILE"), KeyFile: os.Getenv("KEY_FILE"),
		Resources: []aggregated.Resource{{
			Group: "example.com", Version: "v1", Name: "customresource", Kind: "CustomResource",
			Answer: func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"apiVersion":"example.com/v1","kind":"CustomResource","message":"Hello, %s"}`+"\n", aggregated.From(r).User.GetName())
			},
		}},
	}
	if err := s.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
