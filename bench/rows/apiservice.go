// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/mortise-dev/mortise/bench/load"
)

// serveAggregated serves an aggregated API over TLS and HTTP/2 until the input ends. It prints its address.
func serveAggregated(handler http.Handler, in io.Reader, out io.Writer) error {
	s := httptest.NewUnstartedServer(handler)
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.CloseClientConnections()
	if _, err := fmt.Fprintln(out, s.Listener.Addr()); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, in)
	return err
}

// startAggregated starts this program as such a server, in a process of its own. stop ends it.
func startAggregated(ctx context.Context, argument string) (address string, stop func() error, err error) {
	c, err := startChild(ctx, argument)
	if err != nil {
		return "", nil, err
	}
	if !c.lines.Scan() {
		return "", nil, errors.Join(fmt.Errorf("start %s: it printed no address", argument), c.lines.Err(), c.end())
	}
	return c.lines.Text(), c.end, nil
}

// register makes an APIService for a group version that is served at an address, with a Service of the group's first word, and waits until
// the server has found it available.
func register(ctx context.Context, client *http.Client, host, address, group, version string) error {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("register %s: %w", group, err)
	}
	service, _, _ := strings.Cut(group, ".")
	if err := load.Expect(ctx, client, http.StatusCreated, "POST", host+"/api/v1/namespaces/default/services", jsonContent,
		fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q},"spec":{"type":"ExternalName","externalName":%q}}`,
			service, name)); err != nil {
		return err
	}
	const registrations = "/apis/apiregistration.k8s.io/v1/apiservices"
	if err := load.Expect(ctx, client, http.StatusCreated, "POST", host+registrations, jsonContent,
		fmt.Sprintf(`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"%[2]s.%[1]s"},`+
			`"spec":{"group":%[1]q,"version":%[2]q,"groupPriorityMinimum":1000,"versionPriority":100,"insecureSkipTLSVerify":true,`+
			`"service":{"namespace":"default","name":%[3]q,"port":%[4]s}}}`, group, version, service, port)); err != nil {
		return err
	}
	return watchLines(ctx, client, fmt.Sprintf("%s%s?watch=1&fieldSelector=metadata.name%%3D%s.%s", host, registrations, version, group),
		wholeObjects, func(line []byte) (bool, error) { return strings.Contains(string(line), `"reason":"Passed"`), nil })
}
