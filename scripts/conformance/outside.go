// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"strconv"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
)

// The addresses of the network between the machine, the suite and a second node: of the range for benchmarks (RFC 2544), 198.18.0.0/15,
// which no network has. A test takes all of a node's /16 for its subnet, in which no client is.
const (
	machineSide = "198.18.255.1"
	suiteSide   = "198.19.255.2"
	secondSide  = "198.18.255.3"
	// pool has addresses for Services, that lead to all nodes as those of a cloud do.
	pool = "198.18.255.128-198.18.255.254"
)

// lan is a switch in a network namespace of its own, with a cable to the machine. The suite can run there, as the client of a load balancer
// does: what a machine sends to its own addresses is not what a load balancer gets. The kernel tells a program of the machine itself that
// its packet was rejected (EPERM), for which the suite tries again, and nothing has a source address to keep. The switch is not the
// machine's own, whose rules of Services would see what goes past it to the second node.
type lan struct{ name, link string }

// thisRun is of this process alone, which may have the same process ID as others in other namespaces.
var thisRun = strings.ToLower(rand.Text()[:8])

// newLAN makes it.
func newLAN() (*lan, error) {
	l := &lan{name: "conformance-" + thisRun, link: "conf" + thisRun}
	if err := ip("netns add " + l.name); err != nil {
		return nil, err
	}
	for _, line := range []string{
		"-n " + l.name + " link set lo up",
		"-n " + l.name + " link add lan type bridge",
		"-n " + l.name + " addr add " + suiteSide + "/15 dev lan",
		"-n " + l.name + " link set lan up",
		"-n " + l.name + " route add default via " + machineSide,
		"link add " + l.link + " type veth peer name machine netns " + l.name,
		"-n " + l.name + " link set machine master lan up",
		"addr add " + machineSide + "/15 dev " + l.link,
		"link set " + l.link + " up",
	} {
		if err := ip(line); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	return l, nil
}

// plug connects the network namespace of a process, whose link is eth0.
func (l *lan) plug(pid int, address string) error {
	there := func(line string) error { return command("nsenter -t " + strconv.Itoa(pid) + " -n ip " + line) }
	return errors.Join(
		ip("-n "+l.name+" link add second type veth peer name eth0 netns "+strconv.Itoa(pid)),
		ip("-n "+l.name+" link set second master lan up"),
		there("link set lo up"),
		there("addr add "+address+"/15 dev eth0"),
		there("link set eth0 up"),
		there("route add default via "+machineSide),
	)
}

// command is a program that runs in the network of the switch.
func (l *lan) command(program string, args []string) (string, []string) {
	return "ip", append([]string{"netns", "exec", l.name, program}, args...)
}

// close removes the namespace, and the cables with it.
func (l *lan) close() error { return ip("netns delete " + l.name) }

func ip(line string) error { return command("ip " + line) }

// command runs a command line, whose words have no spaces.
func command(line string) error {
	words := strings.Fields(line)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, out)
	}
	return nil
}

// fromOutside writes the kubeconfig anew, for a client of the lan: the machine's address there, for which the server has a certificate, in
// place of another.
func fromOutside(kubeconfig string) error {
	c, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	for _, cluster := range c.Clusters {
		u, err := url.Parse(cluster.Server)
		if err != nil {
			return fmt.Errorf("read address of the API server: %w", err)
		}
		u.Host = net.JoinHostPort(machineSide, u.Port())
		cluster.Server = u.String()
	}
	return clientcmd.WriteToFile(*c, kubeconfig)
}
