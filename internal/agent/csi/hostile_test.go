// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/mortise-dev/mortise/extension"
)

// immutable has the API refuse what it refuses of a CSINode: a driver that changes its name for the node, or the keys of its topology.
func immutable(client *fake.Clientset) {
	client.PrependReactor("update", "csinodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		after := action.(clienttesting.UpdateAction).GetObject().(*storagev1.CSINode)
		obj, err := client.Tracker().Get(action.GetResource(), "", after.Name)
		if err != nil {
			return true, nil, err
		}
		for _, was := range obj.(*storagev1.CSINode).Spec.Drivers {
			for _, is := range after.Spec.Drivers {
				if was.Name == is.Name && (was.NodeID != is.NodeID || !slices.Equal(was.TopologyKeys, is.TopologyKeys)) {
					return true, nil, apierrors.NewInvalid(storagev1.SchemeGroupVersion.WithKind("CSINode").GroupKind(), after.Name, nil)
				}
			}
		}
		return false, nil, nil
	})
}

// A call ends after two minutes, whatever the driver does.
func TestCallLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := newManager(t)
		m.Ledger.Register(refOf("d.example.com"), "socket")
		begun := time.Now()
		hangs := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		}
		err := m.bounded("d.example.com")(t.Context(), "/csi.v1.Node/NodeStageVolume", nil, nil, nil, hangs)
		if took := time.Since(begun); took != callTimeout || status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%v after %v", err, took)
		}
		listed := m.Ledger.Snapshot()
		if at := slices.IndexFunc(listed, func(e extension.Entry) bool { return e.Name == "d.example.com" }); at < 0 || listed[at].Failures != 1 {
			t.Errorf("the ledger has %+v", listed)
		}
	})
}

// An error message that is too long for an event, or no text at all, is made fit. Its code stays.
func TestHostileMessages(t *testing.T) {
	for _, message := range []string{strings.Repeat("ä", longestMessage), "\xff\xfe", "short"} {
		err := shortened(status.Error(codes.Aborted, message))
		text := status.Convert(err).Message()
		if len(text) > longestMessage+32 || !utf8.ValidString(text) || status.Code(err) != codes.Aborted {
			t.Errorf("%d bytes become %d: %q", len(message), len(text), text)
		}
		if message == "short" && text != message {
			t.Errorf("%q becomes %q", message, text)
		}
	}
	if err := shortened(nil); err != nil {
		t.Error(err)
	}
	plain := errors.New("no status")
	if shortened(plain) != plain {
		t.Error("changed")
	}
}

// What a driver says of the node has the specification's limits. The event names the driver, and nothing is published.
func TestHostileAnswers(t *testing.T) {
	huge := map[string]string{}
	for i := range 300 {
		huge[fmt.Sprintf("topology.example.com/%d", i)] = "value"
	}
	megabytes := map[string]string{"a": strings.Repeat("x", 5<<20)} // more than a message may have
	for name, c := range map[string]struct {
		info *csipb.NodeGetInfoResponse
		want string
	}{
		"no ID":      {&csipb.NodeGetInfoResponse{}, "driverNodeID must not be empty"},
		"a long ID":  {&csipb.NodeGetInfoResponse{NodeId: strings.Repeat("x", 257)}, "the node ID has 257 bytes, more than the 256"},
		"a topology": {&csipb.NodeGetInfoResponse{NodeId: "id", AccessibleTopology: &csipb.Topology{Segments: huge}}, "more than the 4096"},
		"a message": {
			&csipb.NodeGetInfoResponse{NodeId: "id", AccessibleTopology: &csipb.Topology{Segments: megabytes}}, "ResourceExhausted",
		},
	} {
		m, client, _ := newManager(t)
		var events []string
		m.Event = func(_ runtime.Object, _, reason, message string) { events = append(events, reason+": "+message) }
		if err := m.node.initialize(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := m.drivers.Register(t.Context(), serve(t, &answering{info: c.info}, "d.example.com")); err == nil {
			t.Errorf("%s: registered", name)
		}
		if len(events) != 1 || !strings.HasPrefix(events[0], "CSIDriverRegistrationFailed: CSI driver d.example.com at ") ||
			!strings.Contains(events[0], c.want) {
			t.Errorf("%s: events %q, want %q", name, events, c.want)
		}
		node, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil || len(node.Labels)+len(node.Annotations) > 0 {
			t.Errorf("%s: the node has %v, %v, %v", name, node.Labels, node.Annotations, err)
		}
	}
}

// A driver that hangs while it registers holds up no other.
func TestRegistrationHangs(t *testing.T) {
	m, _, _ := newManager(t)
	if err := m.node.initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	hanging := &answering{info: &csipb.NodeGetInfoResponse{NodeId: "id"}}
	hanging.mu.Lock() // its answer waits
	p := serve(t, hanging, "hangs.example.com")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.drivers.Register(ctx, p) }()
	other := serve(t, &answering{info: &csipb.NodeGetInfoResponse{NodeId: "id"}}, "works.example.com")
	if err := m.drivers.Register(t.Context(), other); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("error %v", err)
	}
	hanging.mu.Unlock()
}

// A driver that names the node otherwise than before is registered anew, also if a process of the node that was killed has left the former
// name in the CSINode, where it may not change in place.
func TestOtherNodeID(t *testing.T) {
	m, client, _ := newManager(t)
	immutable(client)
	drivers := func() []storagev1.CSINodeDriver {
		t.Helper()
		node, err := client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return node.Spec.Drivers
	}
	say := func(id string, keys ...string) *csipb.NodeGetInfoResponse {
		segments := map[string]string{}
		for _, k := range keys {
			segments[k] = "v"
		}
		return &csipb.NodeGetInfoResponse{NodeId: id, MaxVolumesPerNode: 5, AccessibleTopology: &csipb.Topology{Segments: segments}}
	}
	a := &answering{info: say("one", "zone")}
	p := serve(t, a, "d.example.com")
	if err := m.drivers.Register(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	// It says something else than when it registered: its entry stays, and the error has both.
	a.say(say("two", "zone"))
	err := m.Refresh(t.Context(), "d.example.com")
	if err == nil || !strings.Contains(err.Error(), `driver "d.example.com" says that the node is "two" with topology keys ["zone"], `+
		`and has registered it as "one" with ["zone"]`) {
		t.Errorf("error %v", err)
	}
	if all := drivers(); len(all) != 1 || all[0].NodeID != "one" {
		t.Errorf("drivers %+v", all)
	}
	// The next process of the node finds the entry.
	for _, info := range []*csipb.NodeGetInfoResponse{say("two", "zone"), say("two", "zone", "rack"), say("two", "rack")} {
		next := New(m.Options)
		t.Cleanup(next.drivers.close)
		a.say(info)
		if err := next.drivers.Register(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if all := drivers(); len(all) != 1 || all[0].NodeID != "two" ||
			!slices.Equal(all[0].TopologyKeys, slices.Sorted(maps.Keys(info.AccessibleTopology.Segments))) {
			t.Errorf("drivers %+v", all)
		}
	}
}
