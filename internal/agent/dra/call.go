// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/stats"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/mortise-dev/mortise/extension"
)

// callTimeout is kubelet's.
const callTimeout = 45 * time.Second

// prepareBy calls NodePrepareResources. sent reports whether the request may have reached the driver.
func (m *Manager) prepareBy(
	ctx context.Context, i *instance, request *drapb.NodePrepareResourcesRequest,
) (answer *drapb.NodePrepareResourcesResponse, sent bool, err error) {
	var flag atomic.Bool
	ctx = context.WithValue(extension.Calling(ctx, "NodePrepareResources"), sentKey{}, &flag)
	err = m.call(ctx, i, func(ctx context.Context, client drapb.DRAPluginClient) error {
		answer, err = client.NodePrepareResources(ctx, request)
		return err
	})
	return answer, flag.Load(), err
}

// unprepareBy calls NodeUnprepareResources.
func (m *Manager) unprepareBy(
	ctx context.Context, i *instance, request *drapb.NodeUnprepareResourcesRequest,
) (answer *drapb.NodeUnprepareResourcesResponse, err error) {
	err = m.call(extension.Calling(ctx, "NodeUnprepareResources"), i, func(ctx context.Context, client drapb.DRAPluginClient) error {
		answer, err = client.NodeUnprepareResources(ctx, request)
		return err
	})
	return answer, err
}

// call makes one call through the ledger. The error is the call's own.
func (m *Manager) call(ctx context.Context, i *instance, f func(context.Context, drapb.DRAPluginClient) error) error {
	client := drapb.NewDRAPluginClient(i.conn)
	if i.service == drapbv1beta1.DRAPluginService {
		client = drapbv1beta1.V1Beta1ClientWrapper{DRAPluginClient: drapbv1beta1.NewDRAPluginClient(i.conn)}
	}
	var own error
	err := m.Ledger.Call(ctx, refOf(i.driver), extension.Policy{Timeout: callTimeout}, func(ctx context.Context) error {
		own = f(ctx, client)
		return own
	})
	if own != nil {
		return own
	}
	return err
}

// sentKey is the context's key of a flag, an *atomic.Bool, which is set once a request has gone out.
type sentKey struct{}

// sentHandler sets the flag. It implements [stats.Handler].
type sentHandler struct{}

func (sentHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (sentHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sentHandler) HandleConn(context.Context, stats.ConnStats)                       {}

// HandleRPC notes the header of a request, which goes before its body.
func (sentHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); ok {
		if flag, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
			flag.Store(true)
		}
	}
}
