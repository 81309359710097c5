// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// kind is the kind of object that a name refers to.
type kind int

const (
	nowhere kind = iota // no name can exist there
	above               // a parent of names: it exists, and has no records
	service
	pod
)

// asked is a parsed name under the cluster's domain.
type asked struct {
	kind            kind
	namespace, name string // "": the name has no such label
	endpoint        string
	port, protocol  string
}

// parse parses the part of a name before the cluster's domain, in lower case:
//
//	[endpoint | _port._protocol].service.namespace.svc
//	1-2-3-4.namespace.pod
func parse(labels []string) asked {
	n := len(labels)
	if n == 0 {
		return asked{kind: above}
	}
	var a asked
	switch labels[n-1] {
	case "svc":
		a.kind = service
	case "pod":
		a.kind = pod
	default:
		return asked{}
	}
	if n == 1 {
		return asked{kind: above}
	}
	a.namespace = labels[n-2]
	if n > 2 {
		a.name = labels[n-3]
	}
	switch n {
	case 2, 3:
	case 4:
		a.endpoint = labels[0]
	case 5:
		a.port, a.protocol = strings.TrimPrefix(labels[0], "_"), strings.TrimPrefix(labels[1], "_")
	default:
		return asked{}
	}
	return a
}

// podAddress parses the first label of a pod's name: an address with dashes instead of dots or colons.
func podAddress(label string) (netip.Addr, bool) {
	sep := ":"
	if strings.Count(label, "-") == 3 && !strings.Contains(label, "--") {
		sep = "."
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", sep))
	return a, err == nil && a.Zone() == ""
}

// addressLabel returns the label of an endpoint without a name.
func addressLabel(a netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
}

// reversed parses a name below in-addr.arpa or ip6.arpa; an incomplete address is invalid.
func reversed(name string) (netip.Addr, bool) {
	labels := dns.SplitDomainName(strings.ToLower(name))
	if len(labels) < 2 || labels[len(labels)-1] != "arpa" {
		return netip.Addr{}, false
	}
	digits := labels[:len(labels)-2]
	var text strings.Builder
	switch labels[len(labels)-2] {
	case "in-addr":
		if len(digits) != 4 {
			return netip.Addr{}, false
		}
		for i := 3; i >= 0; i-- {
			text.WriteString(digits[i])
			if i > 0 {
				text.WriteByte('.')
			}
		}
	case "ip6":
		if len(digits) != 32 {
			return netip.Addr{}, false
		}
		for i := 31; i >= 0; i-- {
			if len(digits[i]) != 1 {
				return netip.Addr{}, false
			}
			text.WriteString(digits[i])
			if i > 0 && i%4 == 0 {
				text.WriteByte(':')
			}
		}
	default:
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(text.String())
	return a.Unmap(), err == nil
}
