// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mortise-dev/mortise/internal/devhook"
)

const webhookUsage = `Usage:
  mortise webhook dev --url https://127.0.0.1:9443 [-f FILE] [RESOURCE/NAME...] [flags]
  mortise webhook dev --restore [-f FILE] [RESOURCE/NAME...]

Redirects the webhooks of configurations, in a file or in the cluster (validatingwebhookconfigurations/NAME, ...), to a process on this
machine, and restores them when the command is interrupted. Each webhook keeps its path. If the cluster does not have a
configuration of the file, the command creates it and deletes it at the end. It redirects conversion webhooks of
CustomResourceDefinitions too. The API server trusts the certificate of the process; --cert-dir writes a certificate for the process; with
--calls this program forwards the calls and prints each. When another client, such as an operator, overwrites a redirected webhook, this
program prints it and redirects the webhook again. An annotation of the object holds the previous settings: if this program was killed,
--restore restores all redirected webhooks, or those that are named.
`

// webhookFlags are the command line of `mortise webhook dev`.
type webhookFlags struct {
	kubeconfig, url, certDir string
	files                    []string
	calls, restore           bool
	names                    []string
}

// runWebhook points webhooks at a process on this machine for as long as it runs.
func runWebhook(ctx context.Context, p Program, args []string) int {
	o := webhookFlags{}
	f := pflag.NewFlagSet("webhook dev", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "File of the server's kubeconfig. Default: $KUBECONFIG, then ~/.kube/config.")
	f.StringVar(&o.url, "url", "", "URL of the process, https://HOST:PORT. The API server must be able to reach it; with --calls, this program must.")
	f.StringArrayVarP(&o.files, "filename", "f", nil, `File of the configurations. "-" is standard input. May be repeated.`)
	f.StringVar(&o.certDir, "cert-dir", "", "Directory to write a certificate and key for the process to: tls.crt, tls.key.")
	f.BoolVar(&o.calls, "calls", false, "Forward calls through this program, and print each.")
	f.BoolVar(&o.restore, "restore", false, "Restore redirected webhooks, and exit.")
	f.Usage = func() { fmt.Fprint(f.Output(), webhookUsage+"\nFlags:\n"+f.FlagUsages()) }
	if code, done := parse(p, f, "webhook", args); done {
		return code
	}
	if f.Arg(0) != "dev" {
		f.Usage()
		return 2
	}
	o.names = f.Args()[1:]
	var target *url.URL
	switch {
	case o.restore && (o.url != "" || o.certDir != "" || o.calls):
		fmt.Fprintln(p.Err, "mortise webhook: --restore excludes --url, --cert-dir and --calls")
		return 2
	case !o.restore:
		var err error
		if target, err = url.Parse(o.url); err != nil || target.Scheme != "https" || target.Hostname() == "" || target.RawQuery != "" ||
			target.User != nil {
			fmt.Fprintf(p.Err, "mortise webhook: --url %q: want https://HOST:PORT\n", o.url)
			return 2
		}
		if len(o.files)+len(o.names) == 0 {
			fmt.Fprintln(p.Err, "mortise webhook: want configurations: -f FILE or RESOURCE/NAME")
			return 2
		}
	}
	if err := o.run(ctx, p, target); err != nil {
		return fail(p, fmt.Errorf("webhook: %w", err))
	}
	return 0
}

func (o *webhookFlags) run(ctx context.Context, p Program, target *url.URL) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	all, err := o.configurations(p.In)
	if err != nil {
		return err
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	s := &devhook.Session{Client: client, Out: p.Out, Now: time.Now}
	if o.restore {
		if len(o.files)+len(o.names) == 0 {
			if all, err = s.Pointed(ctx); err != nil {
				return err
			}
		}
		return s.Restore(ctx, all)
	}
	t := devhook.Target{URL: target}
	if o.certDir != "" {
		if t.Bundle, err = devhook.Written(o.certDir, target, time.Now()); err != nil {
			return err
		}
		fmt.Fprintf(p.Out, "The process can serve with tls.crt and tls.key in %s.\n", o.certDir)
	}
	switch {
	case o.calls:
		calls, err := devhook.PassOn(ctx, target, p.Out, time.Now)
		if err != nil {
			return err
		}
		defer func() { _ = calls.Close() }()
		t = calls.Target
	case o.certDir == "":
		if t.Bundle, err = devhook.Shown(ctx, target, time.Now()); err != nil {
			return err
		}
	}
	return s.Run(ctx, all, t)
}

// configurations are those that files and arguments name.
func (o *webhookFlags) configurations(in io.Reader) ([]devhook.Configuration, error) {
	var all []devhook.Configuration
	kinds := devhook.Kinds()
	for _, name := range o.names {
		resource, object, _ := strings.Cut(name, "/")
		found := false
		for kind, gvr := range kinds {
			if r := strings.ToLower(resource); object != "" && (r == gvr.Resource || r == strings.ToLower(kind)) {
				all, found = append(all, devhook.Configuration{Resource: gvr, Name: object}), true
			}
		}
		if !found {
			return nil, fmt.Errorf("%q: want mutatingwebhookconfigurations/NAME, validatingwebhookconfigurations/NAME or customresourcedefinitions/NAME", name)
		}
	}
	for _, file := range o.files {
		read := in
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				return nil, fmt.Errorf("read configurations: %w", err)
			}
			defer f.Close()
			read = f
		}
		before := len(all)
		d := yaml.NewYAMLOrJSONDecoder(io.LimitReader(read, 16<<20), 4096)
		for {
			obj := &unstructured.Unstructured{}
			if err := d.Decode(&obj.Object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("read configurations of %s: %w", file, err)
			}
			if gvr, ok := kinds[obj.GetKind()]; ok && obj.GetName() != "" {
				all = append(all, devhook.Configuration{Resource: gvr, Name: obj.GetName(), Object: obj})
			}
		}
		if len(all) == before {
			return nil, fmt.Errorf("%s holds no webhook configuration", file)
		}
	}
	return all, nil
}
