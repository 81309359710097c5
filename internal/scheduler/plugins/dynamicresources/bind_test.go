// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// reached is a handle with nothing but a client.
type reached struct {
	fwk.Handle
	client kubernetes.Interface
}

func (r reached) ClientSet() kubernetes.Interface { return r.client }

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAWriteUnderWayIsNotCalledOff: a pod is deleted while its claim is written. The server writes all the same, so the device stays taken.
func TestAWriteUnderWayIsNotCalledOff(t *testing.T) {
	gone := errors.New("the pod is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	var writes []string
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api",
		Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			writes = append(writes, r.Method+" "+r.URL.Path)
			cancel(gone)
			if err := r.Context().Err(); err != nil {
				return nil, err
			}
			// The server answers with what it was sent.
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": r.Header["Content-Type"]}, Body: r.Body}, nil
		})})
	if err != nil {
		t.Fatal(err)
	}
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x", UID: "x", ResourceVersion: "1"}}
	p, _ := withClaims(claim)
	p.handle = reached{client: client}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p"}}
	other := claim.DeepCopy()
	other.Name, other.UID = "z", "z"
	s := &state{claims: []*resourcev1.ResourceClaim{claim, other}, reserved: []*resourcev1.AllocationResult{
		{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{Driver: "d", Pool: "p",
			Device: "0"}}}}, {},
	}}
	cycle := profile.NewCycleState()
	cycle.Write(stateKey, s)
	if st := p.PreBind(ctx, cycle, pod, "a"); !errors.Is(st.AsError(), gone) {
		t.Errorf("PreBind: %v", st.AsError())
	}
	want := []string{"PUT /apis/resource.k8s.io/v1/namespaces/default/resourceclaims/x",
		"PUT /apis/resource.k8s.io/v1/namespaces/default/resourceclaims/x/status"}
	if !slices.Equal(writes, want) {
		t.Errorf("written are %q, want %q", writes, want)
	}
	if got := s.claims[0]; got.Status.Allocation == nil || got.Status.Allocation.AllocationTimestamp == nil ||
		len(got.Status.ReservedFor) != 1 ||
		got.Status.ReservedFor[0].UID != types.UID("p") || !slices.Contains(got.Finalizers, resourcev1.Finalizer) {
		t.Errorf("the claim is %+v", got)
	}
}
