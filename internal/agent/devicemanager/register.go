// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// Type is the type of device plug-ins in the plug-in directory.
const Type = "DevicePlugin"

// socketName is where device plug-ins register themselves.
const socketName = "kubelet.sock"

// registrar knows the plug-ins.
type registrar struct{ *Manager }

// listen removes the sockets of the directory, as kubelet does: plug-ins see that, and register again. Then it listens.
func (m registrar) listen(ctx context.Context) (*grpc.Server, net.Listener, error) {
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read directory of device plug-ins: %w", err)
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(m.Dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("remove socket of a device plug-in: %w", err)
		}
	}
	l, err := plugins.Listen(ctx, filepath.Join(m.Dir, socketName))
	if err != nil {
		return nil, nil, fmt.Errorf("listen for device plug-ins: %w", err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, registration{m: m})
	return server, l, nil
}

// registration is the service at kubelet.sock.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	m registrar
}

// Register connects to the plug-in that asks for it.
func (r registration) Register(ctx context.Context, q *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	name, m := q.GetResourceName(), r.m
	if err := supported(q.GetVersion()); err != nil {
		return nil, m.refuse(name, err)
	}
	if err := named(name); err != nil {
		return nil, m.refuse(name, err)
	}
	if !filepath.IsLocal(q.GetEndpoint()) {
		return nil, m.refuse(name, fmt.Errorf("the endpoint %q is not in the directory of device plug-ins", q.GetEndpoint()))
	}
	m.Metrics.registrations.WithLabelValues(name).Inc()
	if err := m.add(ctx, name, filepath.Join(m.Dir, q.GetEndpoint())); err != nil {
		return nil, m.refuse(name, err)
	}
	return &pluginapi.Empty{}, nil
}

// refuse logs why a plug-in is not registered.
func (m registrar) refuse(name string, err error) error {
	m.Logger.Warn("Refused a device plug-in", "resource", name, "err", err)
	return status.Error(codes.Unknown, err.Error())
}

// supported refuses a plug-in none of whose versions the node speaks.
func supported(versions ...string) error {
	if slices.Contains(versions, pluginapi.Version) {
		return nil
	}
	// upstream's words
	return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", versions, pluginapi.SupportedVersions)
}

// named refuses what is no name of an extended resource.
func named(resource string) error {
	if allocatable.IsExtended(corev1.ResourceName(resource)) {
		return nil
	}
	return fmt.Errorf("the ResourceName %q is invalid", resource) // upstream's words
}

// Validate refuses a plug-in of the plug-in directory that cannot be registered.
func (m registrar) Validate(_ context.Context, p plugins.Plugin) error {
	if !slices.Contains(p.Versions, pluginapi.Version) {
		return fmt.Errorf("manager version, %s, is not among plugin supported versions %v", pluginapi.Version, p.Versions) // upstream's words
	}
	if err := named(p.Name); err != nil {
		return fmt.Errorf("invalid name of device plugin socket: %w", err) // upstream's words
	}
	return nil
}

// Register connects to a plug-in of the plug-in directory.
func (m registrar) Register(ctx context.Context, p plugins.Plugin) error {
	return m.add(ctx, p.Name, p.Endpoint)
}

// Deregister drops a plug-in of the plug-in directory.
func (m registrar) Deregister(_ context.Context, p plugins.Plugin) {
	m.mu.Lock()
	var gone *plugin
	if r := m.resources[p.Name]; r != nil {
		gone = r.at(p.Endpoint)
	}
	m.mu.Unlock()
	if gone != nil {
		gone.leave()
		<-gone.done
	}
}

// at returns the connected plug-in of a socket.
func (r *resource) at(socket string) *plugin {
	if i := slices.IndexFunc(r.plugins, func(p *plugin) bool { return p.socket == socket }); i >= 0 {
		return r.plugins[i]
	}
	return nil
}

// add connects to a plug-in, which takes the place of one at the same socket, and becomes the newest of its resource.
func (m registrar) add(ctx context.Context, name, socket string) error {
	m.mu.Lock()
	runs := m.connect != nil
	var before *plugin
	if r := m.resources[name]; r != nil {
		before = r.at(socket)
	}
	m.mu.Unlock()
	if !runs {
		return errNoRun
	}
	m.Ledger.Register(extension.Ref{Point: extension.DevicePlugin, Name: name}, socket)
	p := &plugin{name: name, socket: socket, m: m, since: m.Clock.Now(), done: make(chan struct{})}
	if err := p.dial(ctx); err != nil {
		return err
	}
	if err := m.know(name); err != nil {
		return errors.Join(err, p.connection.Close())
	}
	if before != nil {
		before.leave()
		<-before.done
	}
	m.mu.Lock()
	if m.connect == nil {
		m.mu.Unlock()
		return errors.Join(errNoRun, p.connection.Close())
	}
	r := m.resources[name]
	r.plugins, r.gone, r.expired = append(r.plugins, p), time.Time{}, false
	m.connect(p.follow)
	m.mu.Unlock()
	m.Logger.Info("Connected to a device plug-in", "resource", name, "socket", socket)
	m.changed()
	return nil
}

// know adds a resource, also on disk: before the Node shows it, so that a node that starts anew knows that a plug-in had it. A new resource
// takes the place of one that has expired, if there are too many.
func (m registrar) know(name string) error {
	m.mu.Lock()
	known := m.resources[name] != nil
	if !known && len(m.resources) >= maxResources {
		maps.DeleteFunc(m.resources, func(_ string, r *resource) bool { return r.expired && len(r.plugins) == 0 && len(r.used) == 0 })
		if len(m.resources) >= maxResources {
			m.mu.Unlock()
			return errMany
		}
	}
	if !known {
		m.resources[name] = newResource(m.Clock.Now())
		m.version++
	}
	m.mu.Unlock()
	return keeper(m).save() // also if a former registration could not
}
