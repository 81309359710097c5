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
	"sync"
	"unicode/utf8"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// toldSize bounds the registrations that are not told yet. There is seldom more than one driver that registers.
const toldSize = 64

// longestMessage is the maximum size of a driver's error message in bytes. Events and the status of claims show it.
const longestMessage = 1024

// drivers are the drivers that have registered. It implements [plugins.Handler].
type drivers struct {
	m    *Manager
	told chan telling

	mu      sync.Mutex
	all     map[string]*driver
	waiting map[string]map[types.UID]bool // pods, by the driver that they need
}

// driver is a registered driver.
type driver struct {
	endpoint string
	version  *version.Version
	conn     *grpc.ClientConn
}

func newDrivers(m *Manager) *drivers {
	return &drivers{
		m: m, told: make(chan telling, toldSize), all: map[string]*driver{}, waiting: map[string]map[types.UID]bool{},
	}
}

func refOf(driver string) extension.Ref {
	return extension.Ref{Point: extension.StorageDriver, Name: driver}
}

// Validate implements [plugins.Handler].
func (d *drivers) Validate(_ context.Context, p plugins.Plugin) error {
	if _, err := d.check("ValidatePlugin", p); err != nil {
		return fmt.Errorf("validation failed for CSI Driver %s at endpoint %s: %w", p.Name, p.Endpoint, err) // upstream's words
	}
	return nil
}

// check returns the highest version of a driver. It refuses a driver whose name has a driver of the same version or a higher one. The
// messages are upstream's.
func (d *drivers) check(caller string, p plugins.Plugin) (*version.Version, error) {
	if len(p.Versions) == 0 {
		return nil, fmt.Errorf("kubernetes.io/csi: %s for CSI driver %q failed. Plugin returned an empty list for supported versions",
			caller, p.Name)
	}
	claimed, err := version.HighestSupportedVersion(p.Versions)
	if err != nil {
		return nil, fmt.Errorf("kubernetes.io/csi: %s for CSI driver %q failed. None of the versions specified %q are supported. err=%w",
			caller, p.Name, p.Versions, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if there := d.all[p.Name]; there != nil && !there.version.LessThan(claimed) {
		return nil, fmt.Errorf("kubernetes.io/csi: %s for CSI driver %q failed. "+
			"Another driver with the same name is already registered with a higher supported version: %q", caller, p.Name, there.version)
	}
	return claimed, nil
}

// Register implements [plugins.Handler]. The driver counts once the API server has what it says of the node.
func (d *drivers) Register(ctx context.Context, p plugins.Plugin) error {
	claimed, err := d.check("RegisterPlugin", p)
	if err != nil {
		return err
	}
	made := &driver{endpoint: p.Endpoint, version: claimed}
	if made.conn, err = grpc.NewClient(plugins.Target, plugins.At(p.Endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithChainUnaryInterceptor(d.m.bounded(p.Name), d.m.Metrics.interceptor(p.Name),
			paths{d.m.RootDir, d.m.UsualDir}.translate(p.Endpoint)),
	); err != nil {
		return fmt.Errorf("connect to CSI driver %s at %s: %w", p.Name, p.Endpoint, err)
	}
	d.m.Ledger.Register(refOf(p.Name), p.Endpoint)
	err = d.m.node.publish(ctx, p.Name, csipb.NewNodeClient(made.conn))
	if err != nil {
		d.m.Ledger.Unregister(refOf(p.Name))
		if d.m.Event != nil && ctx.Err() == nil {
			d.m.Event(d.m.nodeReference(), corev1.EventTypeWarning, "CSIDriverRegistrationFailed",
				fmt.Sprintf("CSI driver %s at %s could not be registered: %v", p.Name, p.Endpoint, err))
		}
		return errors.Join(err, made.conn.Close())
	}
	d.mu.Lock()
	before := d.all[p.Name]
	d.all[p.Name] = made
	d.mu.Unlock()
	if before != nil {
		_ = before.conn.Close() // its calls end as if it had gone
	}
	d.m.updaters.restart(p.Name)
	select {
	case d.told <- telling{driver: p.Name}:
	case <-ctx.Done():
	}
	return nil
}

// Deregister implements [plugins.Handler].
func (d *drivers) Deregister(ctx context.Context, p plugins.Plugin) {
	d.mu.Lock()
	gone := d.all[p.Name]
	if gone == nil || gone.endpoint != p.Endpoint {
		d.mu.Unlock()
		return
	}
	delete(d.all, p.Name)
	d.mu.Unlock()
	_ = gone.conn.Close() // nothing is lost
	d.m.Ledger.Unregister(refOf(p.Name))
	d.m.updaters.restart(p.Name)
	if err := d.m.node.remove(ctx, p.Name); err != nil {
		d.m.Logger.Warn("Could not remove a CSI driver from the CSINode", "driver", p.Name, "err", err)
	}
}

// get returns a registered driver, or nil.
func (d *drivers) get(name string) *driver {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[name]
}

// close closes the connections.
func (d *drivers) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.all {
		_ = one.conn.Close() // nothing is lost
	}
}

// Node returns the node service of a driver. Each call has two minutes at the most. The error is upstream's.
func (m *Manager) Node(name string) (csipb.NodeClient, error) {
	if name == "" {
		return nil, errors.New("driver name is empty")
	}
	if d := m.drivers.get(name); d != nil {
		return csipb.NewNodeClient(d.conn), nil
	}
	return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
}

// WakeAtRegistration has the pod woken when the driver registers.
func (m *Manager) WakeAtRegistration(name string, pod types.UID) {
	m.drivers.mu.Lock()
	defer m.drivers.mu.Unlock()
	if m.drivers.waiting[name] == nil {
		m.drivers.waiting[name] = map[types.UID]bool{}
	}
	m.drivers.waiting[name][pod] = true
}

// wakeWaiting wakes the pods that wait for a driver.
func (m *Manager) wakeWaiting(name string) {
	m.drivers.mu.Lock()
	pods := slices.Collect(maps.Keys(m.drivers.waiting[name]))
	delete(m.drivers.waiting, name)
	m.drivers.mu.Unlock()
	m.Pods.WakeEach(pods)
}

// bounded returns an interceptor that limits each call, and enters it in the ledger.
func (m *Manager) bounded(driver string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, in, out any, conn *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption) error {
		var own error
		name := method[strings.LastIndex(method, "/")+1:]
		ctx = extension.Coded(extension.Calling(ctx, name))
		err := m.Ledger.Call(ctx, refOf(driver), extension.Policy{Timeout: callTimeout}, func(ctx context.Context) error {
			own = shortened(call(ctx, method, in, out, conn, o...))
			if own != nil {
				return &callError{name, own}
			}
			return nil
		})
		if own != nil {
			return own
		}
		return err
	}
}

// shortened returns a driver's error with a message that events can show: not longer than longestMessage, and valid UTF-8.
func shortened(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok || len(s.Message()) <= longestMessage && utf8.ValidString(s.Message()) {
		return err
	}
	text := s.Message()
	if len(text) > longestMessage {
		text = text[:longestMessage] + fmt.Sprintf("… (%d bytes)", len(text))
	}
	return status.Error(s.Code(), strings.ToValidUTF8(text, "\uFFFD"))
}

// callError is an error of a call, for the ledger.
type callError struct {
	method string
	err    error
}

// Error names the call.
func (e *callError) Error() string { return e.method + ": " + e.err.Error() }

// Unwrap returns the call's error.
func (e *callError) Unwrap() error { return e.err }

// Code implements [extension.Coder].
func (e *callError) Code() string { return status.Code(e.err).String() }
