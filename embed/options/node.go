// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Node are the settings of the node that this process is. The zero value is a node of Mortise's own choices.
type Node struct {
	// ConfigFile is a KubeletConfiguration of kubelet.config.k8s.io/v1beta1, as kubelet's --config takes it.
	ConfigFile string
	// ConfigDir holds drop-ins, *.conf, that are merged over the file in the order of their names, as kubelet's --config-dir.
	ConfigDir string
}

func (o *Node) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ConfigFile, "kubelet-config", o.ConfigFile, "KubeletConfiguration `file` of the node, where it is a real one")
	f.StringVar(&o.ConfigDir, "kubelet-config-dir", o.ConfigDir, "`directory` of drop-ins (*.conf) that are merged over the KubeletConfiguration")
}
