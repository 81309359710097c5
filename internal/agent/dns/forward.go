// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"k8s.io/utils/clock"
)

const (
	attemptTime = 2 * time.Second // limit for one resolver
	forwardTime = 6 * time.Second // limit for all resolvers
	cacheTime   = 30 * time.Second
	cacheSize   = 10_000
	concurrent  = 1000 // maximum of concurrent queries to resolvers
)

var (
	errBusy    = errors.New("too many concurrent queries")
	errNowhere = errors.New("no resolver to ask")
)

// question is the cache key of a query.
type question struct {
	name   string // in lower case
	kind   uint16
	secure bool // the client requests DNSSEC records
	cd     bool
}

// forwarder queries the machine's resolvers. A query that is already in flight is not sent again, but waits for the same response. So a
// resolver that forwards our query back to us does not cause another one, and a loop ends by its timeout.
type forwarder struct {
	servers func() []string // host:port, without our own addresses
	clock   clock.PassiveClock
	slots   chan struct{}

	mu      sync.Mutex
	flights map[question]*flight
	cache   map[question]kept
	best    string // the server that responded last
}

type flight struct {
	done  chan struct{}
	reply *dns.Msg
	err   error
}

type kept struct {
	reply *dns.Msg
	from  time.Time
	until time.Time
}

func newForwarder(servers func() []string, c clock.PassiveClock) *forwarder {
	return &forwarder{servers: servers, clock: c, slots: make(chan struct{}, concurrent), flights: map[question]*flight{},
		cache: map[question]kept{}}
}

// ask returns the response to a query. The caller may change it.
func (f *forwarder) ask(ctx context.Context, q dns.Question, secure, cd bool) (*dns.Msg, error) {
	key := question{strings.ToLower(q.Name), q.Qtype, secure, cd}
	f.mu.Lock()
	if k, is := f.cache[key]; is {
		if now := f.clock.Now(); now.Before(k.until) {
			f.mu.Unlock()
			return aged(k.reply, now.Sub(k.from)), nil
		}
		delete(f.cache, key)
	}
	fl := f.flights[key]
	if fl == nil {
		select {
		case f.slots <- struct{}{}:
		default:
			f.mu.Unlock()
			return nil, errBusy
		}
		fl = &flight{done: make(chan struct{})}
		f.flights[key] = fl
		f.mu.Unlock()
		fl.reply, fl.err = f.fly(ctx, key)
		f.mu.Lock()
		delete(f.flights, key)
		if fl.err == nil {
			f.keep(key, fl.reply)
		}
		f.mu.Unlock()
		<-f.slots
		close(fl.done)
	} else {
		f.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-fl.done:
		}
	}
	if fl.err != nil {
		return nil, fl.err
	}
	return fl.reply.Copy(), nil
}

// fly queries one resolver after the other, beginning with the one that responded last.
func (f *forwarder) fly(ctx context.Context, key question) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTime)
	defer cancel()
	servers := f.servers()
	rand.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	f.mu.Lock()
	for i, s := range servers {
		if s == f.best {
			servers[0], servers[i] = servers[i], servers[0]
		}
	}
	f.mu.Unlock()
	m := new(dns.Msg)
	m.SetQuestion(key.name, key.kind)
	m.CheckingDisabled = key.cd
	m.SetEdns0(udpSize, key.secure)
	err := errNowhere
	var failed *dns.Msg
	for _, s := range servers {
		reply, e := exchange(ctx, m, s)
		if e != nil {
			err = fmt.Errorf("ask %s: %w", s, e)
			continue
		}
		if reply.Rcode == dns.RcodeServerFailure || reply.Rcode == dns.RcodeRefused || reply.Rcode == dns.RcodeFormatError {
			failed = reply // another one may do better
			continue
		}
		f.mu.Lock()
		f.best = s
		f.mu.Unlock()
		return reply, nil
	}
	if failed != nil {
		return failed, nil
	}
	return nil, err
}

// exchange queries by UDP, and by TCP if the response is truncated.
func exchange(ctx context.Context, m *dns.Msg, server string) (*dns.Msg, error) {
	m = m.Copy()
	m.Id = dns.Id()
	for _, network := range []string{"udp", "tcp"} {
		ctx, cancel := context.WithTimeout(ctx, attemptTime)
		client := dns.Client{Net: network, Timeout: attemptTime, UDPSize: udpSize}
		reply, _, err := client.ExchangeContext(ctx, m, server)
		cancel()
		if err != nil {
			return nil, err
		}
		if len(reply.Question) != 1 || !strings.EqualFold(reply.Question[0].Name, m.Question[0].Name) ||
			reply.Question[0].Qtype != m.Question[0].Qtype {
			return nil, errors.New("the answer is to another question")
		}
		if !reply.Truncated || network == "tcp" {
			return reply, nil
		}
	}
	panic("unreachable")
}

// keep caches a response for the TTL of its records, at most for half a minute. The caller holds f.mu.
func (f *forwarder) keep(key question, reply *dns.Msg) {
	if reply.Truncated || reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError {
		return
	}
	life := cacheTime
	records := 0
	for _, rr := range reply.Answer {
		records++
		life = min(life, time.Duration(rr.Header().Ttl)*time.Second)
	}
	if records == 0 {
		// The zone limits how long a negative response may be cached.
		said := false
		for _, rr := range reply.Ns {
			if soa, ok := rr.(*dns.SOA); ok {
				said = true
				life = min(life, time.Duration(min(soa.Minttl, soa.Hdr.Ttl))*time.Second)
			}
		}
		if !said {
			return
		}
	}
	if life <= 0 {
		return
	}
	for old := range f.cache {
		if len(f.cache) < cacheSize {
			break
		}
		delete(f.cache, old)
	}
	now := f.clock.Now()
	f.cache[key] = kept{reply: reply, from: now, until: now.Add(life)}
}

// aged returns a cached response with reduced TTLs.
func aged(m *dns.Msg, by time.Duration) *dns.Msg {
	out := m.Copy()
	spent := uint32(by / time.Second)
	for _, section := range [][]dns.RR{out.Answer, out.Ns, out.Extra} {
		for _, rr := range section {
			if h := rr.Header(); h.Rrtype != dns.TypeOPT {
				h.Ttl -= min(h.Ttl, spent)
			}
		}
	}
	return out
}

// resolvers returns the servers of a resolv.conf, except our own addresses.
func resolvers(servers []string, own map[string]bool) []string {
	var out []string
	for _, s := range servers {
		if ip := net.ParseIP(strings.SplitN(s, "%", 2)[0]); ip != nil && !own[ip.String()] {
			out = append(out, net.JoinHostPort(s, "53"))
		}
	}
	return out
}
