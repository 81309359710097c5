// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/embed/options"
)

func TestNodePortAddressesAreChecked(t *testing.T) {
	for text, wrong := range map[string]bool{"eth0": true, "10.0.0.0/8,10.0.0.1": true, "primary": false, "10.0.0.0/8,fd00::/8": false} {
		t.Run(text, func(t *testing.T) {
			var o options.APIServer
			f := pflag.NewFlagSet("up", pflag.ContinueOnError)
			o.AddFlags(f)
			if err := f.Parse([]string{"--nodeport-addresses", text}); err != nil {
				t.Fatal(err)
			}
			s := &Server{Node: NodeNone, Controllers: []string{"none"}, APIServer: o}
			err := s.Start(t.Context())
			if err == nil {
				if err := s.Stop(); err != nil {
					t.Error(err)
				}
			}
			if wrong != (err != nil) || err != nil && !strings.Contains(err.Error(), "is neither a prefix nor primary") {
				t.Errorf("start says %v", err)
			}
		})
	}
}
