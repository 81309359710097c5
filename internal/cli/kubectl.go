// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"os"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	kubectl "k8s.io/component-base/cli"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/utils/ptr"

	_ "github.com/mortise-dev/mortise/internal/cli/translations" // sets kubectl's catalogue hook, see there
	"github.com/mortise-dev/mortise/internal/serverset"
)

// runKubectl runs kubectl from its own module, including plug-ins and completion. Without KUBECONFIG and --kubeconfig it reads kubectl's
// default file. It asks any of the servers that the kubeconfig names, see [serverset.Servers].
func runKubectl(ctx context.Context, p Program, args []string) int {
	// kubectl's plug-in search and some of its commands read os.Args themselves.
	os.Args = append([]string{"kubectl"}, args...)
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50)
	var chosen *rest.Config // a command makes several clients
	flags.WithWrapConfigFn(func(c *rest.Config) *rest.Config {
		if chosen == nil {
			chosen = rest.CopyConfig(c)
			if err := balance(ctx, flags, chosen); err != nil {
				klog.FromContext(ctx).V(1).Info("None of the cluster's other servers is used", "err", err)
			}
		}
		c.Host, c.ServerName, c.Dial = chosen.Host, chosen.ServerName, chosen.Dial
		return c
	})
	command := cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		PluginHandler: cmd.NewDefaultPluginHandler([]string{"kubectl"}),
		Arguments:     os.Args,
		ConfigFlags:   flags,
		IOStreams:     genericiooptions.IOStreams{In: p.In, Out: p.Out, ErrOut: p.Err},
	})
	command.SetArgs(args)
	if err := kubectl.RunNoErrOutput(command); err != nil {
		util.CheckErr(err)
	}
	return 0
}

// balance makes a client use all servers that the kubeconfig names, unless --server names one.
func balance(ctx context.Context, flags *genericclioptions.ConfigFlags, c *rest.Config) error {
	if ptr.Deref(flags.APIServer, "") != "" {
		return nil
	}
	file, err := flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return err
	}
	current := file.CurrentContext
	if name := ptr.Deref(flags.Context, ""); name != "" {
		current = name
	}
	name := ptr.Deref(flags.ClusterName, "")
	if in := file.Contexts[current]; in != nil && name == "" {
		name = in.Cluster
	}
	cluster := file.Clusters[name]
	if cluster == nil {
		return nil
	}
	servers, err := serverset.Of(cluster)
	if err != nil {
		return err
	}
	return servers.Balance(ctx, c)
}
