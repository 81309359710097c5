// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeparts lists the parts of a real node. It is apart from package builtin, so that a program without containers does not
// depend on them.
package nodeparts

import (
	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/configmap"
	"github.com/mortise-dev/mortise/internal/agent/volumes/csi"
	"github.com/mortise-dev/mortise/internal/agent/volumes/downwardapi"
	"github.com/mortise-dev/mortise/internal/agent/volumes/emptydir"
	"github.com/mortise-dev/mortise/internal/agent/volumes/hostpath"
	"github.com/mortise-dev/mortise/internal/agent/volumes/image"
	"github.com/mortise-dev/mortise/internal/agent/volumes/local"
	"github.com/mortise-dev/mortise/internal/agent/volumes/nfs"
	"github.com/mortise-dev/mortise/internal/agent/volumes/projected"
	"github.com/mortise-dev/mortise/internal/agent/volumes/secret"
)

// VolumePlugins are the types of volumes that a node makes. A volume is made by the first plug-in that supports it.
func VolumePlugins() []volumes.Factory {
	return []volumes.Factory{
		configmap.New,
		csi.New,
		downwardapi.New,
		emptydir.New,
		hostpath.New,
		image.New,
		local.New,
		nfs.New,
		projected.New,
		secret.New,
	}
}
