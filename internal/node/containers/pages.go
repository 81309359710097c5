// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/internal/version"
	"github.com/mortise-dev/mortise/internal/zpages"
)

// pages returns the content of the node API's /statusz and /flagz.
func (p *Plan) pages() *zpages.Component {
	pages := zpages.New("kubelet", version.Get())
	pages.Started = time.Now()
	flags := zpages.Flags(p.flags())
	pages.Flags = func() map[string]string { return flags }
	return pages
}

// flags returns the flags of "mortise node" with the settings in effect.
func (p *Plan) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("node", pflag.ContinueOnError)
	ranges := make([]string, len(p.PodCIDRs))
	for i, cidr := range p.PodCIDRs {
		ranges[i] = cidr.String()
	}
	for name, value := range map[string]string{
		"data-dir": p.DataDir, "node": string(p.Mode), "cri-socket": p.socket, "pod-cidr": strings.Join(ranges, ","),
	} {
		f.String(name, value, "")
	}
	settings, network := p.Settings, p.Network // bind the flags to copies
	settings.RootDir = settings.Root(p.DataDir)
	settings.AddFlags(f)
	network.AddFlags(f)
	return f
}
