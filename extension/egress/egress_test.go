// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package egress_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"k8s.io/apiserver/pkg/server/egressselector/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/clock"
	konnectivity "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/extension/egress/egresstest"
)

func write(t testing.TB, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// identity makes a certificate that is its own authority, good for example.com, and its key: the files' names.
func identity(t testing.TB) (cert, key string, pair tls.Certificate) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"example.com"}, IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	certPEM, keyPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	if pair, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		t.Fatal(err)
	}
	return write(t, "cert", string(certPEM)), write(t, "key", string(keyPEM)), pair
}

func listen(t testing.TB, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// socket is a path that is short enough for one.
func socket(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "egress")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func configuration(name, connection string) string {
	return "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- name: " + name + "\n  connection: " +
		connection + "\n"
}

// load makes the way that a connection describes.
func load(t testing.TB, connection string) (egress.Dial, *extension.Ledger) {
	t.Helper()
	l := extension.NewLedger(clock.RealClock{})
	s, err := egress.Load(write(t, "egress.yaml", configuration("cluster", connection)), l)
	if err != nil {
		t.Fatal(err)
	}
	if s.ControlPlane() != nil {
		t.Error("the control plane has a way of its own, of which the file says nothing")
	}
	return s.Cluster(), l
}

// tunnels is konnectivity's server: gRPC in, TCP out.
type tunnels struct{ route func(string) string }

func (s tunnels) Proxy(stream konnectivity.ProxyService_ProxyServer) error {
	var there net.Conn
	for {
		p, err := stream.Recv()
		if err != nil {
			return nil
		}
		switch p.Type {
		case konnectivity.PacketType_DIAL_REQ:
			answer := &konnectivity.DialResponse{Random: p.GetDialRequest().Random, ConnectID: 1}
			if there, err = net.Dial("tcp", s.route(p.GetDialRequest().Address)); err != nil {
				answer.Error = "no way to " + p.GetDialRequest().Address
			} else {
				defer there.Close()
			}
			if err := stream.Send(&konnectivity.Packet{Type: konnectivity.PacketType_DIAL_RSP,
				Payload: &konnectivity.Packet_DialResponse{DialResponse: answer}}); err != nil || there == nil {
				return err
			}
			go func() {
				b := make([]byte, 4096)
				for {
					n, err := there.Read(b)
					if n > 0 {
						_ = stream.Send(&konnectivity.Packet{Type: konnectivity.PacketType_DATA,
							Payload: &konnectivity.Packet_Data{Data: &konnectivity.Data{ConnectID: 1, Data: b[:n]}}})
					}
					if err != nil {
						return
					}
				}
			}()
		case konnectivity.PacketType_DATA:
			if _, err := there.Write(p.GetData().Data); err != nil {
				return err
			}
		case konnectivity.PacketType_CLOSE_REQ:
			return stream.Send(&konnectivity.Packet{Type: konnectivity.PacketType_CLOSE_RSP,
				Payload: &konnectivity.Packet_CloseResponse{CloseResponse: &konnectivity.CloseResponse{ConnectID: 1}}})
		}
	}
}

// What no address leads to is reached through each sort of proxy; what the proxy does not know is an error that says so; all is booked.
func TestWays(t *testing.T) {
	cert, key, pair := identity(t)
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "at %s", r.Host) }))
	defer behind.Close()
	route := func(a string) string {
		return map[string]string{"web.invalid:80": behind.Listener.Addr().String()}[a]
	}
	authority := x509.NewCertPool()
	authority.AddCert(pair.Leaf)
	secure := &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority}
	tcp := func(l net.Listener) string { return strings.Replace(l.Addr().String(), "127.0.0.1", "localhost", 1) }
	for name, serve := range map[string]func(t *testing.T) (connection string){
		"TLS": func(t *testing.T) string {
			l := listen(t, "tcp", "127.0.0.1:0")
			(&egresstest.Proxy{Route: route}).Serve(t, tls.NewListener(l, secure))
			return fmt.Sprintf("{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://%s', tlsConfig: {caBundle: %s, clientCert: %s, clientKey: %s, tlsServerName: example.com}}}}", tcp(l), cert, cert, key)
		},
		"TCP": func(t *testing.T) string {
			l := listen(t, "tcp", "127.0.0.1:0")
			(&egresstest.Proxy{Route: route}).Serve(t, l)
			return fmt.Sprintf("{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://%s'}}}", tcp(l))
		},
		"socket": func(t *testing.T) string {
			s := socket(t)
			(&egresstest.Proxy{Route: route}).Serve(t, listen(t, "unix", s))
			return fmt.Sprintf("{proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}", s)
		},
		"gRPC": func(t *testing.T) string {
			s := socket(t)
			g := grpc.NewServer()
			konnectivity.RegisterProxyServiceServer(g, tunnels{route})
			l := listen(t, "unix", s)
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = g.Serve(l)
			}()
			t.Cleanup(func() {
				g.Stop()
				<-done
			})
			return fmt.Sprintf("{proxyProtocol: GRPC, transport: {uds: {udsName: %s}}}", s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			metrics.Metrics.Reset()
			dial, ledger := load(t, serve(t))
			c := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
			resp, err := c.Get("http://web.invalid/")
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || string(body) != "at web.invalid" {
				t.Errorf("%s, %v", body, err)
			}
			if _, err := c.Get("http://other.invalid/"); err == nil || !strings.Contains(err.Error(), "other.invalid:80") &&
				!strings.Contains(err.Error(), "no way to") {
				t.Errorf("an address that the proxy does not know: %v", err)
			}
			e := ledger.Snapshot()
			if len(e) != 1 || e[0].Point != extension.EgressProxy || e[0].Name != "cluster" || e[0].Calls != 2 || e[0].Failures != 1 ||
				!strings.HasSuffix(e[0].Where, "egress.yaml") {
				t.Errorf("the ledger: %+v", e)
			}
			labels := "protocol=http_connect,transport=" + map[bool]string{true: "tcp", false: "uds"}[strings.HasPrefix(name, "T")]
			if name == "gRPC" {
				labels = "protocol=grpc,transport=uds"
			}
			wantMetrics(t, map[string]float64{"dial_start_total " + labels: 2, "dial_duration_seconds " + labels: 1,
				"dial_failure_count " + strings.Replace(labels, ",", ",stage=proxy,", 1): 1})
		})
	}
}

