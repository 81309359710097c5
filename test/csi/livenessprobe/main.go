// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command livenessprobe stands in for the sidecar of that name: /healthz asks a CSI driver whether it is ready.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
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
	c, err := grpc.NewClient("unix:"+*driver, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if _, err := csipb.NewIdentityClient(c).Probe(ctx, &csipb.ProbeRequest{}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	log.Fatal(http.ListenAndServe(":"+*port, mux)) //nolint:gosec // a test's program
}
