// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/dnsservice"
)

const (
	ttl           = 30 // kubeadm's, for all records
	versionTTL    = 28800
	schemaVersion = "1.1.0"
	maxChain      = 8 // maximum number of CNAMEs in a response
)

// State is the state of the cluster.
type State interface {
	// Service returns a Service, or nil.
	Service(namespace, name string) *corev1.Service
	// Endpoints returns the endpoints of a Service that have names.
	Endpoints(namespace, name string) []Endpoint
	// ServiceAt returns the Service with an address, EndpointsAt the endpoints with it.
	ServiceAt(netip.Addr) *corev1.Service
	EndpointsAt(netip.Addr) []Endpoint
	// Namespace reports whether a namespace exists.
	Namespace(name string) bool
	// Serial increases with each change.
	Serial() uint32
}

// Endpoint is one address and one port of a Service's endpoint. An endpoint with several ports is several.
type Endpoint struct {
	Namespace, Service string
	Address            netip.Addr
	Hostname           string // "" if it has none of its own
	Port               int32  // 0: it has none
	PortName, Protocol string
}

func (e Endpoint) label() string {
	if e.Hostname != "" {
		return e.Hostname
	}
	return addressLabel(e.Address)
}

// zone answers queries for the cluster's domain.
type zone struct {
	origin string // cluster.local.
	state  State
	own    []netip.Addr // of this server
	// elsewhere queries a name outside of the zone; nil: aliases to it are not resolved.
	elsewhere func(ctx context.Context, name string, kind uint16) ([]dns.RR, error)
}

// answer is the result of a query.
type answer struct {
	rcode   int
	records []dns.RR
	extra   []dns.RR
}

// destination is an address or another name to which a name resolves.
type destination struct {
	address  netip.Addr
	alias    string
	owner    string // its own name, for SRV
	port     int32
	portless bool
}

// owns reports whether a name belongs to the zone.
func (z *zone) owns(name string) bool { return dns.IsSubDomain(z.origin, strings.ToLower(name)) }

// ask answers a query for a name of the zone.
func (z *zone) ask(ctx context.Context, q dns.Question) answer {
	switch q.Qtype {
	case dns.TypeSOA:
		if strings.EqualFold(q.Name, z.origin) {
			return answer{records: []dns.RR{z.soa()}}
		}
	case dns.TypeTXT:
		return z.text(q)
	case dns.TypeNS:
		if strings.EqualFold(q.Name, z.origin) {
			return z.nameserver(q)
		}
	}
	destinations, rcode := z.destinations(strings.ToLower(q.Name), q.Qtype)
	if rcode != dns.RcodeSuccess {
		return answer{rcode: rcode}
	}
	switch q.Qtype {
	case dns.TypeA, dns.TypeAAAA:
		return answer{records: z.addresses(ctx, q, destinations, nil)}
	case dns.TypeCNAME:
		for _, p := range destinations {
			if p.alias != "" {
				return answer{records: []dns.RR{cname(q.Name, p.alias)}}
			}
		}
	case dns.TypeSRV:
		return z.servers(q, destinations)
	}
	return answer{}
}

// destinations resolves a name in lower case. The result is NXDOMAIN if neither the name nor any name below it exists.
func (z *zone) destinations(name string, kind uint16) ([]destination, int) {
	labels := dns.SplitDomainName(strings.TrimSuffix(name, z.origin))
	if slices.Equal(labels, []string{"ns", "dns"}) {
		var out []destination
		for _, a := range z.own {
			out = append(out, destination{address: a, owner: name, portless: true})
		}
		return out, dns.RcodeSuccess
	}
	if slices.Equal(labels, []string{"dns-version"}) || slices.Equal(labels, []string{"dns"}) {
		return nil, dns.RcodeSuccess
	}
	a := parse(labels)
	switch a.kind {
	case above:
		return nil, dns.RcodeSuccess
	case nowhere:
		return nil, dns.RcodeNameError
	}
	if !z.state.Namespace(a.namespace) {
		return nil, dns.RcodeNameError
	}
	if a.name == "" {
		return nil, dns.RcodeSuccess
	}
	if a.kind == pod {
		// Nothing checks whether such a pod exists ("insecure"): these names exist for certificates.
		if address, ok := podAddress(a.name); ok {
			return []destination{{address: address, owner: name, portless: true}}, dns.RcodeSuccess
		}
		return nil, dns.RcodeNameError
	}
	return z.service(a, kind)
}

// service resolves the name of a Service, or of one of its endpoints or ports.
func (z *zone) service(a asked, kind uint16) ([]destination, int) {
	svc := z.state.Service(a.namespace, a.name)
	if svc == nil {
		return nil, dns.RcodeNameError
	}
	own := a.name + "." + a.namespace + ".svc." + z.origin
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		switch {
		case a.endpoint != "":
			return nil, dns.RcodeNameError
		case kind == dns.TypeSRV:
			return nil, dns.RcodeSuccess
		}
		if address, err := netip.ParseAddr(svc.Spec.ExternalName); err == nil && address.IsValid() {
			return nil, dns.RcodeNameError // an address is no name
		}
		return []destination{{alias: dns.Fqdn(svc.Spec.ExternalName), owner: own, portless: true}}, dns.RcodeSuccess
	}
	var out []destination
	found := false
	if svc.Spec.ClusterIP == corev1.ClusterIPNone || a.endpoint != "" {
		for _, e := range z.state.Endpoints(a.namespace, a.name) {
			if a.endpoint != "" && !strings.EqualFold(a.endpoint, e.label()) || !a.matches(e.PortName, e.Protocol) {
				continue
			}
			out = append(out, destination{address: e.Address, owner: strings.ToLower(e.label()) + "." + own, port: e.Port, portless: e.Port == 0})
		}
		found = len(out) > 0
	} else {
		for _, p := range svc.Spec.Ports {
			if !a.matches(p.Name, string(p.Protocol)) {
				continue
			}
			found = true
			for _, text := range dnsservice.ClusterIPs(svc) {
				if address, err := netip.ParseAddr(text); err == nil {
					out = append(out, destination{address: address, owner: own, port: p.Port})
				}
			}
		}
	}
	if !found {
		return nil, dns.RcodeNameError
	}
	return out, dns.RcodeSuccess
}

