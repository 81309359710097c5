// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/devicemanager/checkpoint"
	"github.com/mortise-dev/mortise/internal/durable"
)

// keeper reads and writes the checkpoint.
type keeper struct{ *Manager }

// file is the path of the checkpoint.
func (m keeper) file() string { return filepath.Join(m.Dir, checkpoint.File) }

// read takes over what the checkpoint says. Only New calls it.
func (m keeper) read() {
	f, err := os.Open(m.file())
	if errors.Is(err, fs.ErrNotExist) {
		m.unrecorded.Store(true)
		return
	}
	var text []byte
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(f, checkpoint.MaxBytes+1))
		err = errors.Join(err, f.Close())
	}
	var entries []checkpoint.PodDevicesEntry
	var registered map[string][]string
	if err == nil {
		entries, registered, err = checkpoint.Decode(text)
	}
	if err != nil {
		m.unrecorded.Store(true)
		aside := m.file() + ".unreadable"
		m.Logger.Error("Could not read the checkpoint of devices, going on without it", "file", m.file(), "keptAs", aside,
			"err", errors.Join(err, os.Rename(m.file(), aside)))
		return
	}
	for name := range registered {
		if named(name) == nil {
			m.resources[name] = newResource(m.started)
		}
	}
	for _, e := range entries {
		if named(e.ResourceName) != nil {
			continue
		}
		response := &pluginapi.ContainerAllocateResponse{}
		if err := proto.Unmarshal(e.AllocResp, response); err != nil {
			m.Logger.Error("Could not read a plug-in's answer in the checkpoint of devices", "pod", e.PodUID, "container", e.ContainerName,
				"resource", e.ResourceName, "err", err)
			continue
		}
		uid := types.UID(e.PodUID)
		if m.pods[uid] == nil {
			m.pods[uid] = podDevices{}
		}
		a := &allocation{ids: idsOf(e.DeviceIDs), numa: e.DeviceIDs, response: response, former: true}
		m.pods[uid].set(e.ContainerName, e.ResourceName, a)
		r := m.resources[e.ResourceName]
		if r == nil {
			r = newResource(m.started)
			m.resources[e.ResourceName] = r
		}
		for _, id := range a.ids {
			r.used[id] = uid
		}
	}
}

// unsave notes that the checkpoint on disk is old, and has Run write it. The caller holds mu.
func (m keeper) unsave() {
	m.version++
	select {
	case m.unsaved <- struct{}{}:
	default:
	}
}

// saveUnsaved writes the checkpoint when it is old, until ctx ends.
func (m keeper) saveUnsaved(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.unsaved:
			if err := m.save(); err != nil {
				m.Logger.Error("Could not write the checkpoint of devices, retrying before a container gets its devices", "err", err)
			}
		}
	}
}

// write writes the checkpoint. The caller does not hold mu.
func (m keeper) write() error {
	m.mu.Lock()
	m.version++
	m.mu.Unlock()
	return m.save()
}

// save writes the checkpoint if that on disk is old. One write serves all who wait for one. The caller does not hold mu.
func (m keeper) save() error {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	version := m.version
	if version == m.saved {
		m.mu.Unlock()
		return nil
	}
	entries, registered, err := m.snapshot()
	m.mu.Unlock()
	if err != nil {
		return err
	}
	text, err := checkpoint.Encode(entries, registered)
	if err != nil {
		return err
	}
	if err := durable.Write(m.file(), 0o600, text); err != nil {
		return fmt.Errorf("write checkpoint of devices: %w", err)
	}
	m.saved = version
	return nil
}

// snapshot returns the contents of the checkpoint. The caller holds mu.
func (m keeper) snapshot() ([]checkpoint.PodDevicesEntry, map[string][]string, error) {
	var entries []checkpoint.PodDevicesEntry
	for uid, containers := range m.pods {
		for container, resources := range containers {
			for name, a := range resources {
				answer, err := proto.Marshal(a.response)
				if err != nil {
					return nil, nil, fmt.Errorf("encode answer of the device plug-in of %s: %w", name, err)
				}
				entries = append(entries, checkpoint.PodDevicesEntry{
					PodUID: string(uid), ContainerName: container, ResourceName: name, DeviceIDs: a.numa, AllocResp: answer,
				})
			}
		}
	}
	slices.SortFunc(entries, func(a, b checkpoint.PodDevicesEntry) int {
		return cmp.Or(cmp.Compare(a.PodUID, b.PodUID), cmp.Compare(a.ContainerName, b.ContainerName),
			cmp.Compare(a.ResourceName, b.ResourceName))
	})
	registered := map[string][]string{}
	for name, r := range m.resources { // with those that have expired: the Node may not show that yet
		healthy := []string{}
		for id, d := range r.devices {
			if d.healthy {
				healthy = append(healthy, id)
			}
		}
		slices.Sort(healthy)
		registered[name] = healthy
	}
	return entries, registered, nil
}
