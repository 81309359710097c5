// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package schedulertest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/internal/scheduler/devices"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// beside returns the clients, informers and claim manager for a case's objects other than nodes and pods. The informers have all objects
// once the profile exists and start was called.
func beside(t *testing.T, c *Case) (clients profile.Clients, start func()) {
	t.Helper()
	var objects []runtime.Object
	for _, data := range c.Objects {
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
		if err != nil {
			t.Fatalf("%s: decode %s: %v", c.Name, data, err)
		}
		objects = append(objects, named(t, o))
	}
	client := fake.NewClientset(objects...)
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(client, 0)
	manager, err := devices.New(ctx, factory)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
		manager.Stop()
	})
	return profile.Clients{Client: client, Informers: factory, Devices: manager}, func() {
		known, err := manager.Follow()
		if err != nil {
			t.Fatal(err)
		}
		factory.StartWithContext(ctx)
		if result := factory.WaitForCacheSyncWithContext(ctx); result.Err != nil {
			t.Fatal(result.Err)
		}
		if !cache.WaitFor(ctx, "", known...) {
			t.Fatal("the claims of devices are not known")
		}
	}
}

// named sets the fields of a scenario's object that the API would set.
func named(t *testing.T, o runtime.Object) runtime.Object {
	t.Helper()
	m, err := meta.Accessor(o)
	if err != nil {
		t.Fatal(err)
	}
	if m.GetUID() == "" {
		m.SetUID(types.UID(m.GetNamespace() + "/" + m.GetName()))
	}
	m.SetResourceVersion("1")
	return o
}

// reservations returns the devices that the pod's claims would get on a node, one line a claim.
func reservations(t *testing.T, p *profile.Profile, pod *corev1.Pod, reserve func() (undo func())) string {
	t.Helper()
	manager := p.SharedDRAManager()
	if manager == nil {
		return ""
	}
	all, err := manager.ResourceClaims().List()
	if err != nil {
		t.Fatal(err)
	}
	undo := reserve()
	defer undo()
	var lines []string
	for _, claim := range all {
		a := manager.ResourceClaims().GetPendingAllocation(claim.UID)
		if a == nil || claim.Namespace != pod.Namespace {
			continue
		}
		line := "claim " + claim.Name + ":"
		for _, r := range a.Devices.Results {
			line += fmt.Sprintf(" %s=%s/%s/%s", r.Request, r.Driver, r.Pool, r.Device)
			if len(r.ConsumedCapacity) > 0 {
				used, err := json.Marshal(r.ConsumedCapacity)
				if err != nil {
					t.Fatal(err)
				}
				line += string(used)
			}
		}
		lines = append(lines, line+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
