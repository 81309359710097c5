// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package join makes a machine a node of a cluster that runs elsewhere: it finds the cluster's CA, requests a client
// certificate with a bootstrap token, stores it, and rotates it before it expires. It does not run pods.
//
//	discover.go  the cluster's CA, by a file, a hash or the token's signature
//	request.go   a certificate for a token
//	keep.go      the files: DIR/kubelet.conf (a kubeconfig) and DIR/pki
//	rotate.go    a client with the newest certificate; serving certificates
//	servers.go   the other API servers of the cluster
//
// [Open] does the first three, or only reads what an earlier call stored. Use the [Identity] that it returns for as long as the node runs,
// and run [Identity.Rotate] and
// [Identity.Follow] beside it.
package join

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/mortise-dev/mortise/internal/bootstraptoken"
)

// Options select the cluster to join, and the node's name. Dir is required, and one of the names.
type Options struct {
	Dir      string // stores the identity
	Name     string // of the node; empty: the stored one, otherwise Hostname
	Hostname string

	Server string // URL; empty: the stored one
	Token  string // bootstrap token; empty: an identity is stored
	Hashes []string
	CAFile string

	Logger *slog.Logger // nil discards logs
}

// Open reads the node's identity, or joins the cluster.
func Open(ctx context.Context, o Options) (*Identity, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	kept, err := read(o.Dir)
	if err != nil {
		return nil, err
	}
	if kept == nil {
		return o.first(ctx)
	}
	return o.again(ctx, kept)
}

func (o *Options) check() error {
	if o.Server != "" {
		u, err := url.Parse(o.Server)
		if err != nil || u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("join %q: want https://HOST:PORT", o.Server)
		}
		o.Server = strings.TrimSuffix(o.Server, "/")
	}
	if o.Token != "" {
		if _, err := bootstraptoken.Parse(o.Token); err != nil {
			return err
		}
	}
	for _, h := range o.Hashes {
		if err := bootstraptoken.CheckHash(h); err != nil {
			return fmt.Errorf("parse --ca-cert-hash: %w", err)
		}
	}
	return nil
}

// first joins the cluster for the first time.
func (o *Options) first(ctx context.Context) (*Identity, error) {
	switch {
	case o.Server == "":
		return nil, fmt.Errorf("this machine is not a node yet (%s is empty): set --join and --token", o.Dir)
	case o.Token == "":
		return nil, fmt.Errorf("this machine is not a node yet (%s is empty): set --token; `mortise token create` creates one", o.Dir)
	}
	authorities, err := o.discover(ctx)
	if err != nil {
		return nil, err
	}
	i := &Identity{dir: o.Dir, log: o.Logger, Name: cmp.Or(o.Name, o.Hostname), Server: o.Server, Authorities: authorities}
	return i, o.obtain(ctx, i)
}

// again uses the stored identity, and joins anew only if its certificate is unusable.
func (o *Options) again(ctx context.Context, i *Identity) (*Identity, error) {
	i.log = o.Logger
	if o.Server != "" && o.Server != i.Server {
		return nil, fmt.Errorf("this machine is a node of %s already; to join %s, remove %s first", i.Server, o.Server, o.Dir)
	}
	certificate, err := i.certificates().Current()
	var ended error
	switch {
	case err != nil:
		ended = fmt.Errorf("read the node's certificate: %w", err)
	case certificate.Leaf == nil:
		return nil, errors.New("read the node's certificate: it cannot be parsed")
	default:
		name, ok := strings.CutPrefix(certificate.Leaf.Subject.CommonName, userPrefix)
		if !ok {
			return nil, fmt.Errorf("the certificate in %s is for %q, not for a node", o.Dir, certificate.Leaf.Subject.CommonName)
		}
		if o.Name != "" && o.Name != name {
			return nil, fmt.Errorf("this machine is the node %s already; to join as %s, remove %s first", name, o.Name, o.Dir)
		}
		i.Name = name
		if end := certificate.Leaf.NotAfter; time.Now().After(end) {
			ended = fmt.Errorf("the node's certificate expired at %s", end.Format(time.RFC3339))
		}
	}
	if ended == nil {
		i.use(certificate)
		return i, nil
	}
	if o.Token == "" {
		return nil, fmt.Errorf("%w: set --token to join again", ended)
	}
	o.Logger.Warn("Joining the cluster again", "reason", ended)
	i.Name = cmp.Or(i.Name, o.Name, o.Hostname)
	return i, o.obtain(ctx, i)
}

func pool(pem []byte) (*x509.CertPool, error) {
	out := x509.NewCertPool()
	if !out.AppendCertsFromPEM(pem) {
		return nil, errors.New("no certificate is in it")
	}
	return out, nil
}
