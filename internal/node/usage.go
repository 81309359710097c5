// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"net"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/nodeapi"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// Usage measures the nodes of this process without their HTTP API. The zero value knows none.
type Usage struct {
	mu   sync.Mutex
	find func(node *corev1.Node) nodeapi.Node
	host func() (stats.Host, error) // nil: the node's own figures have it
}

// Measure measures a node and its running containers; a nil usage without an error: the node is not of this process.
func (u *Usage) Measure(ctx context.Context, node *corev1.Node) (*stats.Usage, error) {
	u.mu.Lock()
	find, host := u.find, u.host
	u.mu.Unlock()
	if find == nil {
		return nil, nil
	}
	n := find(node)
	if n == nil || n.Name() != node.Name {
		return nil, nil
	}
	all, err := n.Stats(ctx, stats.Options{})
	if err != nil {
		return nil, err
	}
	if host != nil {
		h, err := host()
		if err != nil {
			return nil, err
		}
		all.Host = &h
	}
	return all, nil
}

func (u *Usage) set(find func(*corev1.Node) nodeapi.Node, host func() (stats.Host, error)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.find, u.host = find, host
}

// Of makes the node measured while serve serves its API. The function host measures its machine.
func (u *Usage) Of(serve nodeapi.ServeFunc, host func() (stats.Host, error)) nodeapi.ServeFunc {
	return func(ctx context.Context, node nodeapi.Node, l net.Listener) error {
		u.set(func(*corev1.Node) nodeapi.Node { return node }, host)
		defer u.set(nil, nil)
		return serve(ctx, node, l)
	}
}

// ofMany makes nodes measured while serve serves their APIs, or, without a listener, until ctx ends. Their addresses tell them apart.
func (u *Usage) ofMany(serve nodeapi.ServeNodesFunc) nodeapi.ServeNodesFunc {
	return func(ctx context.Context, find func(net.Addr) nodeapi.Node, l net.Listener) error {
		u.set(func(n *corev1.Node) nodeapi.Node {
			for _, a := range n.Status.Addresses {
				if a.Type == corev1.NodeInternalIP {
					return find(&net.TCPAddr{IP: net.ParseIP(a.Address)})
				}
			}
			return nil
		}, nil)
		defer u.set(nil, nil)
		if l == nil {
			<-ctx.Done()
			return nil
		}
		return serve(ctx, find, l)
	}
}
