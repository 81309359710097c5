// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestHostAddress: a server's default address is the one on the machine's default route, though a bridge for containers comes first.
// Without a route it is the first.
func TestHostAddress(t *testing.T) {
	const inside = "HOST_ADDRESS_INSIDE"
	if os.Getenv(inside) != "" {
		fmt.Println("it is", hostAddress())
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("makes network namespaces, so it needs root")
	}
	const interfaces = "ip link add bridge type bridge && ip address add 10.1.0.1/24 dev bridge && ip link set bridge up && " +
		"ip link add outside type veth peer name far && ip link set far up && " +
		"ip address add 192.0.2.7/24 dev outside && ip link set outside up && "
	for setup, want := range map[string]string{
		interfaces: "10.1.0.1",
		interfaces + "ip route add default via 192.0.2.1 && ": "192.0.2.7",
		"": "127.0.0.1",
	} {
		script := setup + `exec "$0" -test.run '^TestHostAddress$' -test.v`
		cmd := exec.CommandContext(t.Context(), "unshare", "--net", "sh", "-c", script, os.Args[0])
		cmd.Env = append(os.Environ(), inside+"=true")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "it is "+want+"\n") {
			t.Errorf("want %s: %v\n%s", want, err, out)
		}
	}
}
