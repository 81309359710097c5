// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package plugins is the node's plug-in manager. A plug-in of another process (a CSI driver, a DRA driver, a device plug-in) makes a
// Unix socket in kubelet's registration directory, plugins_registry, and serves pluginregistration/v1 there. [Run] watches the directory,
// asks each socket which plug-in it is, and hands it to the [Handler] of its type.
//
//	plugins.go   handlers, settings, Run
//	scan.go      which sockets there are
//	socket.go    the life of one socket: dial, GetInfo, Validate, Register, NotifyRegistrationStatus, Deregister
//	connect.go   connections to sockets, also to those with long paths
//
// Each socket has its own goroutine: a plug-in that hangs delays no other. The directory is the only state: a new process
// registers the sockets in it.
package plugins

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
)

// Plugin is what a plug-in says of itself.
type Plugin struct {
	Type     string // CSIPlugin, DRAPlugin, DevicePlugin …
	Name     string // the CSI driver's, the resource's …
	Endpoint string // the socket where it serves its own API: the one that it registered by, unless it names another
	Versions []string
}

// Handler handles the plug-ins of one type. The manager calls it concurrently for several sockets, but never for plug-ins
// of one name.
//
// For one socket, the calls are Validate, then Register, then Deregister, each after the one before has returned, and Register only if
// Validate has succeeded. A socket that is made anew in place of another is deregistered first. Plug-ins of one name may have
// several sockets, as in a rolling update: Register tells the handler of the new endpoint, and Deregister names the endpoint that is gone.
type Handler interface {
	// Validate refuses a plug-in that cannot be registered: of a version that the node does not speak, say.
	Validate(ctx context.Context, plugin Plugin) error
	// Register takes the plug-in. Its context ends when the socket is removed. After an error, the manager tries again.
	Register(ctx context.Context, plugin Plugin) error
	// Deregister drops a plug-in that was registered. Its socket is gone, or the plug-in could not be told that it is registered.
	Deregister(ctx context.Context, plugin Plugin)
}

// Clock tells the time and makes timers.
type Clock interface {
	Now() time.Time
	After(d time.Duration) <-chan time.Time
}

// Options are the settings of Run.
type Options struct {
	Dir      string             // plugins_registry below the node's directory
	Handlers map[string]Handler // by the type of plug-in; plug-ins of other types are refused
	Ledger   *extension.Ledger  // books the calls to plug-ins; nil: none does
	Clock    Clock              // nil: the machine's
	Logger   *slog.Logger       // nil: none
}

// Run registers plug-ins until ctx ends. Then it waits for the calls of handlers that run; what is registered stays so.
func Run(ctx context.Context, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Ledger == nil {
		o.Ledger = extension.NewLedger(clock.RealClock{})
	}
	o.Dir = filepath.Clean(o.Dir)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch plug-ins: %w", err)
	}
	defer watcher.Close()
	m := &manager{Options: o, sockets: map[string]*socket{}, names: map[pluginName]*sync.Mutex{}}
	defer m.running.Wait()
	if err := m.look(ctx, watcher); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-watcher.Events:
			if e.Name != o.Dir && !strings.HasPrefix(e.Name, o.Dir+"/") {
				continue // another file beside the directory
			}
		case err := <-watcher.Errors:
			o.Logger.Warn("Lost events of the plug-in directory, reading it again", "dir", o.Dir, "err", err)
		}
		if err := m.look(ctx, watcher); err != nil {
			o.Logger.Warn("Could not read the plug-in directory, waiting for its next change", "dir", o.Dir, "err", err)
		}
	}
}

// manager knows the sockets. Only Run's goroutine uses sockets.
type manager struct {
	Options
	sockets map[string]*socket // by path
	running sync.WaitGroup

	mu    sync.Mutex
	names map[pluginName]*sync.Mutex // each is held while a handler is called
}

type pluginName struct{ kind, name string }

// errRemoved is why a socket's context ends when the socket is removed or made anew.
var errRemoved = errors.New("the socket is removed")

// look starts what serves new sockets, and ends what served those that are gone.
func (m *manager) look(ctx context.Context, watcher *fsnotify.Watcher) error {
	found, err := scan(m.Dir, watcher.Add)
	if err != nil {
		return err
	}
	for path, s := range m.sockets {
		if made, ok := found[path]; !ok || made != s.made {
			s.cancel(errRemoved)
			if !ok {
				delete(m.sockets, path)
			}
		}
	}
	for path, made := range found {
		before := m.sockets[path]
		if before != nil && before.made == made {
			continue
		}
		m.start(ctx, path, made, before)
	}
	return nil
}

// start serves a socket, after the one that it replaces is deregistered.
func (m *manager) start(ctx context.Context, path string, made identity, before *socket) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &socket{path: path, made: made, cancel: cancel, done: make(chan struct{})}
	m.sockets[path] = s
	m.running.Go(func() {
		defer close(s.done)
		defer cancel(nil)
		if before != nil {
			<-before.done
		}
		m.serve(ctx, s)
	})
}

// exclusively calls a handler while no other call for plug-ins of the name runs.
func (m *manager) exclusively(plugin Plugin, call func()) {
	m.mu.Lock()
	key := pluginName{plugin.Type, plugin.Name}
	if m.names[key] == nil {
		m.names[key] = &sync.Mutex{}
	}
	name := m.names[key]
	m.mu.Unlock()
	name.Lock()
	defer name.Unlock()
	call()
}
