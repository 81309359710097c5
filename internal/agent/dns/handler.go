// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"

	"github.com/miekg/dns"
)

// udpSize is the maximum size of a response by UDP: every network passes it unfragmented.
const udpSize = 1232

// handler answers queries for names inside and outside of the cluster.
type handler struct {
	zone    *zone
	forward *forwarder
	ready   func() bool // the state is complete
	log     *slog.Logger
}

// answer returns the response to a message; nil: no response is sent.
func (h *handler) answer(ctx context.Context, r *dns.Msg) (m *dns.Msg) {
	if r.Response {
		return nil // responses to responses could loop for ever
	}
	defer func() {
		if p := recover(); p != nil {
			h.log.Error("Panic while answering a DNS query", "panic", p)
			m = refusal(r, dns.RcodeServerFailure)
		}
	}()
	edns := r.IsEdns0()
	switch {
	case r.Opcode != dns.OpcodeQuery:
		return refusal(r, dns.RcodeNotImplemented)
	case len(r.Question) != 1:
		return refusal(r, dns.RcodeFormatError)
	case edns != nil && edns.Version() != 0:
		m := refusal(r, dns.RcodeBadVers)
		m.SetEdns0(udpSize, false)
		return m
	case r.Question[0].Qclass != dns.ClassINET || r.Question[0].Qtype == dns.TypeAXFR || r.Question[0].Qtype == dns.TypeIXFR:
		return refusal(r, dns.RcodeRefused)
	}
	m = h.resolve(ctx, r, edns != nil && edns.Do())
	if edns != nil {
		m.SetEdns0(udpSize, edns.Do())
	}
	return m
}

func (h *handler) resolve(ctx context.Context, r *dns.Msg, secure bool) *dns.Msg {
	q := r.Question[0]
	if h.zone.owns(q.Name) {
		if !h.ready() {
			return refusal(r, dns.RcodeServerFailure)
		}
		return h.reply(r, h.zone.ask(ctx, q))
	}
	if address, ok := reversed(q.Name); ok && q.Qtype == dns.TypePTR && h.ready() {
		if records := h.zone.pointer(q, address); len(records) > 0 {
			return h.reply(r, answer{records: records})
		}
	}
	if !r.RecursionDesired || h.forward == nil {
		return refusal(r, dns.RcodeRefused)
	}
	found, err := h.forward.ask(ctx, q, secure, r.CheckingDisabled)
	if err != nil {
		h.log.Debug("Could not resolve a name outside of the cluster", "name", q.Name, "error", err)
		if err == errBusy {
			return refusal(r, dns.RcodeRefused)
		}
		return refusal(r, dns.RcodeServerFailure)
	}
	m := new(dns.Msg)
	m.SetReply(r)
	m.Rcode, m.Authoritative, m.RecursionAvailable, m.AuthenticatedData = found.Rcode, false, true, found.AuthenticatedData
	m.Answer, m.Ns, m.Truncated = found.Answer, found.Ns, found.Truncated
	for _, rr := range found.Extra {
		if rr.Header().Rrtype != dns.TypeOPT {
			m.Extra = append(m.Extra, rr)
		}
	}
	// Names are case-insensitive, but some clients compare them case-sensitively.
	for _, rr := range m.Answer {
		if hd := rr.Header(); strings.EqualFold(hd.Name, q.Name) {
			hd.Name = q.Name
		}
	}
	return m
}

// reply returns the zone's response, with addresses in random order.
func (h *handler) reply(r *dns.Msg, a answer) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(r)
	m.Rcode, m.Authoritative, m.RecursionAvailable = a.rcode, true, true
	m.Answer, m.Extra = a.records, a.extra
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{h.zone.soa()}
	}
	first := 0
	for first < len(m.Answer) && m.Answer[first].Header().Rrtype == dns.TypeCNAME {
		first++
	}
	if rest := m.Answer[first:]; len(rest) > 1 && (rest[0].Header().Rrtype == dns.TypeA || rest[0].Header().Rrtype == dns.TypeAAAA) {
		rand.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	}
	return m
}

func refusal(r *dns.Msg, rcode int) *dns.Msg {
	m := new(dns.Msg)
	m.SetRcode(r, rcode)
	if rcode != dns.RcodeFormatError && len(m.Question) > 1 {
		m.Question = m.Question[:1]
	}
	m.RecursionAvailable = true
	return m
}

// fit truncates a response to the size that the client accepts.
func fit(r, m *dns.Msg, stream bool) {
	size := dns.MaxMsgSize
	if !stream {
		size = dns.MinMsgSize
		if edns := r.IsEdns0(); edns != nil {
			size = min(max(int(edns.UDPSize()), dns.MinMsgSize), 4096)
		}
	}
	m.Compress = true
	m.Truncate(size)
}
