// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The directories of host-local's leases and of the results that CNI's library caches.
const (
	leasesDir  = "/var/lib/cni/networks"
	resultsDir = "/var/lib/cni/results"
)

// usualDevice is the name that runtimes give to a sandbox's network device.
const usualDevice = "eth0"

// attachment is a sandbox's attachment to the network, according to leases and cached results.
type attachment struct {
	container, ifname string
	netns             string
	args              string
	capabilities      map[string]any
	result            any // of the ADD; nil: not cached
	files             []string
	addresses         []string
	changed           time.Time // the newest modification time of its files
}

// kept is a result as CNI's library caches it.
type kept struct {
	Kind         string         `json:"kind"`
	Container    string         `json:"containerId"`
	Network      string         `json:"networkName"`
	Ifname       string         `json:"ifName"`
	Netns        string         `json:"netns"`
	Args         [][2]string    `json:"cniArgs"`
	Capabilities map[string]any `json:"capabilityArgs"`
	Result       any            `json:"result"`
}

// leaseOf parses a lease of host-local: the file's name is the address, its contents are the container and its device.
func leaseOf(name, text string) (container, ifname string, ok bool) {
	if _, err := netip.ParseAddr(name); err != nil {
		return "", "", false
	}
	container, ifname, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(container), strings.TrimSpace(ifname), container != ""
}

// leaseDir returns the directory of the network's leases; empty: the network does not use host-local.
func (n *network) leaseDir() string {
	for _, p := range n.plugins {
		ipam, _ := p.fields["ipam"].(map[string]any)
		if ipam["type"] != "host-local" {
			continue
		}
		if dir, _ := ipam["dataDir"].(string); dir != "" {
			return filepath.Join(dir, n.name)
		}
		return filepath.Join(leasesDir, n.name)
	}
	return ""
}

// maxAttachment is the maximum size of an attachment's file: a cached result contains the output of the plug-ins.
const maxAttachment = 4 << 20

// small reads a regular file that is no larger than maxAttachment.
func small(path string) (text string, ok bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would block
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return "", false, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxAttachment+1))
	return string(data), err == nil && len(data) <= maxAttachment, err
}

// attachments returns all attachments, sorted by container.
func (n *network) attachments(results string) ([]*attachment, error) {
	all := map[[2]string]*attachment{}
	of := func(container, ifname, file string) (*attachment, error) {
		key := [2]string{container, ifname}
		a := all[key]
		if a == nil {
			a = &attachment{container: container, ifname: ifname}
			all[key] = a
		}
		info, err := os.Stat(file)
		if err != nil {
			return nil, fmt.Errorf("look at attachment: %w", err)
		}
		if info.ModTime().After(a.changed) {
			a.changed = info.ModTime()
		}
		a.files = append(a.files, file)
		return a, nil
	}
	each := func(dir string, read func(path, name, text string) error) error {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("list attachments: %w", err)
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			text, ok, err := small(path)
			if gone(err) != nil {
				return fmt.Errorf("read attachment: %w", err)
			}
			if !ok {
				continue
			}
			if err := read(path, entry.Name(), text); gone(err) != nil {
				return err
			}
		}
		return nil
	}
	if dir := n.leaseDir(); dir != "" {
		err := each(dir, func(path, name, text string) error {
			container, ifname, ok := leaseOf(name, text)
			if !ok {
				return nil
			}
			a, err := of(container, ifname, path)
			if err == nil {
				a.addresses = append(a.addresses, name)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	err := each(results, func(path, _, text string) error {
		var k kept
		if json.Unmarshal([]byte(text), &k) != nil || k.Kind != "cniCacheV1" || k.Network != n.name {
			return nil // another network's, or of an unknown format
		}
		a, err := of(k.Container, k.Ifname, path)
		if err != nil {
			return err
		}
		a.netns, a.capabilities, a.result = k.Netns, k.Capabilities, k.Result
		var args []string
		for _, pair := range k.Args {
			args = append(args, pair[0]+"="+pair[1])
		}
		a.args = strings.Join(args, ";")
		return nil
	})
	var out []*attachment
	for _, a := range all {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *attachment) int { return strings.Compare(a.container+a.ifname, b.container+b.ifname) })
	return out, err
}

func checkAttachments(_ context.Context, e *examination) []Finding {
	if e.runtime == nil || e.network == nil {
		return []Finding{unread("attachments", errNoRuntime)}
	}
	n := e.network
	all, err := n.attachments(resultsDir)
	if err != nil {
		return []Finding{unread("attachments", err)}
	}
	var out []Finding
	valid := map[[2]string]bool{}
	for id := range e.runtime.sandboxes {
		valid[[2]string{id, usualDevice}] = true
	}
	for _, a := range all {
		if e.runtime.sandboxes[a.container] || !e.old(a.changed) || peopled(a.netns) {
			valid[[2]string{a.container, a.ifname}] = true
			continue
		}
		out = append(out, Finding{
			State: Wrong, What: fmt.Sprintf("network %s holds %s for sandbox %s, which no longer exists", n.name,
				strings.Join(append(a.addresses, a.ifname), ", "), a.container),
			Do:  "--fix releases it (CNI DEL)",
			fix: func(ctx context.Context) error { return n.del(ctx, a) },
		})
	}
	if len(out) == 0 {
		return []Finding{{State: OK, What: fmt.Sprintf("each of %d attachments of network %s has its sandbox", len(all), n.name)}}
	}
	if n.understands() {
		out = append(out, Finding{
			State: Wrong, What: fmt.Sprintf("network %s may hold addresses, unlisted, for sandboxes that no longer exist",
				n.name), Do: "--fix calls its plug-ins to release them (CNI GC)",
			fix: func(ctx context.Context) error { return n.collect(ctx, valid) },
		})
	}
	return out
}

// del detaches a sandbox, as the runtime should have: it runs DEL of each plug-in, the last one first.
func (n *network) del(ctx context.Context, a *attachment) error {
	v := verb{command: "DEL", container: a.container, ifname: a.ifname, args: a.args, capabilities: a.capabilities}
	if _, err := os.Stat(a.netns); a.netns != "" && err == nil {
		v.netns = a.netns
	}
	if a.result != nil {
		v.fields = map[string]any{"prevResult": a.result}
	}
	for _, p := range slices.Backward(n.plugins) {
		if _, err := n.call(ctx, p, v); err != nil {
			return err
		}
	}
	// The plug-ins have removed their own state; the cached results belong to the library that called them.
	for _, file := range a.files {
		if err := gone(os.Remove(file)); err != nil {
			return fmt.Errorf("remove kept result: %w", err)
		}
	}
	return nil
}

// collect runs CNI's GC: each plug-in gets the list of valid attachments.
func (n *network) collect(ctx context.Context, valid map[[2]string]bool) error {
	list := []map[string]string{}
	for a := range valid {
		list = append(list, map[string]string{"containerID": a[0], "ifname": a[1]})
	}
	for _, p := range n.plugins {
		if _, err := n.call(ctx, p, verb{command: "GC", fields: map[string]any{"cni.dev/valid-attachments": list,
			"cni.dev/attachments": list}}); err != nil {
			return err
		}
	}
	return nil
}
