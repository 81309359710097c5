// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// dirName is the name of the plug-in's directory in a pod's directory.
var dirName = strings.ReplaceAll(Name, "/", "~")

// users returns the directories of the pods' volumes that use a device, without one. The argument volume is the name of the persistent
// volume, or empty if it is not known. A file that cannot be read is an error if it may name the device: the directory has the
// volume's name. What is damaged for one volume hinders no other.
func (p *disk) users(of device, volume, without string) ([]string, error) {
	all, err := p.podVolumes()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, dir := range all {
		if dir == without {
			continue
		}
		d, err := readData(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil && volume != "" && filepath.Base(dir) != volume {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for users of volume %s of driver %s: %s: %w", of.handle, of.driver, dir, err)
		}
		if d.Driver == of.driver && d.Handle == of.handle {
			out = append(out, dir)
		}
	}
	return out, nil
}

// podVolumes returns the directories of the volumes of all pods.
func (p *disk) podVolumes() ([]string, error) {
	pods := filepath.Join(p.host.Root, "pods")
	entries, err := os.ReadDir(pods)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var out []string
	for _, pod := range entries {
		top := filepath.Join(pods, pod.Name(), "volumes", dirName)
		names, err := os.ReadDir(top)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list volumes: %w", err)
		}
		for _, name := range names {
			out = append(out, filepath.Join(top, name.Name()))
		}
	}
	return out, nil
}

// Restore notes the volumes in use.
func (p *plugin) Restore() error {
	if p.host.Attachments == nil {
		return nil
	}
	dirs, err := p.podVolumes()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if d, err := readData(dir); err == nil && !d.ephemeral() {
			p.host.Attachments.Use(d.Driver, d.Handle)
		}
	}
	for _, of := range p.stagedDevices() {
		p.host.Attachments.Use(of.driver, of.handle)
	}
	for _, d := range p.blockData() {
		p.host.Attachments.Use(d.Driver, d.Handle)
	}
	return nil
}
