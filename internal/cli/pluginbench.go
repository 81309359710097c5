// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
)

// PluginBenchOptions are the flags of `mortise node plugin-bench`.
type PluginBenchOptions struct {
	Protocol string   // device-plugin, dra, csi or credential-provider
	Command  []string // the plug-in's program; nil: it runs already
	Dir      string   // kubelet's root directory; empty: a temporary one
	Usual    bool
	Name     string
	Node     string
	Wait     time.Duration
	Slow     time.Duration
	Change   string
	CDIDirs  []string
	Output   io.Writer // of the program

	CSIEndpoint, CSIVolume, CSIFSType string
	CSIAttributes, CSIPublish         map[string]string

	ProviderConfig, ProviderBinDir, Image string
	Annotations                           map[string]string
}

// PluginCheck is one check of a plug-in. Result is ok, warn, fail or skip; only fail means that the plug-in does not conform.
type PluginCheck struct {
	Check        string  `json:"check"`
	Result       string  `json:"result"`
	Milliseconds float64 `json:"milliseconds"`
	What         string  `json:"what,omitempty"`
	Kubelet      string  `json:"kubelet,omitempty"` // what kubelet says
}

// PluginCalls are the calls of a plug-in.
type PluginCalls struct {
	Plugin   string  `json:"plugin"`
	Calls    int64   `json:"calls"`
	Failures int64   `json:"failures"`
	P50      float64 `json:"p50Milliseconds"`
	P99      float64 `json:"p99Milliseconds"`
	Longest  float64 `json:"longestMilliseconds"`
}

// PluginReport is the result of a plug-in bench.
type PluginReport struct {
	Protocol string        `json:"protocol"`
	Name     string        `json:"name"`
	Checks   []PluginCheck `json:"checks"`
	Calls    []PluginCalls `json:"calls"`
}

// PluginBench drives a plug-in of the node.
type PluginBench func(ctx context.Context, o PluginBenchOptions) (*PluginReport, error)

// runPluginBench drives a plug-in of the node, and prints what conforms.
func runPluginBench(ctx context.Context, p Program, args []string) int {
	var o PluginBenchOptions
	f, protocols, output := pluginBenchFlags(p, &o)
	if code, done := parse(p, f, "node plugin-bench", args); done {
		return code
	}
	for name, chosen := range protocols {
		if *chosen && o.Protocol != "" {
			return refuse(p, "node plugin-bench", errors.New("choose one of --device-plugin, --dra, --csi and --credential-provider"))
		}
		if *chosen {
			o.Protocol = name
		}
	}
	switch {
	case o.Protocol == "":
		return refuse(p, "node plugin-bench", errors.New("choose one of --device-plugin, --dra, --csi and --credential-provider"))
	case f.NArg() > 0 && f.ArgsLenAtDash() != 0:
		return refuse(p, "node plugin-bench", fmt.Errorf("unexpected argument %q: the plug-in's program comes after --", f.Arg(0)))
	case *output != "" && *output != "json":
		return refuse(p, "node plugin-bench", fmt.Errorf("--output %q: want json", *output))
	}
	if p.PluginBench == nil {
		return fail(p, errNeedsLinux)
	}
	o.Command, o.Output = f.Args(), p.Err
	report, err := p.PluginBench(ctx, o)
	if err != nil {
		return fail(p, err)
	}
	if *output == "json" {
		err = printJSON(p.Out, report)
	} else {
		err = printPluginReport(p.Out, report)
	}
	if err != nil {
		return fail(p, fmt.Errorf("write report: %w", err))
	}
	for _, c := range report.Checks {
		if c.Result == "fail" {
			return 1
		}
	}
	return 0
}

