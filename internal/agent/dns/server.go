// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/device"
)

const (
	connections = 1000             // maximum of open TCP connections
	idleTime    = 10 * time.Second // of an idle connection
	questions   = 10_000           // maximum of queries in flight
)

// Options configure a cluster's DNS. Informers, and Addresses or Listeners, are required.
type Options struct {
	// Informers watch Services, EndpointSlices and Namespaces. The caller of Run prepares them with Prepare and starts them, and may share
	// them.
	Informers informers.SharedInformerFactory
	Domain    string       // cluster.local
	Addresses []netip.Addr // of the cluster DNS; Run assigns them to a device of this node
	// Resolvers returns the addresses of the resolvers for names outside of the cluster; nil: those in /etc/resolv.conf, read at each query.
	Resolvers func() ([]string, error)

	// Listeners replace Addresses in tests.
	Listeners []Listener

	Logger *slog.Logger
	Clock  clock.PassiveClock
}

// Listener listens on one address, by UDP and TCP.
type Listener struct {
	UDP net.PacketConn
	TCP net.Listener
}

func (o Options) withDefaults() Options {
	if o.Domain == "" {
		o.Domain = "cluster.local"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Resolvers == nil {
		o.Resolvers = machineResolvers
	}
	return o
}

// machineResolvers returns the resolvers in /etc/resolv.conf.
func machineResolvers() ([]string, error) {
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return nil, fmt.Errorf("read resolvers: %w", err)
	}
	return parseResolvers(string(text)), nil
}

func parseResolvers(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "nameserver" {
			out = append(out, words[1])
		}
	}
	return out
}

// Run answers queries until ctx ends.
func Run(ctx context.Context, options Options) (err error) {
	o := options.withDefaults()
	state, stop, err := follow(o.Informers, o.Clock.Now)
	if err != nil {
		return err
	}
	defer stop()
	listeners, own := o.Listeners, o.Addresses
	if len(listeners) == 0 {
		if err := device.AddDummy(deviceName, o.Addresses); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, Remove()) }()
		if listeners, err = listen(ctx, o.Addresses); err != nil {
			return err
		}
	}
	// Until the informers have synced, the server denies no name: clients wait.
	if !cache.WaitForCacheSync(ctx.Done(), state.synced...) {
		return closeAll(listeners)
	}
	mine := map[string]bool{}
	for _, a := range own {
		mine[a.String()] = true
	}
	h := &handler{
		zone: &zone{origin: dns.Fqdn(strings.ToLower(o.Domain)), state: state, own: own}, ready: state.ready, log: o.Logger,
		forward: newForwarder(func() []string {
			servers, err := o.Resolvers()
			if err != nil {
				o.Logger.Debug("Could not find the machine's resolvers", "error", err)
			}
			return resolvers(servers, mine)
		}, o.Clock),
	}
	h.zone.elsewhere = h.elsewhere
	return serve(ctx, h, listeners)
}

// elsewhere resolves an alias out of the cluster.
func (h *handler) elsewhere(ctx context.Context, name string, kind uint16) ([]dns.RR, error) {
	m, err := h.forward.ask(ctx, dns.Question{Name: name, Qtype: kind, Qclass: dns.ClassINET}, false, false)
	if err != nil {
		return nil, err
	}
	return slices.Clone(m.Answer), nil
}

// listen opens port 53 of the addresses.
func listen(ctx context.Context, addresses []netip.Addr) ([]Listener, error) {
	var out []Listener
	lc := net.ListenConfig{Control: device.FreeBind}
	for _, a := range addresses {
		at := netip.AddrPortFrom(a, 53).String()
		udp, err := lc.ListenPacket(ctx, "udp", at)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen for DNS: %w", err), closeAll(out))
		}
		tcp, err := lc.Listen(ctx, "tcp", at)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen for DNS: %w", err), udp.Close(), closeAll(out))
		}
		out = append(out, Listener{udp, tcp})
	}
	return out, nil
}

func closeAll(list []Listener) error {
	var errs []error
	for _, l := range list {
		errs = append(errs, l.UDP.Close(), l.TCP.Close())
	}
	return errors.Join(errs...)
}

// serve answers queries on all listeners until ctx ends, and closes them.
func serve(ctx context.Context, h *handler, listeners []Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	slots := make(chan struct{}, questions)
	of := func(stream bool) dns.Handler {
		return dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
			select {
			case slots <- struct{}{}:
			default:
				return // the client repeats the query
			}
			defer func() { <-slots }()
			m := h.answer(ctx, r)
			if m == nil {
				return
			}
			fit(r, m, stream)
			if err := w.WriteMsg(m); err != nil {
				h.log.Debug("Could not write a DNS response", "error", err)
			}
		})
	}
	idle := func() time.Duration { return idleTime }
	for _, l := range listeners {
		for _, s := range []*dns.Server{
			{PacketConn: l.UDP, Handler: of(false), UDPSize: dns.DefaultMsgSize, ReadTimeout: attemptTime},
			{Listener: netutil.LimitListener(l.TCP, connections), Handler: of(true), ReadTimeout: attemptTime, WriteTimeout: attemptTime,
				IdleTimeout: idle},
		} {
			started := make(chan struct{})
			s.NotifyStartedFunc = func() { close(started) }
			ended := make(chan struct{})
			group.Go(func() error {
				defer close(ended)
				if err := s.ActivateAndServe(); err != nil && ctx.Err() == nil {
					return fmt.Errorf("serve DNS: %w", err)
				}
				return nil
			})
			group.Go(func() error {
				<-ctx.Done()
				select {
				case <-started:
				case <-ended:
					return nil
				}
				stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), forwardTime)
				defer cancel()
				return s.ShutdownContext(stop)
			})
		}
	}
	return group.Wait()
}
