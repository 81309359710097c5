// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mortise-dev/mortise/extension"
)

// runExtensions prints the extensions of a running server and their statistics, or the catalogue of extension points.
func runExtensions(ctx context.Context, p Program, args []string) int {
	f := pflag.NewFlagSet("extensions", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	kubeconfig := f.String("kubeconfig", "", "File of the server's kubeconfig. Default: $KUBECONFIG, then ~/.kube/config.")
	node := f.String("node", "", "Name of a node that is not in the server's process: its plug-ins, in place of the server's extensions.")
	output := f.StringP("output", "o", "", "Output format: json or wide.")
	f.Usage = func() {
		fmt.Fprintf(f.Output(), `Usage: mortise extensions [points] [flags]

Lists the extensions of a running server: extension point, name, configuration, state, number of calls, their duration (median and
99th percentile of recent calls), and the last error. -o wide adds failures, calls that the circuit breaker prevented, and when the
certificate expires. Objects that wait for initializers follow. "points" lists the extension points with their contracts; it needs no
server. --node lists the plug-ins of a node that is not in the server's process.

%s`, f.FlagUsages())
	}
	if code, done := parse(p, f, "extensions", args); done {
		return code
	}
	catalogue := f.NArg() == 1 && f.Arg(0) == "points"
	if f.NArg() > 0 && !catalogue || *output != "" && *output != "json" && *output != "wide" {
		f.Usage()
		return 2
	}
	var err error
	if catalogue {
		err = printPoints(p.Out, *output)
	} else {
		err = printExtensions(ctx, p.Out, *kubeconfig, *node, *output)
	}
	if err != nil {
		return fail(p, err)
	}
	return 0
}

func printPoints(w io.Writer, output string) error {
	points := extension.Points()
	if output == "json" {
		return printJSON(w, points)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "POINT\tWAY\tCONTRACT\tCONFIGURED BY")
	if output == "wide" {
		fmt.Fprint(t, "\tDOCUMENTED")
	}
	fmt.Fprintln(t)
	for _, d := range points {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s", d.Point, d.Way, d.Contract, d.Configured)
		if output == "wide" {
			fmt.Fprintf(t, "\t%s", d.Documented)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

func printExtensions(ctx context.Context, w io.Writer, kubeconfig, node, output string) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.Timeout = 30 * time.Second
	rows, err := askExtensions(ctx, config, node)
	if err != nil {
		return err
	}
	if output == "json" {
		return printJSON(w, rows)
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, "No extensions are configured. `mortise extensions points` lists the extension points.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	wide := output == "wide"
	fmt.Fprint(t, "POINT\tNAME\tCONFIGURED\tSTATE\tCALLS\tP50\tP99")
	if wide {
		fmt.Fprint(t, "\tFAILED\tREFUSED\tCERTIFICATE ENDS\tLAST FAILURE")
	}
	fmt.Fprintln(t, "\tLAST ERROR")
	for _, e := range rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s", e.Point, e.Name, cmp.Or(e.Configured, "-"), e.State, e.Calls, short(e.P50), short(e.P99))
		if wide {
			fmt.Fprintf(t, "\t%d\t%d\t%s\t%s", e.Failures, e.Refused, cmp.Or(e.CertificateEnds, "-"), cmp.Or(e.LastFailure, "-"))
		}
		fmt.Fprintf(t, "\t%s\n", cmp.Or(line(e.LastError, wide), "-"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return printWaiting(w, rows, wide)
}

// askExtensions returns the extensions of the server, or those of a node that is not in its process.
func askExtensions(ctx context.Context, config *rest.Config, node string) ([]extension.Row, error) {
	if node != "" {
		there, err := onNode(ctx, config, node, nil)
		if err == nil && there == nil {
			return nil, fmt.Errorf("node %s is not there, is in the server's process, or is not one of Mortise", node)
		}
		if err != nil {
			return nil, err
		}
		return there.Extensions, nil
	}
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	body, err := client.Get().AbsPath("/debug/extensions").Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("get extensions: %w", err)
	}
	var view extension.View
	if err := json.Unmarshal(body, &view); err != nil {
		return nil, fmt.Errorf("read extensions: %w", err)
	}
	return view.Extensions, nil
}

// mostWaiting is the maximum number of waiting objects that a narrow table shows for one extension.
const mostWaiting = 5

// printWaiting prints the objects that wait for extensions which have their own control loops, and for how long.
func printWaiting(w io.Writer, rows []extension.Row, wide bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	headed := false
	for _, e := range rows {
		for i, o := range e.Waiting {
			if !headed {
				fmt.Fprintln(t, "\nOBJECT\tWAITS FOR\tSINCE\tUNTIL")
				headed = true
			}
			if i == mostWaiting && !wide {
				fmt.Fprintf(t, "%d more\t%s\t\t\n", e.Waits-i, e.Name)
				break
			}
			now := time.Now()
			fmt.Fprintf(t, "%s\t%s\t%s ago\tin %s\n", o.Object, e.Name, duration.HumanDuration(now.Sub(o.Since)),
				duration.HumanDuration(max(o.Until.Sub(now), 0)))
		}
	}
	return t.Flush()
}

func printJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode extensions: %w", err)
	}
	_, err = fmt.Fprintln(w, string(b))
	return err
}

// widest is the maximum width of an error in a narrow table.
const widest = 60

// line returns an error on one line of a table. A narrow table shows its end, which has the cause.
func line(s string, wide bool) string {
	s = strings.Join(strings.Fields(s), " ")
	if wide || len(s) <= widest {
		return s
	}
	for len(s) > widest {
		_, cause, ok := strings.Cut(s, ": ")
		if !ok {
			cause = strings.ToValidUTF8(s[len(s)-widest:], "")
		}
		s = cause
	}
	return "…" + s
}
