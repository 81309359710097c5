// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"cmp"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
)

// Node are the settings of the node in this process. The zero value has Mortise's defaults.
type Node struct {
	// ConfigFile is a KubeletConfiguration of kubelet.config.k8s.io/v1beta1, as for kubelet's --config.
	ConfigFile string
	// ConfigDir has drop-ins, *.conf, that are merged over the file in the order of their names, as for kubelet's --config-dir.
	ConfigDir string
	// RootDir holds the volumes of pods, as kubelet's --root-dir. Empty: DATA-DIR/kubelet.
	RootDir string
	// NoKubeletLinks keeps a real node with another RootDir from making links to its directories below /var/lib/kubelet.
	NoKubeletLinks bool
	// NoLocalStorage keeps a real node from running the CSI driver storage.mortise.dev.
	NoLocalStorage bool
	// CSIDrivers are CSI drivers that a real node is going to have: pods that need one wait for its registration, with a condition.
	CSIDrivers []string
	// CloudProvider is empty, or "external": a cloud's controller manager initializes nodes and sets their addresses, as kubelet's
	// --cloud-provider. For a server it also means that the cloud makes load balancers and deletes nodes.
	CloudProvider string
	// PluginWait is how long a real node holds pods for a device plug-in that was there before the node or the machine restarted. 0: five
	// minutes.
	PluginWait time.Duration
	// ImageCredentialProviderConfig is the file, or the directory of files, of a CredentialProviderConfig of kubelet.config.k8s.io.
	ImageCredentialProviderConfig string
	// ImageCredentialProviderBinDir has the programs of the providers in ImageCredentialProviderConfig.
	ImageCredentialProviderBinDir string
}

// ExternalCloud is the only cloud provider.
const ExternalCloud = "external"

// Check refuses unknown cloud providers.
func (o *Node) Check() error {
	if o.CloudProvider != "" && o.CloudProvider != ExternalCloud {
		return fmt.Errorf("cloud provider %q: want %s, with the controller manager of the cloud beside the cluster", o.CloudProvider, ExternalCloud)
	}
	return nil
}

// Root returns the directory of pods' volumes on a node with this data directory.
func (o *Node) Root(dataDir string) string {
	return cmp.Or(o.RootDir, filepath.Join(dataDir, "kubelet"))
}

// AddFlags binds the settings to f, for a command without the others.
func (o *Node) AddFlags(f *pflag.FlagSet) { o.addFlags(f) }

func (o *Node) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ConfigFile, "kubelet-config", o.ConfigFile, "File of a KubeletConfiguration for a real node.")
	f.StringVar(&o.ConfigDir, "kubelet-config-dir", o.ConfigDir,
		"Directory of drop-in files (*.conf) that are merged over the KubeletConfiguration, in the order of their names.")
	f.StringVar(&o.RootDir, "root-dir", o.RootDir,
		"Directory of a real node's pod volumes. Default: DATA-DIR/kubelet. Set it to /var/lib/kubelet to take over a kubelet's pods.")
	f.BoolVar(&o.NoKubeletLinks, "no-kubelet-links", o.NoKubeletLinks,
		"A real node makes no links below /var/lib/kubelet to its own directories. Plug-ins that have these paths built in do not find it.")
	f.BoolVar(&o.NoLocalStorage, "no-local-storage", o.NoLocalStorage,
		"A real node does not run the CSI driver storage.mortise.dev, whose volumes are directories below DATA-DIR/local-storage.")
	f.StringSliceVar(&o.CSIDrivers, "csi-drivers", o.CSIDrivers,
		"CSI drivers that a real node is going to have. A pod that needs one waits until it registers, with a condition that names it.")
	f.StringVar(&o.CloudProvider, "cloud-provider", o.CloudProvider,
		"The cloud. external means that a cloud's controller manager initializes nodes, sets addresses, and makes load balancers. Default: none.")
	f.DurationVar(&o.PluginWait, "plugin-wait", cmp.Or(o.PluginWait, 5*time.Minute),
		"Time for which a real node holds pods whose device plug-in has not registered again after a restart. kubelet fails them at once.")
	f.StringVar(&o.ImageCredentialProviderConfig, "image-credential-provider-config", o.ImageCredentialProviderConfig,
		"File of a CredentialProviderConfig for a real node, or a directory of such files (*.json, *.yaml, *.yml). The node reloads it.")
	f.StringVar(&o.ImageCredentialProviderBinDir, "image-credential-provider-bin-dir", o.ImageCredentialProviderBinDir,
		"Directory of the programs of the providers in --image-credential-provider-config.")
}

// Kubelets configures the API server's connections to nodes.
type Kubelets struct {
	// CAFile has the CAs of nodes' serving certificates. Empty: the cluster's CA, and the keys that nodes publish.
	CAFile string
}

func (o *Kubelets) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.CAFile, "kubelet-certificate-authority", o.CAFile,
		"File of certificate authorities for nodes' serving certificates. Default: the cluster's own and the keys that nodes publish.")
}
