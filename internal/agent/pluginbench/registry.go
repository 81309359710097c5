// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"context"
	"errors"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// errRefused is what a plug-in hears whose first registration the bench refuses.
var errRefused = errors.New("the bench refuses the first registration")

// door is the handler of plug-ins in plugins_registry: it lets the node's own handler take them, remembers who came, and refuses once if
// that is asked.
type door struct {
	plugins.Handler
	b *bench

	mu     sync.Mutex
	all    map[string]plugins.Plugin // by endpoint
	refuse bool                      // the next one
}

// newDoor makes the door of a kubelet that starts. refuse: it refuses the first registration.
func newDoor(b *bench, h plugins.Handler, refuse bool) *door {
	return &door{Handler: h, b: b, all: map[string]plugins.Plugin{}, refuse: refuse}
}

// Validate implements [plugins.Handler].
func (d *door) Validate(ctx context.Context, p plugins.Plugin) error {
	d.mu.Lock()
	refuse := d.refuse
	d.refuse = false
	d.mu.Unlock()
	if refuse {
		d.b.notify()
		return errRefused
	}
	return d.Handler.Validate(ctx, p)
}

// Register implements [plugins.Handler].
func (d *door) Register(ctx context.Context, p plugins.Plugin) error {
	if err := d.Handler.Register(ctx, p); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all[p.Endpoint] = p
	d.b.notify()
	return nil
}

// Deregister implements [plugins.Handler].
func (d *door) Deregister(ctx context.Context, p plugins.Plugin) {
	d.Handler.Deregister(ctx, p)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.all, p.Endpoint)
	d.b.notify()
}

// here returns the plug-in of the name that is registered; of any, if the name is empty.
func (d *door) here(name string) (plugins.Plugin, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.all {
		if name == "" || p.Name == name {
			return p, true
		}
	}
	return plugins.Plugin{}, false
}

// registry returns the settings of the plug-in manager for plug-ins of one type.
func (b *bench) registry(kind string, h plugins.Handler) plugins.Options {
	return plugins.Options{
		Dir: filepath.Join(b.Dir, "plugins_registry"), Ledger: b.ledger, Logger: b.said.logger(), Handlers: map[string]plugins.Handler{kind: h},
	}
}

// kubelet is what runs of kubelet.
type kubelet struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// startKubelet runs functions until stop is called.
func startKubelet(run ...func(ctx context.Context) error) *kubelet {
	ctx, cancel := context.WithCancel(context.Background())
	k := &kubelet{cancel: cancel}
	for _, f := range run {
		k.running.Go(func() { _ = f(ctx) }) // it ends with its context
	}
	return k
}

func (k *kubelet) stop() {
	if k != nil {
		k.cancel()
		k.running.Wait()
	}
}

// connect connects to a plug-in's socket; what does not answer is an error of the first call.
func connect(socket string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient(plugins.Target, append(more, plugins.At(socket), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"))...)
}

// restarted says of a check's result that the program had to be started again.
func restarted(f finding, restarts int, when string) finding {
	if restarts > 0 && f.result == OK {
		f.what += "; the program ended " + when + " and was started again, as its DaemonSet has to"
	}
	return f
}
