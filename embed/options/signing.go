// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// Signing configures the signers of CertificateSigningRequests, and the CA that pods trust.
type Signing struct {
	// All is the CA of all signers; without files, the cluster's own.
	All SigningFiles
	// KubeletServing, KubeletClient, APIClient and LegacyUnknown are the CAs of one signer each. If any of them is set, All must not be.
	KubeletServing, KubeletClient, APIClient, LegacyUnknown SigningFiles
	// RootCAFile is the CA in kube-root-ca.crt and in the secrets with tokens; empty: the cluster's own.
	RootCAFile string
}

// SigningFiles are the PEM files of a CA's certificate and key.
type SigningFiles struct{ CertFile, KeyFile string }

func (o *Signing) addFlags(f *pflag.FlagSet) {
	add := func(to *SigningFiles, name, of string) {
		f.StringVar(&to.CertFile, name+"-cert-file", to.CertFile,
			"File of the certificate of the CA that signs for "+of+". Default: the cluster's CA.")
		f.StringVar(&to.KeyFile, name+"-key-file", to.KeyFile,
			"File of the private key of the CA that signs for "+of+". Default: the cluster's CA.")
	}
	add(&o.All, "cluster-signing", "all signers of kubernetes.io")
	add(&o.KubeletServing, "cluster-signing-kubelet-serving", "kubernetes.io/kubelet-serving")
	add(&o.KubeletClient, "cluster-signing-kubelet-client", "kubernetes.io/kube-apiserver-client-kubelet")
	add(&o.APIClient, "cluster-signing-kube-apiserver-client", "kubernetes.io/kube-apiserver-client")
	add(&o.LegacyUnknown, "cluster-signing-legacy-unknown", "kubernetes.io/legacy-unknown")
	f.StringVar(&o.RootCAFile, "root-ca-file", o.RootCAFile,
		"File of the root CA to publish in the ConfigMap kube-root-ca.crt and in service-account token Secrets. Default: the cluster's CA.")
}

func (o *Signing) check() error {
	var errs []error
	specific := false
	for _, s := range []struct {
		files SigningFiles
		name  string
	}{
		// upstream's names, which are not those of the flags
		{o.KubeletServing, "cluster-signing-kubelet-serving"}, {o.KubeletClient, "cluster-signing-kube-apiserver-client"},
		{o.APIClient, "cluster-signing-kube-apiserver"}, {o.LegacyUnknown, "cluster-signing-legacy-unknown"},
	} {
		specific = specific || s.files != SigningFiles{}
		if err := s.files.check(); err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", s.name, err))
		}
	}
	if specific && o.All != (SigningFiles{}) {
		// upstream's words
		errs = append(errs, errors.New("cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags at the same time"))
	}
	if err := o.All.check(); err != nil {
		errs = append(errs, fmt.Errorf("%q: %w", "cluster-signing", err))
	}
	return errors.Join(errs...)
}

func (f SigningFiles) check() error {
	switch {
	case f.CertFile == "" && f.KeyFile != "":
		return errors.New("cannot specify key without cert") // upstream's words
	case f.CertFile != "" && f.KeyFile == "":
		return errors.New("cannot specify cert without key") // upstream's words
	}
	return nil
}
