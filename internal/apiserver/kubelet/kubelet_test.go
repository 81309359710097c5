// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/extension/egress"
)

func TestOwnAddresses(t *testing.T) {
	w := &Transports{}
	w.Listens(&net.TCPAddr{IP: net.IPv4zero, Port: 6443})
	w.Listens(&net.TCPAddr{IP: net.ParseIP("192.0.2.7"), Port: 443})
	w.Listens(&net.UnixAddr{Name: "/run/x", Net: "unix"})
	for address, own := range map[string]bool{
		"127.0.0.1:6443": true, "127.9.9.9:6443": true, "[::1]:6443": true, "[::ffff:127.0.0.1]:6443": true, "0.0.0.0:6443": true,
		"[::]:6443":     true,
		"192.0.2.7:443": true, "[::ffff:192.0.2.7]:443": true, "127.0.0.1:443": true,
		"127.0.0.1:10250": false, "192.0.2.7:6443": false, "192.0.2.8:443": false, "node.example:6443": false,
	} {
		if err := w.check(address); errors.Is(err, errOwnAddress) != own {
			t.Errorf("%s: %v, want own %v", address, err, own)
		}
	}
}

// TestNamesAreResolved checks that a name that resolves to the server is rejected, with and without a proxy.
func TestNamesAreResolved(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	dialled := 0
	for _, w := range []*Transports{{}, {Dial: func(context.Context, string, string) (net.Conn, error) {
		dialled++
		return nil, errors.New("dialled")
	}}} {
		w.Listens(l.Addr())
		for _, host := range []string{"localhost", "127.0.0.1", "::ffff:127.0.0.1"} {
			c, err := w.dial(t.Context(), "tcp", net.JoinHostPort(host, port))
			if err == nil {
				c.Close()
			}
			if !errors.Is(err, errOwnAddress) {
				t.Errorf("%s: %v", host, err)
			}
		}
	}
	if dialled > 0 {
		t.Errorf("%d connections were made", dialled)
	}
}

// TestUpgradesAreBounded checks that an upgrade whose client has left makes no connection to a node.
func TestUpgradesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Transports{Dial: func(context.Context, string, string) (net.Conn, error) {
			c, _ := net.Pipe()
			return c, nil
		}}
		transport, ok := w.To(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, "192.0.2.1").(*http.Transport)
		if !ok {
			t.Fatal("no transport")
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		bounded, _, stop := egress.BoundUpgrade(ctx, httptest.NewRecorder())
		defer stop()
		left := errors.New("the client has left")
		cancel(left)
		synctest.Wait()
		// The context of the dial has ended too; only the bound has the cause.
		if _, err := transport.DialContext(context.WithoutCancel(bounded), "tcp", "192.0.2.1:10250"); !errors.Is(err, left) {
			t.Errorf("dialled: %v", err)
		}
	})
}