// wantMetrics compares the metrics of dials by their names and labels: of counters the value, of histograms the count.
func wantMetrics(t *testing.T, want map[string]float64) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		name, ours := strings.CutPrefix(f.GetName(), "apiserver_egress_dialer_")
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			if ours {
				got[name+" "+strings.Join(labels, ",")] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got)\n%s", diff)
	}
}

// A proxy that does not answer, or does not stop, holds nobody for longer than they want; what is no answer is an error.
func TestBadProxies(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(net.Conn)
		want   string
	}{
		"silent": {func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, "nobody waits"},
		"garbage": {func(c net.Conn) { _, _ = io.WriteString(c, "ho\r\n\r\n") },
			"reading HTTP response from CONNECT to web.invalid:80 via proxy"},
		"endless": {func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for _, err := io.WriteString(c, "A: b\r\n"); err == nil; _, err = io.WriteString(c, strings.Repeat("A: b\r\n", 1000)) {
			}
		}, "reading HTTP response from CONNECT"},
		"refuses": {func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\n\r\n") },
			"while dialing web.invalid:80, code 403: 403 Forbidden"},
		"too early": {func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nhello") },
			"unexpected 5 bytes of buffered data from CONNECT proxy"},
		"closes": {func(net.Conn) {}, "reading HTTP response from CONNECT"},
	} {
		t.Run(name, func(t *testing.T) {
			s := socket(t)
			l := listen(t, "unix", s)
			asked, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = conn.Read(make([]byte, 1024))
				close(asked)
				c.answer(conn)
			}()
			dial, _ := load(t, fmt.Sprintf("{proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}", s))
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if name == "silent" {
				go func() {
					<-asked
					cancel(fmt.Errorf("nobody waits"))
				}()
			}
			conn, err := dial(ctx, "tcp", "web.invalid:80")
			if err == nil {
				_ = conn.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
			<-done
		})
	}
	for protocol, label := range map[string]string{"HTTPConnect": "http_connect", "GRPC": "grpc"} {
		metrics.Metrics.Reset()
		dial, _ := load(t, fmt.Sprintf("{proxyProtocol: %s, transport: {uds: {udsName: /nosuch/socket}}}", protocol))
		if _, err := dial(t.Context(), "tcp", "web.invalid:80"); err == nil || !strings.Contains(err.Error(), "/nosuch/socket") {
			t.Errorf("%s to nobody: %v", protocol, err)
		}
		labels := "protocol=" + label + ","
		wantMetrics(t, map[string]float64{"dial_start_total " + labels + "transport=uds": 1,
			"dial_failure_count " + labels + "stage=connect,transport=uds": 1})
		if _, err := dial(t.Context(), "tcp", "web.invalid:80\r\nX: y"); err == nil {
			t.Errorf("%s: an address of two lines", protocol)
		}
	}
}

// A konnectivity server that takes a request and says nothing is given up when the caller does so.
func TestSilentTunnel(t *testing.T) {
	s := socket(t)
	l := listen(t, "unix", s)
	accepted := make(chan net.Conn, 1)
	go func() {
		defer close(accepted)
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	dial, _ := load(t, fmt.Sprintf("{proxyProtocol: GRPC, transport: {uds: {udsName: %s}}}", s))
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := dial(ctx, "tcp", "web.invalid:80")
		failed <- err
	}()
	c := <-accepted
	cancel()
	if err := <-failed; err == nil {
		t.Error("it connected")
	}
	if c != nil {
		_ = c.Close()
	}
}

