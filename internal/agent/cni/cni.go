// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package cni configures a pod network if none is configured: it writes a conflist for the container runtime, with a bridge, addresses from
// the node's range, and host ports.
//
// It never changes a configuration of others, and its own only when the node's range changes.
package cni

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mortise-dev/mortise/internal/durable"
)

// FileName is the name of our configuration. How it sorts among others does not matter, because it exists only alone.
const FileName = "10-mortise.conflist"

// DefaultDir is the default configuration directory of runtimes.
const DefaultDir = "/etc/cni/net.d"

// network is the name of our network.
const network = "mortise"

// DefaultBridge is the bridge device of the pods.
const DefaultBridge = "mortise0"

// Options configure the network.
type Options struct {
	Dir      string // of CNI configurations
	BinDirs  []string
	PodCIDRs []string // one for each family
	// DataDir is the directory of host-local's leases; empty: /var/lib/cni/networks.
	DataDir string
	Bridge  string // DefaultBridge if empty
	MTU     int
	// Masquerade makes the plug-in masquerade all traffic that leaves the node's own range, including traffic to pods of other nodes.
	Masquerade bool
	// Bandwidth enables the plug-in bandwidth, which applies the limits in pods' annotations. Install sets it if the plug-in exists.
	Bandwidth bool
	// Again makes Install write an existing configuration once more, for a runtime that watches the directory.
	Again bool
}

// has reports whether a plug-in exists.
func (o Options) has(plugin string) bool {
	return slices.ContainsFunc(o.BinDirs, func(dir string) bool { return executable(filepath.Join(dir, plugin)) })
}

// plugins are the plug-ins that our configuration requires.
var plugins = []string{"bridge", "host-local", "portmap", "loopback"}

// Install writes the configuration if there is no other. It returns the path of the configuration in effect, and whether it is ours.
func Install(o Options) (path string, ours bool, err error) {
	if _, err := os.ReadDir(o.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", false, fmt.Errorf("read CNI directory: %w", err)
	}
	if path := Other(o.Dir); path != "" {
		return path, false, nil
	}
	for _, plugin := range plugins {
		if !o.has(plugin) {
			return "", false, fmt.Errorf("CNI plug-in %q is not in %s", plugin, strings.Join(o.BinDirs, ", "))
		}
	}
	o.Bandwidth = o.has("bandwidth")
	text, err := Conflist(o)
	if err != nil {
		return "", false, err
	}
	path = filepath.Join(o.Dir, FileName)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) && !o.Again {
		return path, true, nil
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return "", false, fmt.Errorf("make CNI directory: %w", err)
	}
	// The runtime watches the directory: it must never see a partial file.
	if err := durable.Write(path, 0o644, text); err != nil {
		return "", false, fmt.Errorf("write CNI configuration: %w", err)
	}
	return path, true, nil
}

// Remove removes our configuration from a directory. The runtime has no network then, unless another configuration exists.
func Remove(dir string) error {
	if err := os.Remove(filepath.Join(dir, FileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove CNI configuration: %w", err)
	}
	return nil
}

// leasesDir is host-local's usual directory of leases.
const leasesDir = "/var/lib/cni/networks"

// RemoveLeases removes what host-local keeps of our network once no pod has an address: its lock, and the address that it gave last.
func RemoveLeases() error { return removeLeases(leasesDir) }

func removeLeases(networks string) error {
	dir := filepath.Join(networks, network)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list leases of the pod network: %w", err)
	}
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err == nil {
			return nil // a pod has it
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove leases of the pod network: %w", err)
	}
	return nil
}

// Other returns the path of a configuration of others in a directory; empty: there is none.
func Other(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if name := e.Name(); name != FileName && slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(name)) {
			return filepath.Join(dir, name)
		}
	}
	return ""
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// Conflist returns the text of the configuration.
func Conflist(o Options) ([]byte, error) {
	type object = map[string]any
	var ranges []any
	var routes []any
	for _, cidr := range o.PodCIDRs {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("read pod CIDR: %w", err)
		}
		ranges = append(ranges, []any{object{"subnet": prefix.Masked().String()}})
		if prefix.Addr().Is6() {
			routes = append(routes, object{"dst": "::/0"})
		} else {
			routes = append(routes, object{"dst": "0.0.0.0/0"})
		}
	}
	if len(ranges) == 0 {
		return nil, errors.New("no pod CIDR for the CNI configuration")
	}
	ipam := object{"type": "host-local", "ranges": ranges, "routes": routes}
	if o.DataDir != "" {
		ipam["dataDir"] = o.DataDir
	}
	bridge := object{
		"type": "bridge", "bridge": cmp.Or(o.Bridge, DefaultBridge), "isGateway": true, "ipMasq": o.Masquerade,
		// The bridge outlives its range.
		"forceAddress": true,
		"hairpinMode":  true, "promiscMode": false, "ipam": ipam,
	}
	if o.MTU > 0 {
		bridge["mtu"] = o.MTU
	}
	plugins := []any{bridge, object{"type": "portmap", "capabilities": object{"portMappings": true}}}
	if o.Bandwidth {
		plugins = append(plugins, object{"type": "bandwidth", "capabilities": object{"bandwidth": true}})
	}
	text, err := json.MarshalIndent(object{"cniVersion": "0.4.0", "name": network, "plugins": plugins}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode CNI configuration: %w", err)
	}
	return append(text, '\n'), nil
}
