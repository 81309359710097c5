// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/internal/agent/netfilter"
	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// TestHostPortsAreRemovedWithTheLast has portmap's chains as it leaves them, with a container's rule and then without.
func TestHostPortsAreRemovedWithTheLast(t *testing.T) {
	for name, v6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) {
			lab := netlab.New(t)
			x, err := netfilter.OpenXTables(v6)
			if err != nil {
				t.Skipf("SKIPPED: %v", err)
			}
			write := func(text string) { lab.Node.Do(func() error { return x.Restore(t.Context(), text) }) }
			rules := func() (saved string) {
				lab.Node.Do(func() (err error) {
					if err = RemoveHostPorts(t.Context()); err == nil {
						saved, err = x.Save(t.Context())
					}
					return err
				})
				return saved
			}
			write(`*nat
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
:CNI-DN-1 - [0:0]
:THEIRS - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A POSTROUTING -j THEIRS
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 8080 -j CNI-DN-1
-A CNI-DN-1 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
COMMIT
`)
			if got := rules(); strings.Count(got, "CNI-HOSTPORT") < 9 {
				t.Errorf("beside a container's ports is left\n%s", got)
			}
			write("*nat\n:CNI-HOSTPORT-DNAT - [0:0]\n:CNI-DN-1 - [0:0]\n-X CNI-DN-1\nCOMMIT\n")
			if got := rules(); strings.Contains(got, "CNI-") || !strings.Contains(got, "-A POSTROUTING -j THEIRS") {
				t.Errorf("after the last is left\n%s", got)
			}
		})
	}
}
