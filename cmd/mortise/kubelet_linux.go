// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strconv"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	embednode "github.com/mortise-dev/mortise/embed/node"
)

// kubeletFlags are the flags of kubelet that the program takes under kubelet's name.
type kubeletFlags struct {
	node      embednode.Kubelet
	runtime   string
	images    string
	gates     map[string]string
	verbosity int
}

func (k *kubeletFlags) parse(args []string) error {
	f := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	f.StringVar(&k.node.Kubelet.ConfigFile, "config", "", "File of a KubeletConfiguration.")
	f.StringVar(&k.node.Kubelet.ConfigDir, "config-dir", "", "Directory of drop-in files (*.conf) of the KubeletConfiguration.")
	f.StringVar(&k.node.Kubeconfig, "kubeconfig", "", "File of a kubeconfig with the API server and the node's credentials.")
	f.StringVar(&k.node.Kubelet.RootDir, "root-dir", "/var/lib/kubelet", "Directory of all state.")
	f.StringVar(&k.node.Name, "hostname-override", "", "Name of the node. Default: the host name.")
	f.StringVar(&k.node.Address, "node-ip", "", "IP address of the node, or one of each family, separated by a comma.")
	f.StringVar(&k.node.Kubelet.ImageCredentialProviderConfig, "image-credential-provider-config", "",
		"File or directory of a CredentialProviderConfig.")
	f.StringVar(&k.node.Kubelet.ImageCredentialProviderBinDir, "image-credential-provider-bin-dir", "",
		"Directory of the programs of image credential providers.")
	f.StringVar(&k.runtime, "container-runtime-endpoint", "", "Socket of the container runtime.")
	f.StringVar(&k.images, "image-service-endpoint", "", "Socket of the image service, which has to be that of the container runtime.")
	f.StringToStringVar(&k.gates, "feature-gates", nil, "Feature gates, NAME=true|false.")
	f.IntVarP(&k.verbosity, "v", "v", 0, "Verbosity of the log: from 2 on, informational messages, from 4 on, debugging messages.")
	f.String("runtime-cgroups", "", "Without effect: Mortise does not move the container runtime into a cgroup.")
	if err := f.Parse(args); err != nil {
		return err
	}
	gates := map[string]bool{}
	for name, text := range k.gates {
		on, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("--feature-gates %s=%s: want true or false", name, text)
		}
		gates[name] = on
	}
	k.node.Override = func(c *configv1beta1.KubeletConfiguration) {
		if k.runtime != "" {
			c.ContainerRuntimeEndpoint = k.runtime
		}
		if k.images != "" {
			c.ImageServiceEndpoint = k.images
		}
		if len(gates) > 0 {
			all := maps.Clone(c.FeatureGates)
			if all == nil {
				all = map[string]bool{}
			}
			maps.Copy(all, gates)
			c.FeatureGates = all
		}
	}
	return nil
}

// level returns the log level of a verbosity.
func (k *kubeletFlags) level() slog.Level {
	switch {
	case k.verbosity >= 4:
		return slog.LevelDebug
	case k.verbosity >= 2:
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// runKubelet runs the node of this machine in kubelet's place, with kubelet's flags, until ctx is done.
func runKubelet(ctx context.Context, args []string) error {
	var k kubeletFlags
	if err := k.parse(args); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	k.node.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: k.level()}))
	klog.SetSlogLogger(k.node.Logger)
	if err := k.node.Start(ctx); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- k.node.Wait() }()
	select {
	case <-ctx.Done():
		return k.node.Stop()
	case err := <-ended:
		return errors.Join(err, k.node.Stop())
	}
}
