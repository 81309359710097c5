// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// health tells load balancers whether this node has endpoints of a Service, on a port for each such Service, in one family.
type health struct {
	network string
	hosts   []string // to listen on; "" means all
	log     *slog.Logger
	well    *atomic.Bool // the rules are up to date

	servers map[types.NamespacedName]*healthServer
	running sync.WaitGroup
}

type healthServer struct {
	port    int32
	count   atomic.Int64
	servers []*http.Server
}

// move closes all ports if the listening addresses change.
func (h *health) move(hosts []string) {
	if slices.Equal(hosts, h.hosts) {
		return
	}
	for _, s := range h.servers {
		s.close()
	}
	clear(h.servers)
	h.hosts = hosts
}

// sync opens and closes ports; want has the port and the number of local endpoints of each Service.
func (h *health) sync(ctx context.Context, want map[types.NamespacedName]*plan) error {
	var errs []error
	for name, s := range h.servers {
		if p, is := want[name]; !is || p.healthPort != s.port {
			s.close()
			delete(h.servers, name)
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(want), byName) {
		p := want[name]
		s := h.servers[name]
		if s == nil {
			var err error
			if s, err = h.open(ctx, name, p.healthPort); err != nil {
				errs = append(errs, err)
				continue
			}
			h.servers[name] = s
		}
		s.count.Store(int64(p.healthy))
	}
	return errors.Join(errs...)
}

func (h *health) open(ctx context.Context, name types.NamespacedName, port int32) (*healthServer, error) {
	s := &healthServer{port: port}
	var lc net.ListenConfig
	for _, host := range h.hosts {
		l, err := lc.Listen(ctx, h.network, net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err != nil {
			s.close()
			return nil, fmt.Errorf("answer for the health of service %s: %w", name, err)
		}
		server := &http.Server{Handler: s.handler(name, h.well), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
			MaxHeaderBytes: 16 << 10}
		s.servers = append(s.servers, server)
		h.running.Go(func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				h.log.Error("Could not answer a service's health check", "service", name, "error", err)
			}
		})
	}
	return s, nil
}

// handler responds with 200 while there are endpoints, in upstream's format.
func (s *healthServer) handler(name types.NamespacedName, well *atomic.Bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		count, well := s.count.Load(), well.Load()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(count, 10))
		if count == 0 || !well {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintf(w, "{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %t\n}",
			name.Namespace, name.Name, count, well)
	}
}

func (s *healthServer) close() {
	for _, server := range s.servers {
		_ = server.Close() // of its listener; nothing can be done about it
	}
}

// end closes all ports, and waits for the requests in progress.
func (h *health) end() {
	for _, s := range h.servers {
		s.close()
	}
	h.running.Wait()
}
