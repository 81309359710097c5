// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// hostile is a runtime that gives everything to everyone, whatever it is asked for.
type hostile struct {
	internalapi.RuntimeService
}

func labelled(uid string) map[string]string { return map[string]string{podstate.LabelPodUID: uid} }

func (hostile) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return []*runtimeapi.Container{{Id: "c1", Labels: labelled("own")}, {Id: "c2", Labels: labelled("other")}, {Id: "c3"}}, nil
}

func (hostile) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: id}}, nil
}

func (hostile) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return []*runtimeapi.PodSandbox{{Id: "s1", Labels: labelled("own")}, {Id: "s2", Labels: labelled("other")}, {Id: "s3"}}, nil
}

func (hostile) PodSandboxStatus(_ context.Context, id string, _ bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{Id: id, Network: &runtimeapi.PodSandboxNetworkStatus{
		Ip: "10.0.0.1 evil.example.org", AdditionalIps: []*runtimeapi.PodIP{{Ip: "10.0.0.2"}, nil, {Ip: "metadata.internal"}, {Ip: "fd00::1"}},
	}}}, nil
}

func TestObserveTakesOnlyThePodsOwn(t *testing.T) {
	c := &Client{Runtime: hostile{}}
	pod, err := c.Observe(t.Context(), "own")
	if err != nil {
		t.Fatal(err)
	}
	if len(pod.Containers) != 1 || pod.Containers[0].ID != "c1" || len(pod.Sandboxes) != 1 || pod.Sandboxes[0].ID != "s1" {
		t.Errorf("the pod has %+v", pod)
	}
}

// TestAddressesOfSandboxes: a runtime that passes on what a hostile CNI plug-in has said gives a pod one address a family at most, and
// never the node's own, one of a link, or text that is no address.
func TestAddressesOfSandboxes(t *testing.T) {
	many := []string{"10.0.0.1"}
	for i := range 500 {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i/250, i%250), fmt.Sprintf("fd00::%x", i+1))
	}
	for name, c := range map[string]struct{ said, want []string }{
		"no addresses":     {[]string{"10.0.0.1 evil.example.org", "metadata.internal", "", "10.0.0.0/8", "fd00::1"}, []string{"fd00::1"}},
		"zones":            {[]string{"fe80::1%eth0", "fd00::1%eth0; drop", "fd00::2"}, []string{"fd00::2"}},
		"the node's own":   {[]string{"127.0.0.1", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1", "10.0.0.1"}, []string{"10.0.0.1"}},
		"of a link":        {[]string{"169.254.169.254", "fe80::1", "224.0.0.1", "ff02::1", "255.255.255.255"}, nil},
		"hundreds":         {many, []string{"10.0.0.1", "fd00::1"}},
		"IPv4 within IPv6": {[]string{"::ffff:10.0.0.1", "10.0.0.2"}, []string{"10.0.0.1"}},
		"another spelling": {[]string{"FD00:0::0001"}, []string{"fd00::1"}},
	} {
		status := &runtimeapi.PodSandboxNetworkStatus{Ip: c.said[0], AdditionalIps: []*runtimeapi.PodIP{nil}}
		for _, ip := range c.said[1:] {
			status.AdditionalIps = append(status.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
		}
		if diff := cmp.Diff(c.want, sandboxOf(&runtimeapi.PodSandboxStatus{Network: status}).IPs); diff != "" {
			t.Errorf("%s: addresses (-want +got)\n%s", name, diff)
		}
	}
	if pod, err := (&Client{Runtime: hostile{}}).Observe(t.Context(), "own"); err != nil ||
		!slices.Equal(pod.Sandboxes[0].IPs, []string{"10.0.0.2", "fd00::1"}) {
		t.Errorf("of a pod: %+v, %v", pod, err)
	}
}
