// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command extensions has one example of each extension that an API server or a scheduler calls, a file each: admission webhooks, a
// conversion webhook, webhooks for tokens, access, audit and images, an OpenID Connect issuer, a scheduler extender, a key management
// plug-in, a signer of tokens, and an egress proxy. They use Kubernetes' own types and nothing of Mortise.
//
// It makes a certificate, and writes into its directory what others need to find it: ca.crt, a kubeconfig for each webhook that a flag of
// the server names, and sockets.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: webhook
clusters: [{name: webhook, cluster: {server: "%s/%s", certificate-authority: "%s"}}]
users: [{name: server, user: {}}]
contexts: [{name: webhook, context: {cluster: webhook, user: server}}]
`

func main() {
	dir := flag.String("dir", "/tmp/extensions", "directory of the certificate, the kubeconfigs and the sockets")
	listen := flag.String("listen", "127.0.0.1:9443", "address to serve HTTPS on")
	flag.Parse()
	if err := run(*dir, *listen); err != nil {
		fail(err)
	}
}

func run(dir, listen string) error {
	issuer, err := newIssuer("https://" + listen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /mutate", mutate)
	mux.HandleFunc("POST /validate", validate)
	mux.HandleFunc("POST /convert", convert)
	mux.HandleFunc("POST /tokens", reviewToken)
	mux.HandleFunc("POST /access", reviewAccess)
	mux.HandleFunc("POST /audit", audit)
	mux.HandleFunc("POST /images", reviewImages)
	mux.HandleFunc("POST /scheduler/filter", filter)
	mux.HandleFunc("POST /scheduler/prioritize", prioritize)
	mux.Handle("/", issuer)

	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	certificate, err := ownCertificate(dir)
	if err != nil {
		return err
	}
	for _, name := range []string{"tokens", "access", "audit", "images"} {
		text := fmt.Sprintf(kubeconfig, "https://"+listen, name, filepath.Join(dir, "ca.crt"))
		if err := os.WriteFile(filepath.Join(dir, name+".kubeconfig"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for name, serve := range map[string]func(path string) error{"kms.sock": serveKMS, "signer.sock": serveSigner, "proxy.sock": serveProxy} {
		path := filepath.Join(dir, name)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := serve(path); err != nil {
			return err
		}
	}
	if err := serveHTTPS(listen, certificate, mux); err != nil {
		return err
	}
	slog.Info("Ready", "url", "https://"+listen, "directory", dir)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt)
	<-stop
	return nil
}

// fail ends the program with an error.
func fail(err error) {
	slog.Error("The extensions end", "error", err)
	os.Exit(1)
}

// answer writes a response as JSON.
func answer(w http.ResponseWriter, response any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(response); err != nil {
		slog.Warn("Could not answer", "error", err)
	}
}

// read decodes a request, and answers 400 and returns false if it cannot.
func read(w http.ResponseWriter, r *http.Request, request any) bool {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<20)).Decode(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return err == nil
}
