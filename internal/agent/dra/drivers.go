// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// The gRPC services that the node speaks, the newest first.
var (
	services       = []string{drapb.DRAPluginService, drapbv1beta1.DRAPluginService}
	healthServices = []string{drahealthv1.DRAResourceHealthService, drahealthv1alpha1.DRAResourceHealthService}
)

// drivers are the drivers that have registered. A driver may have several instances, as in a rolling update. It implements
// [plugins.Handler].
type drivers struct {
	m          *Manager
	registered chan struct{} // has a value after a registration
	running    sync.WaitGroup

	mu  sync.Mutex
	all map[string][]*instance // by driver, in the order of registration
}

// instance is one socket of a driver.
type instance struct {
	driver, endpoint string
	service          string // for claims
	healthService    string // empty: none
	conn             *grpc.ClientConn
	cancel           context.CancelFunc
	done             sync.WaitGroup

	connected bool // guarded by drivers.mu
}

func newDrivers(m *Manager) *drivers {
	return &drivers{m: m, registered: make(chan struct{}, 1), all: map[string][]*instance{}}
}

// Validate implements [plugins.Handler].
func (d *drivers) Validate(_ context.Context, p plugins.Plugin) error {
	_, err := serviceOf(p)
	return err
}

// serviceOf returns the service to call: the first of the driver's that the node speaks. The messages are upstream's.
func serviceOf(p plugins.Plugin) (string, error) {
	i := slices.IndexFunc(p.Versions, func(v string) bool { return slices.Contains(services, v) })
	if i >= 0 {
		return p.Versions[i], nil
	}
	err := fmt.Errorf("none of services supported by the plugin (%q) are supported by the kubelet (%q)", p.Versions, services)
	if len(p.Versions) == 0 {
		err = errors.New("empty list of supported gRPC services (aka supported versions)")
	}
	return "", fmt.Errorf("invalid supported gRPC versions of DRA driver plugin %s at endpoint %s: %w", p.Name, p.Endpoint, err)
}

// Register implements [plugins.Handler]. It connects in the background.
func (d *drivers) Register(ctx context.Context, p plugins.Plugin) error {
	service, err := serviceOf(p)
	if err != nil {
		return err
	}
	i := &instance{driver: p.Name, endpoint: p.Endpoint, service: service}
	for _, h := range healthServices {
		if i.healthService == "" && slices.Contains(p.Versions, h) && !d.m.NoHealth {
			i.healthService = h
		}
	}
	if i.conn, err = grpc.NewClient("unix:"+p.Endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()), plugins.Dialer(p.Endpoint),
		grpc.WithChainUnaryInterceptor(d.m.Metrics.interceptor(p.Name)),
		grpc.WithStatsHandler(sentHandler{}),
	); err != nil {
		// upstream's words
		return fmt.Errorf("create gRPC connection to DRA driver %s plugin at endpoint %s: %w", p.Name, p.Endpoint, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.ContainsFunc(d.all[p.Name], func(o *instance) bool { return o.endpoint == p.Endpoint }) {
		err := fmt.Errorf("endpoint %s already registered for DRA driver plugin %s", p.Endpoint, p.Name) // upstream's words
		return errors.Join(err, i.conn.Close())
	}
	d.all[p.Name] = append(d.all[p.Name], i)
	d.m.Ledger.Register(refOf(p.Name), p.Endpoint)
	ctx, i.cancel = context.WithCancel(ctx)
	d.follow(i, func() { d.connect(ctx, i) })
	if i.healthService != "" {
		d.follow(i, func() { d.m.followHealth(ctx, i) })
	}
	d.m.wiper.changed(p.Name)
	select {
	case d.registered <- struct{}{}:
	default:
	}
	return nil
}

func refOf(driver string) extension.Ref {
	return extension.Ref{Point: extension.ResourceDriver, Name: driver}
}

// follow runs what ends with the instance.
func (d *drivers) follow(i *instance, run func()) {
	i.done.Add(1)
	d.running.Go(func() {
		defer i.done.Done()
		run()
	})
}

// Deregister implements [plugins.Handler].
func (d *drivers) Deregister(_ context.Context, p plugins.Plugin) {
	d.mu.Lock()
	at := slices.IndexFunc(d.all[p.Name], func(i *instance) bool { return i.endpoint == p.Endpoint })
	if at < 0 {
		d.mu.Unlock()
		return
	}
	i := d.all[p.Name][at]
	if d.all[p.Name] = slices.Delete(d.all[p.Name], at, at+1); len(d.all[p.Name]) == 0 {
		delete(d.all, p.Name)
		d.m.Ledger.Unregister(refOf(p.Name))
	}
	d.mu.Unlock()
	i.cancel()
	if err := i.conn.Close(); err != nil {
		d.m.Logger.Warn("Could not close the connection to a DRA driver", "driver", p.Name, "endpoint", p.Endpoint, "err", err)
	}
	i.done.Wait()
	d.m.wiper.changed(p.Name)
}

// connect keeps the connection up, with gRPC's back-off, and notes whether it is, until ctx is done.
func (d *drivers) connect(ctx context.Context, i *instance) {
	for {
		state := i.conn.GetState()
		if state == connectivity.Idle {
			i.conn.Connect()
		}
		d.mu.Lock()
		changed := i.connected != (state == connectivity.Ready)
		i.connected = state == connectivity.Ready
		d.mu.Unlock()
		if changed {
			d.m.Logger.Info("The connection to a DRA driver has changed", "driver", i.driver, "endpoint", i.endpoint, "state", state)
			d.m.wiper.changed(i.driver)
		}
		if !i.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// get returns the newest instance that is connected, else the newest one. The messages are upstream's.
func (d *drivers) get(driver string) (*instance, error) {
	if driver == "" {
		return nil, errors.New("DRA driver name is empty")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.all[driver]
	if len(list) == 0 {
		return nil, fmt.Errorf("DRA driver %s is not registered", driver)
	}
	for _, i := range slices.Backward(list) {
		if i.connected {
			return i, nil
		}
	}
	return list[len(list)-1], nil
}

// usable reports whether an instance of the driver is connected.
func (d *drivers) usable(driver string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.all[driver], func(i *instance) bool { return i.connected })
}

// wait closes the connections, and waits for what follows them.
func (d *drivers) wait() {
	d.mu.Lock()
	for _, list := range d.all {
		for _, i := range list {
			i.cancel()
			_ = i.conn.Close() // nothing is lost
		}
	}
	d.mu.Unlock()
	d.running.Wait()
}
