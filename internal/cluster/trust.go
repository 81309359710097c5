// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/mortise-dev/mortise/internal/apiserver/authenticate"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
)

// trusts are what extension API servers need to authenticate requests: the CAs of client certificates, and the proxies that may name users
// in headers. The server publishes them in a ConfigMap, together with those that other servers, or it itself earlier, have written there:
// their clients and proxies may still run.
type trusts struct {
	clients, proxies []byte // PEM
	names            []string
	headers          authenticate.Headers
}

// trustsOf returns a server's own, from its current files.
func trustsOf(material *serving.Material, settings *authenticate.Settings) *trusts {
	t := &trusts{
		clients: material.CA.CertPEM, proxies: material.FrontProxyCA.CertPEM,
		names: []string{material.FrontProxyClient.Certificate.Subject.CommonName}, headers: authenticate.StandardHeaders(),
	}
	if more := settings.ClientCAs; more != nil {
		t.clients = slices.Concat(t.clients, []byte("\n"), more.PEM())
	}
	if f := settings.FrontProxy; f != nil {
		t.proxies, t.names, t.headers = f.Authorities.PEM(), f.Names, f.Headers
	}
	return t
}

// combine returns the ConfigMap's data with what it lacks of t. It removes expired certificates.
func (t *trusts) combine(has map[string]string, now time.Time) (map[string]string, error) {
	out := map[string]string{}
	for key, own := range map[string][]byte{"client-ca-file": t.clients, "requestheader-client-ca-file": t.proxies} {
		all, err := unite([]byte(has[key]), own, now)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if len(all) > 0 {
			out[key] = string(all)
		}
	}
	if out["requestheader-client-ca-file"] == "" {
		return out, nil
	}
	for key, own := range map[string][]string{
		"requestheader-allowed-names":        t.names,
		"requestheader-username-headers":     t.headers.Username,
		"requestheader-uid-headers":          t.headers.UID,
		"requestheader-group-headers":        t.headers.Group,
		"requestheader-extra-headers-prefix": t.headers.ExtraPrefixes,
	} {
		var theirs []string
		if s := has[key]; s != "" {
			if err := json.Unmarshal([]byte(s), &theirs); err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
		}
		all := []string{}
		for _, s := range slices.Concat(theirs, own) {
			if !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
		if len(all) == 0 && key == "requestheader-uid-headers" {
			continue
		}
		b, err := json.Marshal(all)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		out[key] = string(b)
	}
	return out, nil
}

// expiredFor is how long an expired certificate stays: clocks differ.
const expiredFor = 5 * time.Minute

// unite merges certificates, without duplicates.
func unite(a, b []byte, now time.Time) ([]byte, error) {
	var all []*x509.Certificate
	for _, text := range [][]byte{a, b} {
		if len(text) == 0 {
			continue
		}
		found, err := cert.ParseCertsPEM(text)
		if err != nil {
			return nil, fmt.Errorf("parse certificates: %w", err)
		}
		for _, c := range found {
			if c.NotAfter.After(now.Add(-expiredFor)) && !slices.ContainsFunc(all, c.Equal) {
				all = append(all, c)
			}
		}
	}
	var out bytes.Buffer
	for _, c := range all {
		if err := pem.Encode(&out, &pem.Block{Type: cert.CertificateBlockType, Bytes: c.Raw}); err != nil {
			return nil, fmt.Errorf("encode certificates: %w", err)
		}
	}
	return out.Bytes(), nil
}

// publishTrusts adds missing trusts to the ConfigMap.
func (k *configMapPublisher) publishTrusts(ctx context.Context) (time.Duration, error) {
	return 0, k.writeMap(ctx, bootstrap.AuthenticationName, func(has map[string]string) (map[string]string, error) {
		return k.trusts().combine(has, time.Now())
	})
}