// pluginBenchFlags binds the flags to o.
func pluginBenchFlags(p Program, o *PluginBenchOptions) (f *pflag.FlagSet, protocols map[string]*bool, output *string) {
	f = pflag.NewFlagSet("node plugin-bench", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	f.SortFlags = false
	f.SetInterspersed(false)
	protocols = map[string]*bool{
		"device-plugin":       f.Bool("device-plugin", false, "Drive a device plug-in (deviceplugin/v1beta1)."),
		"dra":                 f.Bool("dra", false, "Drive a DRA driver (dra/v1, v1beta1). The program finds an API server by its KUBECONFIG."),
		"csi":                 f.Bool("csi", false, "Drive the node part of a CSI driver."),
		"credential-provider": f.Bool("credential-provider", false, "Drive an image credential provider."),
	}
	f.StringVar(&o.Dir, "dir", "", "kubelet's root `directory` for the run. Default: a temporary one.")
	f.BoolVar(&o.Usual, "usual-path", false, "Show the directory to the program at /var/lib/kubelet, in a mount namespace of its own. Needs root.")
	f.StringVar(&o.Name, "name", "", "Name of the resource, the driver or the provider. Default: the first that comes.")
	f.StringVar(&o.Node, "node-name", "plugin-bench", "Name of the node.")
	f.DurationVar(&o.Wait, "wait", time.Minute, "How long the plug-in may take for what it does by itself, such as to register.")
	f.DurationVar(&o.Slow, "slow", time.Second, "Calls that take longer are warned of.")
	f.StringVar(&o.Change, "change-health", "", "Shell `command` that makes a device unhealthy, or well again.")
	f.StringArrayVar(&o.CDIDirs, "cdi-dir", nil, "Directory of CDI specifications. May be repeated. Default: /etc/cdi and /var/run/cdi.")
	f.StringVar(&o.CSIEndpoint, "csi-endpoint", "", "`Socket` of a CSI driver without its registrar.")
	f.StringVar(&o.CSIVolume, "csi-volume", "", "`ID` of a volume to stage and publish.")
	f.StringVar(&o.CSIFSType, "csi-fs-type", "", "File system of the volume.")
	f.StringToStringVar(&o.CSIAttributes, "csi-attributes", nil, "Attributes of the volume: volume_context.")
	f.StringToStringVar(&o.CSIPublish, "csi-publish-context", nil, "What the driver's controller has answered to attach the volume.")
	f.StringVar(&o.ProviderConfig, "image-credential-provider-config", "", "Configuration `file` of credential providers.")
	f.StringVar(&o.ProviderBinDir, "image-credential-provider-bin-dir", "", "`Directory` of the providers' programs.")
	f.StringVar(&o.Image, "image", "", "Image to ask credentials for.")
	f.StringToStringVar(&o.Annotations, "service-account-annotations", nil, "Annotations of the service account that the pod has.")
	output = f.StringP("output", "o", "", "Output format: json.")
	f.Usage = func() {
		fmt.Fprintf(f.Output(), `Usage: mortise node plugin-bench --device-plugin|--dra|--csi|--credential-provider [flags] [-- PROGRAM ARGS...]

Drives a plug-in of the node without a node: it is kubelet's side of the protocol in a directory, with no containers. It starts the
program ({dir} in ARGS is the directory), or waits for one that runs already, and reports what conforms, what kubelet says, and
timings. Exit codes: 0 if nothing fails, 1 if something does, 2 if the command line is invalid.

%s`, f.FlagUsages())
	}
	return f, protocols, output
}

func printPluginReport(w io.Writer, r *PluginReport) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CHECK\tRESULT\tTOOK\tFOUND")
	counts := map[string]int{}
	for _, c := range r.Checks {
		counts[c.Result]++
		took := "-"
		if c.Result != "skip" {
			took = fmt.Sprintf("%.1fms", c.Milliseconds)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", c.Check, c.Result, took, line(c.What, true))
		if c.Kubelet != "" {
			fmt.Fprintf(t, "\t\t\tkubelet: %s\n", line(c.Kubelet, true))
		}
	}
	fmt.Fprintln(t, "\nCALLS OF\tNUMBER\tFAILED\tP50 / P99 / LONGEST")
	for _, c := range r.Calls {
		fmt.Fprintf(t, "%s\t%d\t%d\t%.1fms / %.1fms / %.1fms\n", c.Plugin, c.Calls, c.Failures, c.P50, c.P99, c.Longest)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s %s: %d ok, %d warnings, %d failed, %d skipped\n",
		r.Protocol, r.Name, counts["ok"], counts["warn"], counts["fail"], counts["skip"])
	return err
}
