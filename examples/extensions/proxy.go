// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// serveProxy serves HTTP CONNECT on a socket in the background. A real one leads into another network.
func serveProxy(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: http.HandlerFunc(connect), ReadHeaderTimeout: 10 * time.Second}
	go func() { fail(s.Serve(l)) }()
	return nil
}

func connect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "CONNECT only", http.StatusMethodNotAllowed)
		return
	}
	there, err := net.DialTimeout("tcp", r.Host, 5*time.Second)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	here, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = there.Close()
		return
	}
	slog.Info("Connected by proxy", "to", r.Host)
	_, _ = io.WriteString(here, "HTTP/1.1 200 Connection established\r\n\r\n")
	go pour(there, here)
	go pour(here, there)
}

// pour copies until one side ends, and ends both.
func pour(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_, _ = to.Close(), from.Close()
}
