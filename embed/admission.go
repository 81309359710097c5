// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1alpha1 "k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	apiserverv1beta1 "k8s.io/apiserver/pkg/apis/apiserver/v1beta1"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/webhook"
	"github.com/mortise-dev/mortise/internal/builtin"
)

// checkAdmission reads what admission is configured by and makes the plug-ins, before anything is written.
func checkAdmission(_ context.Context, p *parts, o *settled) error {
	a := o.apiserver.Admission
	w := o.apiserver.Webhooks
	if err := w.Check(); err != nil {
		return err
	}
	opts := builtin.AdmissionOptions{Enable: a.Enable, Disable: a.Disable, Webhooks: webhook.Care{
		Deadline: w.Deadline, Failures: w.BreakerFailures, Pause: w.BreakerPause, Guard: w.LockoutGuard, Configurations: w.NameConfigurations,
	}}
	if a.ConfigFile != "" {
		s := runtime.NewScheme()
		for _, add := range []func(*runtime.Scheme) error{apiserver.AddToScheme, apiserverv1alpha1.AddToScheme, apiserverv1beta1.AddToScheme, apiserverv1.AddToScheme} {
			if err := add(s); err != nil {
				return fmt.Errorf("make scheme: %w", err)
			}
		}
		config, err := admission.ReadAdmissionConfiguration(builtin.AdmissionNames(), a.ConfigFile, s)
		if err != nil {
			return fmt.Errorf("read admission configuration %s: %w", a.ConfigFile, err)
		}
		opts.Configuration = func(name string) (io.Reader, error) {
			r, err := config.ConfigFor(name)
			if r == nil {
				return nil, err
			}
			return r, err
		}
	}
	opts.NotReadySeconds, opts.UnreachableSeconds = a.NotReadySeconds, a.UnreachableSeconds
	var err error
	p.admission, err = builtin.Admission(opts)
	return err
}
