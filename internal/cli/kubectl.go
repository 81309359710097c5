// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"os"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubectl "k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"

	_ "github.com/mortise-dev/mortise/internal/cli/translations" // sets kubectl's catalogue hook, see there
)

// runKubectl runs kubectl from its own module, including plug-ins and completion. Without KUBECONFIG and --kubeconfig it reads kubectl's
// default file.
func runKubectl(_ context.Context, p Program, args []string) int {
	// kubectl's plug-in search and some of its commands read os.Args themselves.
	os.Args = append([]string{"kubectl"}, args...)
	command := cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		PluginHandler: cmd.NewDefaultPluginHandler([]string{"kubectl"}),
		Arguments:     os.Args,
		ConfigFlags:   genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50),
		IOStreams:     genericiooptions.IOStreams{In: p.In, Out: p.Out, ErrOut: p.Err},
	})
	command.SetArgs(args)
	if err := kubectl.RunNoErrOutput(command); err != nil {
		util.CheckErr(err)
	}
	return 0
}
