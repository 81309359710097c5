// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package probe asks containers how they are: by a command, by HTTP, by a TCP
// connection or by gRPC's health service.
//
// Prober makes one attempt. Manager owns a goroutine for each running container that
// has probes; it counts consecutive results against the thresholds, keeps the
// verdicts, and tells when one has changed. A container that is started again has
// another ID, and its verdicts begin anew.
package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/mortise-dev/mortise/internal/agent/cri"
)

// Result is what one attempt says.
type Result string

// The results of an attempt.
const (
	Success Result = "success"
	Warning Result = "warning" // a success with something odd about it
	Failure Result = "failure"
	Unknown Result = "unknown" // the attempt could not be made
)

const userAgent = "kube-probe/1.37"

// maxBody is how much of an answer is read.
const maxBody = 10 * 1024

// Prober makes attempts.
type Prober struct {
	// Exec runs a command in a container and returns its output and exit code.
	// A command that took too long gives cri.ErrTimeout.
	Exec func(ctx context.Context, containerID string, command []string, timeout time.Duration) (output []byte, exitCode int32, err error)
}

// Attempt asks once. The text says why it is not a success.
func (p *Prober) Attempt(ctx context.Context, probe *corev1.Probe, container *corev1.Container, containerID, podIP string) (Result, string,
	error) {
	timeout := time.Duration(max(probe.TimeoutSeconds, 1)) * time.Second
	switch {
	case probe.Exec != nil:
		return p.exec(ctx, probe.Exec.Command, containerID, timeout)
	case probe.HTTPGet != nil:
		request, err := Request(ctx, probe.HTTPGet, container, podIP)
		if err != nil {
			return Unknown, "", err
		}
		return httpGet(request, timeout)
	case probe.TCPSocket != nil:
		port, err := Port(probe.TCPSocket.Port, container)
		if err != nil {
			return Unknown, "", err
		}
		host := probe.TCPSocket.Host
		if host == "" {
			host = podIP
		}
		return tcp(ctx, net.JoinHostPort(host, strconv.Itoa(port)), timeout)
	case probe.GRPC != nil:
		service := ""
		if probe.GRPC.Service != nil {
			service = *probe.GRPC.Service
		}
		return health(ctx, net.JoinHostPort(podIP, strconv.Itoa(int(probe.GRPC.Port))), service, timeout)
	}
	return Unknown, "", fmt.Errorf("missing probe handler for %s", container.Name)
}

func (p *Prober) exec(ctx context.Context, command []string, id string, timeout time.Duration) (Result, string, error) {
	output, code, err := p.Exec(ctx, id, command, timeout)
	switch {
	case errors.Is(err, cri.ErrTimeout):
		return Failure, fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(command, " "), timeout), nil
	case err != nil:
		return Unknown, "", err
	case code != 0:
		return Failure, string(output), nil
	}
	return Success, string(output), nil
}

// Port resolves a port by number or by the name that the container gives it.
func Port(port intstr.IntOrString, container *corev1.Container) (int, error) {
	number := port.IntValue()
	if port.Type == intstr.String {
		number = 0
		for _, p := range container.Ports {
			if p.Name == port.StrVal {
				number = int(p.ContainerPort)
			}
		}
		if number == 0 {
			if n, err := strconv.Atoi(port.StrVal); err == nil {
				number = n
			} else {
				return 0, fmt.Errorf("couldn't find port: %q in container: %q", port.StrVal, container.Name)
			}
		}
	}
	if number <= 0 || number > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", number)
	}
	return number, nil
}

// Request is the HTTP request of a probe or a hook.
func Request(ctx context.Context, get *corev1.HTTPGetAction, container *corev1.Container, podIP string) (*http.Request, error) {
	port, err := Port(get.Port, container)
	if err != nil {
		return nil, err
	}
	host := get.Host
	if host == "" {
		host = podIP
	}
	scheme := strings.ToLower(string(get.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	u, err := url.Parse(get.Path)
	if err != nil {
		u = &url.URL{Path: get.Path}
	}
	u.Scheme, u.Host = scheme, net.JoinHostPort(host, strconv.Itoa(port))
	if u.Path != "" && !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	for _, h := range get.HTTPHeaders {
		if strings.EqualFold(h.Name, "Host") {
			request.Host = h.Value
			continue
		}
		request.Header.Add(h.Name, h.Value)
	}
	if _, ok := request.Header["User-Agent"]; !ok {
		request.Header.Set("User-Agent", userAgent)
	}
	if _, ok := request.Header["Accept"]; !ok {
		request.Header.Set("Accept", "*/*")
	}
	return request, nil
}

// HTTPClient is a client for one request: it keeps no connection, trusts any certificate
// (a pod's own), and follows no redirect to another host.
func HTTPClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			DisableKeepAlives:  true,
			DisableCompression: true,
			TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
			//nolint:gosec // the pod's certificate has no authority that the node could know
		},
		CheckRedirect: func(request *http.Request, via []*http.Request) error {
			if request.URL.Hostname() != via[0].URL.Hostname() {
				return http.ErrUseLastResponse
			}
			if len(via) >= 10 {
				return errors.New("stopped after 10 redirects")
			}
			return nil
		},
	}
}

func httpGet(request *http.Request, timeout time.Duration) (Result, string, error) {
	client := HTTPClient(timeout)
	response, err := client.Do(request)
	if err != nil {
		return Failure, err.Error(), nil
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil {
		return Failure, "", err
	}
	switch {
	case response.StatusCode >= 300 && response.StatusCode < 400:
		return Warning, fmt.Sprintf("Probe terminated redirects, Response body: %v", string(body)), nil
	case response.StatusCode >= 200 && response.StatusCode < 300:
		return Success, string(body), nil
	}
	return Failure, fmt.Sprintf("HTTP probe failed with statuscode: %d", response.StatusCode), nil
}

func tcp(ctx context.Context, address string, timeout time.Duration) (Result, string, error) {
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return Failure, err.Error(), nil
	}
	conn.Close()
	return Success, "", nil
}

func health(ctx context.Context, address, service string, timeout time.Duration) (Result, string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent(userAgent))
	if err != nil {
		return Failure, fmt.Sprintf("error: %v", err), nil
	}
	defer conn.Close()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(metadata.NewOutgoingContext(ctx, make(metadata.MD)),
		&grpc_health_v1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
	if err != nil {
		switch status.Code(err) {
		case codes.Unimplemented:
			return Failure, fmt.Sprintf("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s",
				status.Convert(err).Message()), nil
		case codes.DeadlineExceeded:
			return Failure, fmt.Sprintf("timeout: failed to connect service %q within %v: %s", address, timeout, status.Convert(err).Message()), nil
		}
		return Failure, fmt.Sprintf("error: health rpc probe failed: %v", err), nil
	}
	if answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return Failure, fmt.Sprintf("service unhealthy (responded with %q)", answer.GetStatus().String()), nil
	}
	return Success, "service healthy", nil
}
