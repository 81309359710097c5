// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"maps"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// held has pods be held to the bandwidth that their annotations say, by queues of the kernel.
func held(t *testing.T, n *realNode) {
	queues := func() map[uint64]string {
		t.Helper()
		links, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		out := map[uint64]string{}
		for _, l := range links {
			list, err := netlink.QdiscList(l)
			if err != nil {
				t.Fatal(err)
			}
			for _, q := range list {
				if tbf, ok := q.(*netlink.Tbf); ok {
					out[tbf.Rate] = l.Type()
				}
			}
		}
		return out
	}
	free, slow := webPod("free", nil), webPod("slow", nil)
	slow.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "16M"}
	n.create(t, free)
	n.ready(t, "free")
	if got := queues(); len(got) > 0 {
		t.Errorf("a pod without annotations has queues: %v", got)
	}
	n.create(t, slow)
	p := n.ready(t, "slow")
	// In bytes a second; what goes out passes a device of its own.
	if got, want := queues(), map[uint64]string{1_000_000: "veth", 2_000_000: "ifb"}; !maps.Equal(got, want) {
		t.Errorf("queues %v, want %v", got, want)
	}
	names, _ := n.often(t, "free", p.Status.PodIP+":8080")
	if !slices.Equal(names, []string{"slow"}) {
		t.Errorf("it answers as %v", names)
	}
}
