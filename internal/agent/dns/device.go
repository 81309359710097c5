// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"github.com/mortise-dev/mortise/internal/agent/device"
)

// deviceName is the network device's that has the cluster DNS addresses on this node. Nothing is behind it.
const deviceName = "mortise-dns"

// Remove removes the device that a process that was killed has left on this machine.
func Remove() error { return device.Remove(deviceName) }
