// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/validation"
)

// LoopbackName is the server name by which a client gets the certificate of the cluster's own CA, whatever other certificates the server
// has. It is kube-apiserver's name for its own clients.
const LoopbackName = "apiserver-loopback-client"

// NamedPair is a pair of files for some server names: DNS names, *.DOMAIN, or IP addresses. Without names, the certificate's own count.
type NamedPair struct {
	*FilePair
	Names []string
}

// Certificates choose the certificate of each connection among the server's own and those of an administrator's files.
//
// A client that sends no server name asks for the address that it has connected to. The first of these rules that applies decides:
//
//   - a pair is for that name by its explicit names, and an exact name comes before a wildcard;
//   - [LoopbackName] gets the own certificate;
//   - the names of the Service kubernetes, and clients in pods that send no name, get the own certificate, unless pods trust another CA;
//   - a pair without explicit names has the name in its certificate;
//   - the default pair, if it is valid for the name, or if the own certificate is not valid for it, or if pods trust another CA;
//   - the own certificate.
//
// All methods may be called by any goroutine, but Reload by one at a time.
type Certificates struct {
	own     *tls.Certificate
	ownLeaf *x509.Certificate
	files   Files
	names   atomic.Pointer[namedCertificates]
}

// Files are an administrator's certificates.
type Files struct {
	Default *FilePair // nil: the server's own certificate
	Named   []NamedPair
	// Pods are the ranges of pods' addresses.
	Pods []netip.Prefix
	// Trusted reports that pods trust another CA than the cluster's own, by which the files' certificates are signed.
	Trusted bool
}

// namedCertificates are certificates by server name.
type namedCertificates struct{ explicit, implicit map[string]*tls.Certificate }

// NewCertificates returns a choice between the server's own pair and the files, which have been read.
func NewCertificates(own *Pair, files Files) *Certificates {
	pair := own.TLS()
	c := &Certificates{own: &pair, ownLeaf: own.Certificate, files: files}
	c.index()
	return c
}

// Paths are the files to watch.
func (c *Certificates) Paths() (all []string) {
	for _, p := range c.pairs() {
		all = append(all, p.CertFile, p.KeyFile)
	}
	return all
}

func (c *Certificates) pairs() (all []*FilePair) {
	if c.files.Default != nil {
		all = append(all, c.files.Default)
	}
	for _, n := range c.files.Named {
		all = append(all, n.FilePair)
	}
	return all
}

// Reload reads the files again and returns the pairs that are others now: new connections get them. Errors are of files whose old pair
// stays.
func (c *Certificates) Reload() (changed []*FilePair, err error) {
	var errs []error
	for _, p := range c.pairs() {
		is, err := p.Reload()
		if is {
			changed = append(changed, p)
		}
		errs = append(errs, err)
	}
	if len(changed) > 0 {
		c.index()
	}
	return changed, errors.Join(errs...)
}

// index makes the names anew. An earlier pair wins over a later one.
func (c *Certificates) index() {
	n := &namedCertificates{explicit: map[string]*tls.Certificate{}, implicit: map[string]*tls.Certificate{}}
	for _, pair := range slices.Backward(c.files.Named) {
		certificate := pair.Certificate()
		for _, name := range pair.Names {
			n.explicit[canonical(name)] = certificate
		}
		if len(pair.Names) > 0 {
			continue
		}
		for _, name := range namesOf(certificate.Leaf) {
			n.implicit[canonical(name)] = certificate
		}
	}
	c.names.Store(n)
}

// namesOf are the DNS names of a certificate, and its common name if that is one, as kube-apiserver takes them.
func namesOf(leaf *x509.Certificate) []string {
	cn := leaf.Subject.CommonName
	if _, err := netip.ParseAddr(cn); err != nil && (cn == "*" || len(validation.IsDNS1123Subdomain(strings.TrimPrefix(cn, "*."))) == 0) {
		return append([]string{cn}, leaf.DNSNames...)
	}
	return leaf.DNSNames
}

// canonical is a server name as a key.
func canonical(name string) string {
	if ip, err := netip.ParseAddr(name); err == nil {
		return ip.Unmap().WithZone("").String()
	}
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

// find looks a server name up: itself, then with a wildcard for its first label.
func find(in map[string]*tls.Certificate, name string) *tls.Certificate {
	if c := in[name]; c != nil {
		return c
	}
	if _, rest, ok := strings.Cut(name, "."); ok {
		return in["*."+rest]
	}
	return in["*"]
}

// internalNames are those of the Service kubernetes.
var internalNames = map[string]bool{
	"kubernetes": true, "kubernetes.default": true, "kubernetes.default.svc": true, "kubernetes.default.svc.cluster.local": true,
}

// Get is the certificate for a connection, for [tls.Config.GetCertificate].
func (c *Certificates) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	host, inside := canonical(hello.ServerName), internalNames[canonical(hello.ServerName)]
	if host == "" && hello.Conn != nil {
		local := address(hello.Conn.LocalAddr())
		host, inside = canonical(local.String()), c.ofPods(local) || c.ofPods(address(hello.Conn.RemoteAddr()))
	}
	n := c.names.Load()
	if found := find(n.explicit, host); found != nil {
		return found, nil
	}
	if host == LoopbackName || inside && !c.files.Trusted {
		return c.own, nil
	}
	if found := find(n.implicit, host); found != nil {
		return found, nil
	}
	if c.files.Default == nil {
		return c.own, nil
	}
	held := c.files.Default.Certificate()
	if c.files.Trusted || held.Leaf.VerifyHostname(host) == nil || c.ownLeaf.VerifyHostname(host) != nil {
		return held, nil
	}
	return c.own, nil
}

// ofPods reports whether an address is in a range of pods.
func (c *Certificates) ofPods(a netip.Addr) bool {
	return slices.ContainsFunc(c.files.Pods, func(p netip.Prefix) bool { return p.Contains(a) })
}

// address is the IP address of an end of a connection; invalid: it has none.
func address(a net.Addr) netip.Addr {
	if a, ok := a.(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
