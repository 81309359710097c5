// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestControllersFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"": "",
		"--cluster-signing-kubelet-serving-key-file=a": `"cluster-signing-kubelet-serving": cannot specify key without cert`,
		"--cluster-signing-cert-file=a":                `"cluster-signing": cannot specify cert without key`,
		"--cluster-signing-cert-file=a --cluster-signing-key-file=b --cluster-signing-kubelet-client-cert-file=a --cluster-signing-kubelet-client-key-file=b": "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags at the same time",
		"--leader-elect --leader-elect-lease-duration=3s --leader-elect-renew-deadline=2s --leader-elect-retry-period=1s --leader-elect-resource-lock=leases": "",
		"--leader-elect-resource-lock=configmaps": `--leader-elect-resource-lock "configmaps": want leases`,
		"--leader-elect-lease-duration=10s":       "--leader-elect-lease-duration must be above --leader-elect-renew-deadline",
		"--leader-elect-renew-deadline=2s":        "--leader-elect-renew-deadline must be above 1.2 times --leader-elect-retry-period",
		"--leader-elect-retry-period=0s":          "--leader-elect-retry-period must be above 0",
		"--leader-elect-lease-duration=9ms --leader-elect-renew-deadline=5ms --leader-elect-retry-period=1ms": "--leader-elect-lease-duration must be a second at least",
	} {
		var o Controllers
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.addFlags(f)
		if err := f.Parse(strings.Fields(flags)); err != nil {
			t.Errorf("%s: %v", flags, err)
			continue
		}
		got := ""
		if err := o.Check(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", flags, got, want)
		}
	}
}
