// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
)

// The cable between the machine and the suite that is outside of it: of the range for benchmarks (RFC 2544), which no network has.
const (
	machineSide = "198.18.255.1"
	suiteSide   = "198.18.255.2"
)

// outside is a network namespace of the suite's own, as the client of a load balancer has: what a machine sends to its own addresses is
// not what a load balancer gets. The kernel tells a program of the machine itself that its packet was rejected (EPERM), for which the
// suite tries again, and nothing has a source address to keep.
type outside struct{ name, link string }

// goOutside makes it, with a cable to the machine.
func goOutside() (*outside, error) {
	o := &outside{name: fmt.Sprintf("conformance-%d", os.Getpid()), link: fmt.Sprintf("conf%d", os.Getpid())}
	for _, line := range []string{
		"netns add " + o.name,
		"link add " + o.link + " type veth peer name eth0 netns " + o.name,
		"addr add " + machineSide + "/30 dev " + o.link,
		"link set " + o.link + " up",
		"-n " + o.name + " link set lo up",
		"-n " + o.name + " addr add " + suiteSide + "/30 dev eth0",
		"-n " + o.name + " link set eth0 up",
		"-n " + o.name + " route add default via " + machineSide,
	} {
		if err := ip(line); err != nil {
			return nil, errors.Join(err, o.close())
		}
	}
	return o, nil
}

// command is a program that runs there.
func (o *outside) command(program string, args []string) (string, []string) {
	return "ip", append([]string{"netns", "exec", o.name, program}, args...)
}

// close removes the namespace, and the cable with it.
func (o *outside) close() error { return ip("netns delete " + o.name) }

func ip(line string) error {
	if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", line, err, out)
	}
	return nil
}

// fromOutside writes the kubeconfig anew, for a client there: the node's address, for which the server has a certificate, in place of
// loopback.
func fromOutside(kubectl, kubeconfig string) error {
	out, err := exec.Command(kubectl, "--kubeconfig", kubeconfig, "get", "nodes", "-o",
		`jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`).Output()
	addresses := strings.Fields(string(out))
	if err != nil || len(addresses) == 0 {
		return fmt.Errorf("find the node's address: %q, %w", out, err)
	}
	c, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	for _, cluster := range c.Clusters {
		u, err := url.Parse(cluster.Server)
		if err != nil {
			return fmt.Errorf("read address of the API server: %w", err)
		}
		u.Host = net.JoinHostPort(addresses[0], u.Port())
		cluster.Server = u.String()
	}
	return clientcmd.WriteToFile(*c, kubeconfig)
}