func (a asked) matches(port, protocol string) bool {
	return (a.port == "" || strings.EqualFold(a.port, port)) && (a.protocol == "" || strings.EqualFold(a.protocol, protocol))
}

// addresses returns the records of one type for destinations. It follows aliases, inside and outside of the zone.
func (z *zone) addresses(ctx context.Context, q dns.Question, destinations []destination, before []string) []dns.RR {
	var out []dns.RR
	seen := map[netip.Addr]bool{}
	for _, p := range destinations {
		if p.alias == "" {
			if p.address.Is4() == (q.Qtype == dns.TypeA) && !seen[p.address] {
				seen[p.address] = true
				out = append(out, addressRecord(q.Name, p.address))
			}
			continue
		}
		target := strings.ToLower(p.alias)
		if strings.EqualFold(target, q.Name) || slices.Contains(before, target) || len(before) >= maxChain {
			continue // a loop of aliases
		}
		alias := cname(q.Name, p.alias)
		if z.owns(target) {
			next, rcode := z.destinations(target, q.Qtype)
			if rcode != dns.RcodeSuccess {
				continue
			}
			inner := q
			inner.Name = target
			if more := z.addresses(ctx, inner, next, append(before, strings.ToLower(q.Name))); len(more) > 0 {
				out = append(append(out, alias), more...)
			}
			continue
		}
		if z.elsewhere == nil {
			continue
		}
		more, err := z.elsewhere(ctx, p.alias, q.Qtype)
		if err != nil {
			continue // the client gets no response, and repeats the query
		}
		out = append(append(out, alias), more...)
	}
	return out
}

// servers returns the SRV records of destinations, all with the same weight, and the addresses of their targets.
func (z *zone) servers(q dns.Question, destinations []destination) answer {
	var out answer
	type target struct {
		owner string
		port  int32
	}
	type address struct {
		owner string
		at    netip.Addr
	}
	said, given := map[target]bool{}, map[address]bool{}
	for _, p := range destinations {
		if p.portless {
			continue
		}
		if t := (target{p.owner, p.port}); !said[t] {
			said[t] = true
			out.records = append(out.records, &dns.SRV{
				Hdr: header(q.Name, dns.TypeSRV, ttl), Weight: uint16(max(1, 100/len(destinations))), Port: uint16(p.port), Target: p.owner,
			})
		}
		if a := (address{p.owner, p.address}); !given[a] {
			given[a] = true
			out.extra = append(out.extra, addressRecord(p.owner, p.address))
		}
	}
	return out
}

// text answers TXT queries: only the version of the schema has a record.
func (z *zone) text(q dns.Question) answer {
	if strings.EqualFold(q.Name, "dns-version."+z.origin) {
		return answer{records: []dns.RR{&dns.TXT{Hdr: header(q.Name, dns.TypeTXT, versionTTL), Txt: []string{schemaVersion}}}}
	}
	return answer{} // CoreDNS does not check whether the name exists, either
}

// nameserver returns this server's NS record.
func (z *zone) nameserver(q dns.Question) answer {
	name := "ns.dns." + z.origin
	out := answer{records: []dns.RR{&dns.NS{Hdr: header(q.Name, dns.TypeNS, ttl), Ns: name}}}
	for _, a := range z.own {
		out.extra = append(out.extra, addressRecord(name, a))
	}
	return out
}

// pointer returns the names of an address. Such queries are never forwarded.
func (z *zone) pointer(q dns.Question, address netip.Addr) []dns.RR {
	point := func(name string) dns.RR { return &dns.PTR{Hdr: header(q.Name, dns.TypePTR, ttl), Ptr: name} }
	if svc := z.state.ServiceAt(address); svc != nil {
		return []dns.RR{point(svc.Name + "." + svc.Namespace + ".svc." + z.origin)}
	}
	var out []dns.RR
	seen := map[string]bool{}
	for _, e := range z.state.EndpointsAt(address) {
		name := strings.ToLower(e.label()) + "." + e.Service + "." + e.Namespace + ".svc." + z.origin
		if !seen[name] {
			seen[name] = true
			out = append(out, point(name))
		}
	}
	return out
}

// soa returns the SOA record, which is part of every negative response.
func (z *zone) soa() dns.RR {
	return &dns.SOA{
		Hdr: header(z.origin, dns.TypeSOA, ttl), Ns: "ns.dns." + z.origin, Mbox: "hostmaster." + z.origin,
		Serial: z.state.Serial(), Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl,
	}
}

func header(name string, kind uint16, ttl uint32) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

func addressRecord(name string, a netip.Addr) dns.RR {
	if a.Is4() {
		return &dns.A{Hdr: header(name, dns.TypeA, ttl), A: net.IP(a.AsSlice())}
	}
	return &dns.AAAA{Hdr: header(name, dns.TypeAAAA, ttl), AAAA: net.IP(a.AsSlice())}
}

func cname(name, target string) dns.RR {
	return &dns.CNAME{Hdr: header(name, dns.TypeCNAME, ttl), Target: target}
}
