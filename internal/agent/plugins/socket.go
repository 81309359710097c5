// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/backoff"
)

// kubelet's times.
const (
	dialTimeout   = 10 * time.Second
	infoTimeout   = time.Second
	notifyTimeout = 5 * time.Second

	firstRetry = 500 * time.Millisecond // doubled after each failure
	lastRetry  = 2*time.Minute + 2*time.Second
)

// socket is one that was found.
type socket struct {
	path   string
	made   identity
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when nothing is done for it any more
}

// serve registers the plug-in of a socket, again and again until that succeeds, and deregisters it when the socket is removed.
func (m *manager) serve(ctx context.Context, s *socket) {
	var failures backoff.Failures
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		plugin, err := m.register(ctx, s.path)
		if err == nil {
			m.Logger.Info("Registered a plug-in", "type", plugin.Type, "name", plugin.Name, "endpoint", plugin.Endpoint, "socket", s.path)
			<-ctx.Done()
			if removed(ctx) {
				m.deregister(ctx, plugin)
				m.Logger.Info("Deregistered a plug-in, because its socket was removed",
					"type", plugin.Type, "name", plugin.Name, "endpoint", plugin.Endpoint, "socket", s.path)
			}
			return
		}
		if ctx.Err() != nil {
			return
		}
		failures.Log(m.Clock.Now(), m.Logger.Warn, "Could not register a plug-in, retrying", "socket", s.path, "retryAfter", wait, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-m.Clock.After(wait):
		}
	}
}

// removed reports whether a socket's context has ended because the socket is gone, and not because the manager ends.
func removed(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errRemoved) }

// register makes one attempt. Where it fails, the plug-in is not registered, and has been told why if that is possible.
func (m *manager) register(ctx context.Context, path string) (Plugin, error) {
	connection, err := dial(ctx, path)
	if err != nil {
		return Plugin{}, err
	}
	defer connection.Close()
	client := registration.NewRegistrationClient(connection)
	begun := m.Clock.Now()
	plugin, err := info(ctx, client, path)
	ref := extension.Ref{Point: extension.NodePlugin, Name: cmp.Or(plugin.Name, filepath.Base(path))}
	m.Ledger.Register(ref, path)
	m.Ledger.Book(ref, m.Clock.Now().Sub(begun), err)
	if err != nil {
		return Plugin{}, err
	}
	var registered bool
	m.exclusively(plugin, func() {
		// The socket may have gone while another one of the name was registered.
		if err = context.Cause(ctx); err == nil {
			registered, err = m.handle(ctx, plugin, path)
		}
	})
	begun = m.Clock.Now()
	told := notify(ctx, client, err)
	m.Ledger.Book(ref, m.Clock.Now().Sub(begun), told)
	if told != nil {
		if registered && (ctx.Err() == nil || removed(ctx)) {
			m.deregister(ctx, plugin)
		}
		return Plugin{}, errors.Join(err, told)
	}
	return plugin, err
}

// handle has the handler of its type take a plug-in. It returns whether the handler has taken it.
func (m *manager) handle(ctx context.Context, plugin Plugin, path string) (bool, error) {
	handler, ok := m.Handlers[plugin.Type]
	if !ok {
		return false, fmt.Errorf("no handler registered for plugin type: %s at socket %s", plugin.Type, path) // upstream's words
	}
	if err := handler.Validate(ctx, plugin); err != nil {
		return false, fmt.Errorf("plugin validation failed with err: %w", err) // upstream's words
	}
	if err := handler.Register(ctx, plugin); err != nil {
		return false, fmt.Errorf("plugin registration failed with err: %w", err) // upstream's words
	}
	return true, nil
}

// deregister drops a plug-in that a handler has taken, even if ctx has ended.
func (m *manager) deregister(ctx context.Context, plugin Plugin) {
	m.exclusively(plugin, func() { m.Handlers[plugin.Type].Deregister(context.WithoutCancel(ctx), plugin) })
}

// dial connects to a socket.
func dial(ctx context.Context, path string) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	connection, err := grpc.NewClient("passthrough:///plugin",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), Dialer(path),
	)
	if err != nil {
		return nil, fmt.Errorf("dial socket %s: %w", path, err)
	}
	for {
		connection.Connect()
		state := connection.GetState()
		if state == connectivity.Ready {
			return connection, nil
		}
		if !connection.WaitForStateChange(ctx, state) {
			return nil, errors.Join(fmt.Errorf("dial socket %s: %w", path, context.Cause(ctx)), connection.Close())
		}
	}
}

// info asks a plug-in what it is.
func info(ctx context.Context, client registration.RegistrationClient, path string) (Plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	answer, err := client.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return Plugin{}, fmt.Errorf("get plug-in info at socket %s: %w", path, err)
	}
	plugin := Plugin{Type: answer.GetType(), Name: answer.GetName(), Endpoint: answer.GetEndpoint(), Versions: answer.GetSupportedVersions()}
	if plugin.Endpoint == "" {
		plugin.Endpoint = path
	}
	return plugin, nil
}

// notify tells a plug-in that it is registered, or why it is not.
func notify(ctx context.Context, client registration.RegistrationClient, refused error) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	status := &registration.RegistrationStatus{PluginRegistered: refused == nil}
	if refused != nil {
		status.Error = "RegisterPlugin error -- " + refused.Error() // upstream's words
	}
	if _, err := client.NotifyRegistrationStatus(ctx, status); err != nil {
		return fmt.Errorf("notify plug-in of its registration: %w", err)
	}
	return nil
}
