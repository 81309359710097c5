// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
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

func TestAddressesOfSandboxes(t *testing.T) {
	c := &Client{Runtime: hostile{}}
	pod, err := c.Observe(t.Context(), "own")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.0.0.2", "fd00::1"}, pod.Sandboxes[0].IPs); diff != "" {
		t.Errorf("addresses (-want +got)\n%s", diff)
	}
}
