// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
)

// proxyName is the name under which this program is the proxy of the image hostpathplugin. The suite runs its DRA driver in its own
// process: the driver's pods start this proxy for each of its sockets, and the suite connects to it by port forwarding.
const proxyName = "hostpathplugin"

// proxyMain runs the proxy with the flags of the image's program.
func proxyMain(args []string) error {
	flags := flag.NewFlagSet(proxyName, flag.ContinueOnError)
	flags.Int("v", 0, "not used")
	socket := flags.String("endpoint", "", "the path of the socket that the node connects to")
	port := flags.String("proxy-endpoint", "", "tcp://ADDRESS that the suite connects to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := os.Remove(*socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of a former proxy: %w", err)
	}
	node, err := net.Listen("unix", *socket)
	if err != nil {
		return err
	}
	defer node.Close()
	suite, err := net.Listen("tcp", strings.TrimPrefix(*port, "tcp://"))
	if err != nil {
		return err
	}
	defer suite.Close()
	return couple(node, suite)
}

// couple joins each connection that the first listener accepts with one of the second. It ends when a listener does.
func couple(first, second net.Listener) error {
	for {
		a, err := first.Accept()
		if err != nil {
			return err
		}
		b, err := second.Accept()
		if err != nil {
			return errors.Join(err, a.Close())
		}
		var once sync.Once
		both := func() { _, _ = a.Close(), b.Close() }
		for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
			go func() {
				_, _ = io.Copy(way[0], way[1]) // a driver that stops and a node that leaves break it
				once.Do(both)
			}()
		}
	}
}
