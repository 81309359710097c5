// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nfs implements nfs volumes. The plug-in's only state is the kernel's list of mounts.
package nfs

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// Name is the plug-in's name.
const Name = "kubernetes.io/nfs"

type plugin struct{ host *volumes.Host }

// New makes the plug-in.
func New(host *volumes.Host) volumes.Plugin { return plugin{host} }

func (p plugin) Name() string { return Name }

func (p plugin) CanSupport(spec *volumes.Spec) bool {
	source, _ := source(spec)
	return source != nil
}

// source returns the server's directory, and whether it is mounted read-only.
func source(spec *volumes.Spec) (*corev1.NFSVolumeSource, bool) {
	if spec.PersistentVolume != nil {
		return spec.PersistentVolume.Spec.NFS, spec.ReadOnly()
	}
	return spec.Volume.NFS, spec.Volume.NFS != nil && spec.Volume.NFS.ReadOnly
}

// SetUp mounts the directory of the server. A failed attempt leaves nothing. SetUp checks the list of mounts, not the directory: a server
// that is gone would not respond.
func (p plugin) SetUp(ctx context.Context, spec *volumes.Spec) error {
	source, readOnly := source(spec)
	from, err := address(source.Server, source.Path)
	if err != nil {
		return err
	}
	options := slices.Clone(spec.MountOptions())
	for _, option := range options {
		if strings.ContainsFunc(option, unicode.IsControl) {
			return fmt.Errorf("mount option %q has control characters", option)
		}
	}
	dir := p.Path(spec)
	mounts, err := p.host.Mounter.Below(filepath.Dir(dir))
	if err != nil {
		return fmt.Errorf("look for mounts: %w", err)
	}
	if slices.Contains(mounts, dir) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make volume directory: %w", err)
	}
	if readOnly {
		options = append(options, "ro")
	}
	slices.Sort(options)
	if err := p.host.Mounter.Mount(ctx, from, dir, "nfs", slices.Compact(options)); err != nil {
		_ = os.Remove(dir) // only if it is empty
		return err
	}
	return nil
}

func (p plugin) TearDown(_ context.Context, volume volumes.Reconstructed) error {
	return p.host.Remove(volume.Dir)
}

func (p plugin) Path(spec *volumes.Spec) string {
	return p.host.VolumeDir(spec.Pod.UID, Name, spec.Name())
}

// Attributes returns the measurement of claimed volumes, as for any claimed volume.
func (p plugin) Attributes(spec *volumes.Spec) volumes.Attributes {
	_, readOnly := source(spec)
	out := volumes.Attributes{ReadOnly: readOnly}
	if spec.PersistentVolume != nil {
		out.Measure = volumes.MeasureFileSystem
	}
	return out
}

// serverName matches a host name; underscores are not in the standard, but in use.
var serverName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9.])?$`)

// address returns the source for mount(8). It rejects a server or path that mount or its helpers could mistake for an option, for a list of
// servers or for another split of the two; the API server accepts any text as a server.
func address(server, path string) (string, error) {
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(server, "["), "]"))
	switch {
	case err == nil && ip.Is6() && serverZone(ip.Zone()):
		server = "[" + strings.Trim(server, "[]") + "]"
	case !serverName.MatchString(server):
		return "", fmt.Errorf("NFS server %q is not a host name or an IP address", server)
	}
	if !strings.HasPrefix(path, "/") || strings.ContainsFunc(path, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
		return "", fmt.Errorf("NFS path %q is not an absolute path without white space and control characters", path)
	}
	return server + ":" + path, nil
}

// serverZone reports whether an address has no zone, or a plain interface name as its zone.
func serverZone(zone string) bool { return zone == "" || serverName.MatchString(zone) }
