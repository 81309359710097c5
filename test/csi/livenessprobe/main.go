// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command livenessprobe stands in for the sidecar of that name: /healthz asks a CSI driver whether it is ready.
package main

import (
	"context"
	"flag"
	"log/slog"
	"net/http"
	"os"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	driver := flag.String("csi-address", "/run/csi/socket", "the driver's socket")
	port := flag.String("health-port", "9808", "the port of /healthz")
	flag.Int("v", 0, "accepted, without effect")
	flag.Parse()
	if err := serve(*driver, *port); err != nil {
		slog.Error("The probe ends", "err", err)
		os.Exit(1)
	}
}

// serve answers probes until that fails.
func serve(driver, port string) error {
	c, err := grpc.NewClient("unix:"+driver, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if _, err := csipb.NewIdentityClient(c).Probe(ctx, &csipb.ProbeRequest{}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	return http.ListenAndServe(":"+port, mux) //nolint:gosec // a test's program
}
