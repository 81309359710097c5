// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"crypto/tls"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress/kernel"
	"github.com/mortise-dev/mortise/internal/node"
)

func TestNodeAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"192.0.2.1":                  "192.0.2.1",
		"192.0.2.1, 2001:db8::1":     "192.0.2.1 2001:db8::1",
		"2001:db8::1,::ffff:1.2.3.4": "2001:db8::1 1.2.3.4",
		"192.0.2.1,192.0.2.2":        `address "192.0.2.1,192.0.2.2": want one IP address, or one of each IP family`,
		"192.0.2.1,::1,::2":          `address "192.0.2.1,::1,::2": want one IP address, or one of each IP family`,
		"192.0.2":                    `address "192.0.2": want an IP address`,
		"fe80::1%eth0":               `address "fe80::1%eth0": want an IP address`,
		"192.0.2.1,":                 `address "192.0.2.1,": want an IP address`,
	} {
		var got []string
		found, err := nodeAddresses(text)
		for _, a := range found {
			got = append(got, a.String())
		}
		if err != nil {
			got = append(got, err.Error())
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%q (-want +got)\n%s", text, diff)
		}
	}
}

// TestPlaceListens: where the node's API listens, and that its certificate is of the node's addresses.
func TestConnectionListens(t *testing.T) {
	found, err := nodeaddress.Find(t.Context(), kernel.Linux{}, nodeaddress.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		addresses *nodeaddress.Addresses
		want      string
	}{
		{nodeaddress.Fixed("192.0.2.1", "2001:db8::1"), "192.0.2.1:0"},
		{nodeaddress.Fixed("2001:db8::1"), "[2001:db8::1]:0"},
		{found, ":0"}, // the address may be another later
	} {
		at := &node.Connection{Addresses: c.addresses}
		if got := listen(at); got != c.want {
			t.Errorf("a node at %q listens at %s, want %s", c.addresses.Texts(), got, c.want)
		}
		var signed []string
		err := at.Serve(func(hosts ...string) (tls.Certificate, error) {
			signed = hosts
			return tls.Certificate{}, nil
		}, slog.New(slog.DiscardHandler))
		if err != nil || !slices.Equal(signed, c.addresses.Texts()) {
			t.Errorf("the certificate of a node at %q is of %q, %v", c.addresses.Texts(), signed, err)
		}
		if got, err := at.Serving.GetCertificate(nil); got == nil || err != nil {
			t.Errorf("a node at %q shows %v, %v", c.addresses.Texts(), got, err)
		}
	}
}

// TestGivenCertificate: a certificate of the kubelet configuration goes before the node's own.
func TestGivenCertificate(t *testing.T) {
	own := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }}
	k := &kubelet{secure: &tls.Config{}}
	if got := k.secured(own); got.GetCertificate == nil {
		t.Error("without a certificate of the configuration, there is none")
	}
	k.secure.Certificates = []tls.Certificate{{}}
	if got := k.secured(own); got.GetCertificate != nil || len(got.Certificates) != 1 {
		t.Error("the certificate of the configuration is shown to nobody who says a name")
	}
}