// Direct connections are made without anybody else.
func TestDirect(t *testing.T) {
	l := listen(t, "tcp", "127.0.0.1:0")
	dial, ledger := load(t, "{proxyProtocol: Direct}")
	conn, err := dial(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if e := ledger.Snapshot(); len(e) != 0 {
		t.Errorf("the ledger: %+v", e)
	}
	var none *egress.Selector
	if none.Cluster() != nil || none.ControlPlane() != nil {
		t.Error("no file, but a way")
	}
}

// The names are kube-apiserver's, the old one of the control plane among them; what is not used is read as well.
func TestNames(t *testing.T) {
	for name, want := range map[string][2]bool{"controlplane": {true, false}, "master": {true, false}, "Cluster": {false, true}, "etcd": {}} {
		s, err := egress.Load(write(t, "egress.yaml", configuration(name, "{proxyProtocol: GRPC, transport: {uds: {udsName: /run/proxy}}}")),
			extension.NewLedger(clock.RealClock{}))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := [2]bool{s.ControlPlane() != nil, s.Cluster() != nil}; got != want {
			t.Errorf("%s: the control plane, the cluster have ways: %v, want %v", name, got, want)
		}
	}
}

// Files that cannot be meant are refused in kube-apiserver's words.
func TestBadFiles(t *testing.T) {
	cert, key, _ := identity(t)
	junk := write(t, "junk", "junk")
	secure := func(ca, cert, key string) string {
		return fmt.Sprintf("{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://localhost', tlsConfig: {caBundle: %q, clientCert: %q, clientKey: %q}}}}", ca, cert, key)
	}
	for name, c := range map[string]struct{ file, want string }{
		"no protocol": {configuration("cluster", "{}"),
			`failed to validate egress selector configuration: service.connection.protocol: Unsupported value: ""`},
		"no transport": {configuration("cluster", "{proxyProtocol: HTTPConnect}"), "transport must be set for HTTPConnect"},
		"gRPC over TCP": {configuration("cluster", "{proxyProtocol: GRPC, transport: {tcp: {url: 'http://localhost'}}}"),
			"UDS must be set with GRPC"},
		"both": {configuration("cluster", "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://localhost'}, uds: {udsName: x}}}"),
			"TCP and UDS cannot both be set"},
		"no name": {configuration("cluster", "{proxyProtocol: GRPC, transport: {uds: {}}}"), "must be present for UDS connections"},
		"scheme": {configuration("cluster", "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'ftp://localhost'}}}"),
			"supported connection protocols are http:// and https://"},
		"URL": {configuration("cluster", "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://local host'}}}"),
			"invalid proxy server url"},
		"TLS for nothing": {configuration("cluster", "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://localhost', tlsConfig: {}}}}"),
			"config must not be present when using HTTP"},
		"no TLS": {configuration("cluster", "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://localhost'}}}"),
			"TLSConfig must be present when using HTTPS"},
		"no certificate": {configuration("cluster", secure("", "", key)), "Using TLS requires clientCert"},
		"lost key":       {configuration("cluster", secure("", cert, "/nosuch")), "TLS client key does not exist"},
		"bad key":        {configuration("cluster", secure("", cert, junk)), "failed to read key pair"},
		"bad authority":  {configuration("cluster", secure(junk, cert, key)), "failed to append CA cert to the cert pool"},
		"direct by proxy": {configuration("cluster", "{proxyProtocol: Direct, transport: {uds: {udsName: x}}}"),
			"config must be absent for direct connect"},
		"unknown name": {configuration("moon", "{proxyProtocol: Direct}"), `Unsupported value: "moon"`},
		"unknown field": {configuration("cluster", "{proxyProtocol: Direct, hue: red}"),
			`failed to read egress selector config: strict decoding error: unknown field "egressSelections[0].connection.hue"`},
		"another kind": {"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n", "unexpected config type"},
		"twice": {configuration("cluster", "{proxyProtocol: Direct}") + "- name: cluster\n  connection: {proxyProtocol: Direct}\n",
			`Duplicate value: "cluster"`},
		"nothing": {"", "failed to read egress selector config"},
	} {
		l := extension.NewLedger(clock.RealClock{})
		if _, err := egress.Load(write(t, "egress.yaml", c.file), l); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if _, err := egress.Load("/nosuch", nil); err == nil || err.Error() != "egress-selector-config-file /nosuch does not exist" {
		t.Errorf("no file: %v", err)
	}
	if s, err := egress.Load("", nil); s != nil || err != nil {
		t.Errorf("no name: %v, %v", s, err)
	}
}

// Fuzz: whatever a file holds, it is read or refused.
func FuzzLoad(f *testing.F) {
	f.Add(configuration("cluster", "{proxyProtocol: GRPC, transport: {uds: {udsName: x}}}"))
	f.Add(configuration("master", "{proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://[::1]:1'}}}"))
	f.Add(configuration("etcd", "{proxyProtocol: Direct}"))
	file := filepath.Join(f.TempDir(), "egress.yaml")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := egress.Load(file, extension.NewLedger(clock.RealClock{}))
		if (s == nil) == (err == nil) {
			t.Errorf("%v, %v", s, err)
		}
	})
}
