// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"errors"
	"io/fs"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// uses are the devices that pods of this process wait for or have, by pod and volume: from before the node reports a device as in use until
// its tear-down. Together with the files on the disk they decide how long the node does; the controller detaches a device afterwards.

// use notes that a pod is about to use a device.
func (p *memory) use(w wait, of device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uses[w] = of
}

// unuse notes that a pod does not use a volume any more.
func (p *memory) unuse(w wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.uses, w)
}

// unuseAll notes that a pod uses nothing any more, and returns what it used.
func (p *memory) unuseAll(pod types.UID) (used []device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w, of := range p.uses {
		if w.pod == pod {
			used = append(used, of)
			delete(p.uses, w)
		}
	}
	return used
}

// letGo has the node say that it does not use a device any more, unless a pod waits for it or has it, or it may be staged.
func (p *caller) letGo(of device) {
	if users, err := p.users(of, "", ""); err != nil || len(users) > 0 {
		return
	}
	if _, err := readData(p.deviceDir(of)); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	for _, d := range p.blockData() {
		if d.Driver == of.driver && d.Handle == of.handle {
			return
		}
	}
	// A pod that begins to use the device is noted before the node reports the device. So it does not get lost between the two.
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(values(p.uses), of) {
		p.host.Attachments.Release(of.driver, of.handle)
	}
}

func values(uses map[wait]device) (out []device) {
	for _, of := range uses {
		out = append(out, of)
	}
	return out
}

// ForgetPod drops what is in memory of a pod. Devices that it waited for in vain have nothing on the disk.
func (p *plugin) ForgetPod(pod types.UID) {
	p.memory.forgetPod(pod)
	if p.host.Attachments == nil {
		return
	}
	for _, of := range p.unuseAll(pod) {
		p.letGo(of)
	}
}
