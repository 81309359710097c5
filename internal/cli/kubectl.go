// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

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

// kubectlName is the name under which the program is kubectl.
const kubectlName = "kubectl"

// Arguments returns the arguments for [Main] of a process's command line: a program whose file is named kubectl is `mortise kubectl`.
func Arguments(commandLine []string) []string {
	if len(commandLine) == 0 {
		return nil
	}
	if strings.TrimSuffix(filepath.Base(commandLine[0]), ".exe") == kubectlName {
		return append([]string{kubectlName}, commandLine[1:]...)
	}
	return commandLine[1:]
}

// runKubectl runs kubectl from its own module, including plug-ins and completion. Without KUBECONFIG and --kubeconfig it reads kubectl's
// default file. It asks any of the servers that the kubeconfig names, see [serverset.Servers].
func runKubectl(ctx context.Context, p Program, args []string) int {
	// kubectl's plug-in search and some of its commands read os.Args themselves.
	os.Args = append([]string{kubectlName}, args...)
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
		PluginHandler: plugins{cmd.NewDefaultPluginHandler([]string{kubectlName}), p.Err},
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

// kubectlPath is the environment variable in which kubectl tells a plug-in its own file.
const kubectlPath = "KUBECTL_PATH"

// plugins runs kubectl's plug-ins. They call back the file that kubectlPath names, with kubectl's arguments: it is this program under the
// name kubectl.
type plugins struct {
	cmd.PluginHandler
	err io.Writer
}

// Execute implements [cmd.PluginHandler].
func (h plugins) Execute(executable string, args, environment []string) error {
	named, err := namedKubectl()
	if err != nil {
		fmt.Fprintf(h.err, "mortise: $%s is not kubectl, but mortise, for this plug-in: %v; set XDG_CACHE_HOME to a directory that can be written\n",
			kubectlPath, err)
		return h.PluginHandler.Execute(executable, args, environment)
	}
	environment = slices.DeleteFunc(environment, func(e string) bool { return strings.HasPrefix(e, kubectlPath+"=") })
	return h.PluginHandler.Execute(executable, args, append(environment, kubectlPath+"="+named))
}

// namedKubectl returns a link to this program with the name kubectl, in the user's directory of caches. Each program has a link of its own,
// which is made at the first call and stays: a plug-in that takes the place of this process cannot remove it.
func namedKubectl() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find own file: %w", err)
	}
	caches, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find directory of caches: %w", err)
	}
	sum := sha256.Sum256([]byte(self))
	link := filepath.Join(caches, "mortise", fmt.Sprintf("kubectl-%x", sum[:6]), linkName(self))
	if to, err := os.Stat(link); err == nil {
		if own, err := os.Stat(self); err == nil && os.SameFile(own, to) {
			return link, nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
		return "", fmt.Errorf("make directory of the link: %w", err)
	}
	// Another call may make the same link now.
	made := fmt.Sprintf("%s.%d", link, os.Getpid())
	if err := errors.Join(remove(made), connect(self, made), os.Rename(made, link)); err != nil {
		return "", fmt.Errorf("link own file: %w", err)
	}
	return link, nil
}

// linkName returns the name of the link to a program. The program's own name may have dots, as in mortise-0.1.
func linkName(program string) string {
	if filepath.Ext(program) == ".exe" {
		return kubectlName + ".exe"
	}
	return kubectlName
}

// remove removes a file, if there is one.
func remove(file string) error {
	if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// connect makes a link: a hard one where a symbolic link needs rights that the user lacks, as on Windows.
func connect(file, link string) error {
	symbolic := os.Symlink(file, link)
	if symbolic == nil {
		return nil
	}
	if os.Link(file, link) == nil {
		return nil
	}
	return symbolic
}
