// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/mortise-dev/mortise/internal/agent/nodeapi"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// fakeNode is a node with one pod, default/p with the container c, behind a real CRI streaming server.
type fakeNode struct {
	streams streaming.Server
	logged  chan *corev1.PodLogOptions
	follow  chan string // lines that a follower gets
	stats   func() (*stats.Usage, error)
	targets chan podspec.Target // that streams, runs and logs were asked of
}

func newFakeNode(t *testing.T) *fakeNode {
	n := &fakeNode{logged: make(chan *corev1.PodLogOptions, 10), follow: make(chan string), targets: make(chan podspec.Target, 100)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.streams.ServeHTTP(w, r) }))
	t.Cleanup(srv.Close)
	base, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := streaming.DefaultConfig
	c.BaseURL = base
	if n.streams, err = streaming.NewServer(c, fakeRuntime{}); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *fakeNode) Name() string { return "n1" }

func (n *fakeNode) Pods() []*corev1.Pod {
	return []*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}, {Name: "waiting", Image: "i"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}},
	}}
}

func (n *fakeNode) ContainerLogs(ctx context.Context, t podspec.Target, o *corev1.PodLogOptions, stdout, stderr io.Writer) error {
	n.targets <- t
	n.logged <- o
	if t.Container == "waiting" {
		return apierrors.NewBadRequest(`container "waiting" in pod "p" is waiting to start: ContainerCreating`)
	}
	if stdout != nil {
		io.WriteString(stdout, "to stdout\n")
	}
	if stderr != nil {
		io.WriteString(stderr, "to stderr\n")
	}
	for o.Follow {
		select {
		case line := <-n.follow:
			io.WriteString(stdout, line)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func location(r interface{ GetUrl() string }, err error) (*url.URL, error) {
	if err != nil {
		return nil, err
	}
	return url.Parse(r.GetUrl())
}

func (n *fakeNode) Exec(_ context.Context, t podspec.Target, command []string, s podspec.Streams) (*url.URL, error) {
	n.targets <- t
	if t.Container != "c" {
		return nil, apierrors.NewBadRequest("container is not running")
	}
	return location(n.streams.GetExec(&runtimeapi.ExecRequest{
		ContainerId: "id", Cmd: command, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Tty: s.TTY}))
}

func (n *fakeNode) Attach(_ context.Context, t podspec.Target, s podspec.Streams) (*url.URL, error) {
	n.targets <- t
	return location(n.streams.GetAttach(&runtimeapi.AttachRequest{
		ContainerId: "id", Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Tty: s.TTY}))
}

func (n *fakeNode) PortForward(_ context.Context, t podspec.Target, ports []int32) (*url.URL, error) {
	n.targets <- t
	return location(n.streams.GetPortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "sandbox", Port: ports}))
}

func (n *fakeNode) Run(_ context.Context, t podspec.Target, command []string, _ time.Duration) ([]byte, int32, error) {
	n.targets <- t
	return []byte(strings.Join(command, "+")), 0, nil
}

func (n *fakeNode) Stats(context.Context, stats.Options) (*stats.Usage, error) {
	if n.stats != nil {
		return n.stats()
	}
	return &stats.Usage{Containers: []stats.Container{
		{Target: podspec.Target{Namespace: "default", Pod: "p", UID: "u1", Container: "c"}, Time: time.Unix(100, 0), Started: time.Unix(50, 0),
			CPUNanoseconds: 2e9, MemoryBytes: 30, MemoryWorkingSetBytes: 20},
		{Target: podspec.Target{Namespace: "default", Pod: "p", UID: "u1", Container: "d"}, Time: time.Unix(100, 0), Started: time.Unix(60, 0),
			CPUNanoseconds: 1e9, MemoryBytes: 3, MemoryWorkingSetBytes: 2},
	}}, nil
}

// fakeRuntime echoes. The command "exit" ends with status 7.
type fakeRuntime struct{}

func (fakeRuntime) Exec(_ context.Context, _ string, cmd []string, in io.Reader, out, errs io.WriteCloser, tty bool,
	resize <-chan remotecommand.TerminalSize) error {
	if cmd[0] == "exit" {
		return utilexec.CodeExitError{Err: errors.New("command terminated with exit code 7"), Code: 7}
	}
	if tty {
		size := <-resize
		fmt.Fprintf(out, "%dx%d ", size.Width, size.Height)
	}
	fmt.Fprintf(out, "%s: ", strings.Join(cmd, " "))
	if in != nil {
		io.Copy(out, in)
	}
	if errs != nil {
		io.WriteString(errs, "to stderr")
	}
	return nil
}

func (fakeRuntime) Attach(_ context.Context, _ string, in io.Reader, out, _ io.WriteCloser, _ bool,
	_ <-chan remotecommand.TerminalSize) error {
	_, err := io.Copy(out, in)
	return err
}

func (fakeRuntime) PortForward(_ context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	line := make([]byte, 5)
	if _, err := io.ReadFull(stream, line); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stream, "%d says %s", port, line)
	return err
}

// authority is a certificate authority for the test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{}
	a.cert, a.key = a.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		Subject: pkix.Name{CommonName: "ca"}})
	return a
}

func (a *authority) sign(t *testing.T, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return out, key
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// start serves the node and returns its URL.
func start(t *testing.T, node nodeapi.Node, ca *authority, o Options) string {
	t.Helper()
	cert, key := ca.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "node"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	o.ClientCAs = ca.pool()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}, ClientAuth: tls.RequestClientCert})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(o)(ctx, node, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "https://" + l.Addr().String()
}

// config is how a client with a certificate of that name and group reaches the server.
func (a *authority) config(t *testing.T, host, name, group string) *rest.Config {
	t.Helper()
	cert, key := a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{group}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}) }
	return &rest.Config{Host: host, TLSClientConfig: rest.TLSClientConfig{
		CAData: block("CERTIFICATE", a.cert.Raw), CertData: block("CERTIFICATE", cert.Raw), KeyData: block("EC PRIVATE KEY", der)}}
}
