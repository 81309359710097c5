// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"encoding/json"
	"io"
)

// pluginChild is the subcommand of a device plug-in in a process of its own.
const pluginChild = "device-plugin"

// pluginOptions are what that process reads from its input. It ends when the input does.
type pluginOptions struct {
	Dir     string // of kubelet.sock
	Devices int
}

// serveApart starts a device plug-in in another process, which registers itself.
func (n *deviceNode) serveApart(ctx context.Context, devices int) error {
	c, err := startChild(context.WithoutCancel(ctx), pluginChild) // stop ends it
	if err != nil {
		return err
	}
	n.apart = c.end
	return json.NewEncoder(c.in).Encode(pluginOptions{n.dir, devices})
}

// beDevicePlugin is that process.
func beDevicePlugin(ctx context.Context, in io.Reader) error {
	read := json.NewDecoder(in)
	var o pluginOptions
	if err := read.Decode(&o); err != nil {
		return err
	}
	p := newDevicePlugin(o.Devices, 0)
	if err := p.serve(ctx, o.Dir); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, in) // until the other process closes it
	p.server.Stop()
	return err
}
