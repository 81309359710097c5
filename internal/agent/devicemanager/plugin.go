// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// plugin is one that is connected.
type plugin struct {
	name, socket string
	m            registrar
	connection   *grpc.ClientConn
	client       pluginapi.DevicePluginClient
	options      *pluginapi.DevicePluginOptions
	since        time.Time     // when it registered
	left         atomic.Bool   // the node has dropped it
	done         chan struct{} // closed when follow has ended

	listed  bool              // it has sent its devices; guarded by Manager.mu
	devices map[string]device // the last list; guarded by Manager.mu
}

// leave ends follow.
func (p *plugin) leave() {
	p.left.Store(true)
	_ = p.connection.Close()
}

// dial connects to the plug-in and asks for its options.
func (p *plugin) dial(ctx context.Context) error {
	var err error
	p.connection, err = grpc.NewClient(plugins.Target, plugins.At(p.socket),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
	)
	if err != nil {
		return fmt.Errorf("dial socket %s: %w", p.socket, err)
	}
	p.client = pluginapi.NewDevicePluginClient(p.connection)
	if err = p.await(ctx); err == nil {
		err = p.call(ctx, "GetDevicePluginOptions", callTimeout, func(ctx context.Context) (err error) {
			p.options, err = p.client.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
			return err
		})
		if err != nil {
			err = fmt.Errorf("failed to get device plugin options: %w", err) // upstream's words
		}
	}
	if err != nil {
		return errors.Join(err, p.connection.Close())
	}
	return nil
}

// await waits until the connection is made.
func (p *plugin) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for {
		p.connection.Connect()
		state := p.connection.GetState()
		if state == connectivity.Ready {
			return nil
		}
		if !p.connection.WaitForStateChange(ctx, state) {
			return fmt.Errorf("dial socket %s: %w", p.socket, context.Cause(ctx))
		}
	}
}

// call makes one call to the plug-in, within the time, and books it.
func (p *plugin) call(ctx context.Context, method string, most time.Duration, f func(ctx context.Context) error) error {
	ref := extension.Ref{Point: extension.DevicePlugin, Name: p.name}
	err := p.m.Ledger.Call(extension.Calling(ctx, method), ref, extension.Policy{Timeout: most}, f)
	if err != nil {
		return fmt.Errorf("device plugin %s rpc failed with err: %w", method, err) // upstream's words
	}
	return nil
}

// follow reads the plug-in's devices until it goes, or life ends.
func (p *plugin) follow(life context.Context) {
	err := p.watch(life)
	if life.Err() != nil || p.left.Load() {
		err = nil
	}
	_ = p.connection.Close()
	p.m.remove(p, err)
	close(p.done)
}

// watch reads ListAndWatch. It paces a plug-in that reports without end.
func (p *plugin) watch(ctx context.Context) error {
	ref := extension.Ref{Point: extension.DevicePlugin, Name: p.name}
	stream, err := p.client.ListAndWatch(ctx, &pluginapi.Empty{})
	for err == nil {
		var list *pluginapi.ListAndWatchResponse
		if list, err = stream.Recv(); err != nil {
			break
		}
		begun := p.m.Clock.Now()
		p.m.list(p, list.GetDevices())
		p.m.Ledger.Book(ref, p.m.Clock.Since(begun), nil)
		if pause := time.Duration(len(list.GetDevices())) * pacePerDevice; pause >= time.Millisecond {
			select {
			case <-ctx.Done():
			case <-p.m.Clock.After(pause):
			}
		}
	}
	if ctx.Err() == nil && !p.left.Load() {
		p.m.Ledger.Book(ref, 0, fmt.Errorf("ListAndWatch: %w", err))
	}
	return err
}

// list takes over a plug-in's devices.
func (m registrar) list(p *plugin, devices []*pluginapi.Device) {
	now := make(map[string]device, len(devices))
	refused := 0
	for _, d := range devices {
		if d.GetID() == "" || len(d.GetID()) > maxDeviceID {
			refused++
			continue
		}
		var numa []int64
		for _, n := range d.GetTopology().GetNodes() {
			numa = append(numa, n.GetID())
		}
		now[d.GetID()] = device{healthy: d.GetHealth() == pluginapi.Healthy, numa: numa}
	}
	if refused > 0 {
		m.Logger.Warn("Left out devices without an ID or with one that is too long", "resource", p.name, "devices", refused, "longest", maxDeviceID)
	}
	m.mu.Lock()
	first := !p.listed
	p.listed, p.devices = true, now
	r := m.resources[p.name]
	var wake []types.UID
	if r != nil && r.newest() == p {
		wake = r.take(now)
	}
	m.mu.Unlock()
	if first {
		m.wakeWaiting()
	}
	for _, uid := range wake {
		m.Pods.Wake(uid)
	}
	m.changed()
}

// take replaces the devices. It returns the pods whose devices have another health now. The caller holds Manager.mu.
func (r *resource) take(now map[string]device) []types.UID {
	var wake []types.UID
	for id, uid := range r.used {
		if was, is := r.devices[id], now[id]; was.healthy != is.healthy && !slices.Contains(wake, uid) {
			wake = append(wake, uid)
		}
	}
	r.devices = now
	return wake
}

// remove drops a plug-in that has gone. Without another one, the resource's devices are unhealthy.
func (m registrar) remove(p *plugin, err error) {
	m.mu.Lock()
	r := m.resources[p.name]
	i := slices.Index(r.plugins, p)
	was := r.newest() == p
	r.plugins = slices.Delete(r.plugins, i, i+1)
	var wake []types.UID
	switch next := r.newest(); {
	case next == nil:
		r.gone = m.Clock.Now()
		sick := make(map[string]device, len(r.devices))
		for id, d := range r.devices {
			sick[id] = device{numa: d.numa}
		}
		wake = r.take(sick)
	case was && next.listed:
		wake = r.take(next.devices)
	}
	m.mu.Unlock()
	m.Logger.Info("A device plug-in has gone", "resource", p.name, "socket", p.socket, "err", err)
	for _, uid := range wake {
		m.Pods.Wake(uid)
	}
	m.changed()
}

// nextExpiry returns when the next plug-in that is gone has been gone for the grace period; zero: none will have.
func (m registrar) nextExpiry() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	var first time.Time
	for _, r := range m.resources {
		if r.gone.IsZero() || r.expired {
			continue
		}
		if at := r.gone.Add(gracePeriod); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// expire drops the devices of plug-ins that have been gone for the grace period.
func (m registrar) expire() {
	m.mu.Lock()
	var names []string
	for name, r := range m.resources {
		if !r.gone.IsZero() && !r.expired && m.Clock.Since(r.gone) >= gracePeriod {
			r.expired, r.devices = true, map[string]device{}
			names = append(names, name)
		}
	}
	m.mu.Unlock()
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	m.Logger.Warn("Device plug-ins have been away for too long, their devices no longer count", "resources", names, "after", gracePeriod)
	if err := keeper(m).write(); err != nil {
		m.Logger.Error("Could not write the checkpoint of devices", "err", err)
	}
}
