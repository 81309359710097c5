// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mortise-dev/mortise/extension/trace"
)

// explainOptions are what `mortise explain` was asked.
type explainOptions struct {
	kubeconfig, namespace, output string
	brief, rejected, scheduling   bool
	autoscaling                   bool // the object is a HorizontalPodAutoscaler, and its decisions are asked for
	storage                       bool // the object is a claim or a persistent volume
	last                          time.Duration
	limit                         int
	what, field                   string // an audit ID, or TYPE/NAME and a field of it
}

// runExplain tells what a running server did with writes.
func runExplain(ctx context.Context, p Program, args []string) int {
	f := pflag.NewFlagSet("explain", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	var o explainOptions
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "File of the server's kubeconfig. Default: $KUBECONFIG, then ~/.kube/config.")
	f.StringVarP(&o.namespace, "namespace", "n", "", "Namespace. Default: the kubeconfig's.")
	f.BoolVar(&o.rejected, "rejected", false, "List only rejected writes, of all namespaces unless -n is set.")
	f.BoolVar(&o.scheduling, "scheduling", false, "Show the scheduler's decisions about a pod, and where the pod is now.")
	f.BoolVar(&o.brief, "brief", false, "Also list writes that are recorded without contents: leases, events, reviews, status of components.")
	f.DurationVar(&o.last, "last", 0, "Maximum age of writes, such as 10m.")
	f.IntVar(&o.limit, "limit", 50, "Maximum number of writes, from 1 to 1000.")
	f.StringVarP(&o.output, "output", "o", "", "Output format: json.")
	f.Usage = func() {
		fmt.Fprintf(f.Output(), `Usage: mortise explain AUDIT-ID [flags]
       mortise explain TYPE/NAME [FIELD] [flags]
       mortise explain pod/NAME --scheduling [flags]
       mortise explain hpa/NAME [flags]
       mortise explain pvc/NAME [flags], mortise explain pv/NAME [flags]
       mortise explain [--rejected] [--last 10m] [flags]

Shows what a running server did with writes: the duration of each stage, what each mutating step changed, what rejected the write,
and what was stored. The Audit-Id header of a response identifies its write. For an object, the command lists the writes; for a field of
an object, it shows what set the field: the request, a default, a plug-in, policy or webhook. --rejected lists rejected writes with the
stage or hook and the reason. --scheduling shows why a pod is on its node, or on none: which plug-ins filtered nodes, the scores of the
best nodes, what the pod waits for. For a HorizontalPodAutoscaler, the command shows the last decisions: the value of each metric, where
it was read and how old it was, what it asks for, and which window, policy or bound limited it; with --last or --brief it lists the
writes. For a PersistentVolumeClaim or a PersistentVolume, the command also shows what it waits for, and the newest calls that nodes made
to its driver: code, duration, attempt. ("mortise kubectl explain" describes what a field means.)

  mortise explain pod/web spec.containers[0].image
  mortise explain deployment.apps/web 'metadata.labels["example.com/team"]' -n shop
  mortise explain pod/web --scheduling
  mortise explain hpa/web
  mortise explain pvc/data
  mortise explain --rejected --last 10m

The server keeps the newest traces in memory (--explain-memory of "mortise up"). A restart loses them.

%s`, f.FlagUsages())
	}
	if code, done := parse(p, f, "explain", args); done {
		return code
	}
	o.what, o.field = f.Arg(0), f.Arg(1)
	if err := o.check(f.NArg()); err != nil {
		fmt.Fprintf(p.Err, "mortise explain: %v\n", err)
		return 2
	}
	if err := o.run(ctx, p); err != nil {
		return fail(p, err)
	}
	return 0
}

// object reports whether an object is asked for, and not a write.
func (o *explainOptions) object() bool { return strings.Contains(o.what, "/") }

func (o *explainOptions) check(args int) error {
	switch {
	case args > 2 || args == 2 && !o.object():
		return errors.New("want an audit ID, or TYPE/NAME and a field")
	case o.output != "" && o.output != "json":
		return fmt.Errorf("-o %q: want json", o.output)
	case o.last < 0:
		return fmt.Errorf("--last %s: want a time above 0", o.last)
	case o.limit < 1 || o.limit > 1000:
		return fmt.Errorf("--limit %d: want 1 to 1000", o.limit)
	case o.rejected && o.field != "":
		return errors.New("--rejected is about writes, not about a field")
	case o.scheduling && (!o.object() || o.field != "" || o.rejected || o.brief || o.last > 0):
		return errors.New("--scheduling is about a pod: want pod/NAME, without FIELD, --rejected, --brief and --last")
	}
	if o.object() {
		if kind, name, _ := strings.Cut(o.what, "/"); kind == "" || name == "" || strings.Contains(name, "/") {
			return fmt.Errorf("%q: want TYPE/NAME", o.what)
		}
	}
	if o.field != "" {
		if _, err := trace.ParsePath(o.field); err != nil {
			return err
		}
	}
	return nil
}

func (o *explainOptions) run(ctx context.Context, p Program) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
	config, err := loaded.ClientConfig()
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.Timeout = 30 * time.Second
	path, query := trace.Route, url.Values{trace.ParamLimit: {strconv.Itoa(o.limit)}}
	if o.namespace != "" {
		query.Set(trace.ParamNamespace, o.namespace)
	}
	switch {
	case o.object():
		space, _, err := loaded.Namespace()
		if err != nil {
			return fmt.Errorf("read kubeconfig: %w", err)
		}
		if err := o.find(config, space, query); err != nil {
			return err
		}
	case o.what != "":
		path += "/" + url.PathEscape(o.what)
	}
	if o.brief {
		query.Set(trace.ParamBrief, "true")
	}
	if o.rejected {
		query.Set(trace.ParamRejected, "true")
	}
	if o.last > 0 {
		query.Set(trace.ParamSince, o.last.String())
	}
	if o.scheduling {
		query.Set(trace.ParamScheduling, "true")
		query.Del(trace.ParamLimit)
	}
	if o.autoscaling {
		query.Set(trace.ParamAutoscaling, "true")
		query.Del(trace.ParamLimit)
	}
	if o.storage {
		return o.runStorage(ctx, p.Out, config, query)
	}
	body, err := ask(ctx, config, path, query)
	if err != nil {
		return err
	}
	switch {
	case o.scheduling:
		return printAnswer(p.Out, o.output, body, printScheduling)
	case o.autoscaling:
		return printAnswer(p.Out, o.output, body, printAutoscaling)
	case o.field != "":
		return printAnswer(p.Out, o.output, body, printField)
	}
	if query.Get(trace.ParamResource) == "pods" && query.Get(trace.ParamGroup) == "" && !o.rejected {
		if body, err = addNode(ctx, config, query, body); err != nil {
			fmt.Fprintf(p.Err, "mortise explain: %v\n", err)
		}
	}
	return printAnswer(p.Out, o.output, body, func(w io.Writer, v *trace.View) error {
		switch {
		case o.what != "" && !o.object():
			return printTraces(w, v.Traces)
		case o.rejected:
			return printRejected(w, v)
		}
		return printWrites(w, v)
	})
}

// printAnswer decodes an answer, and prints it as JSON or by the function.
func printAnswer[T any](w io.Writer, output string, body []byte, print func(io.Writer, *T) error) error {
	v := new(T)
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if output == "json" {
		return printJSON(w, v)
	}
	return print(w, v)
}

// find turns TYPE/NAME into a resource, as the server's discovery has it.
func (o *explainOptions) find(config *rest.Config, space string, query url.Values) error {
	kind, name, _ := strings.Cut(o.what, "/")
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	groups, err := restmapper.GetAPIGroupResources(client)
	if err != nil {
		return fmt.Errorf("discover resources: %w", err)
	}
	cached := discovered{client}
	mapper := restmapper.NewShortcutExpander(restmapper.NewDiscoveryRESTMapper(groups), cached, nil)
	r, err := resourceOf(mapper, strings.ToLower(kind))
	if err != nil {
		return fmt.Errorf("find resource: %w", err)
	}
	gvk, err := mapper.KindFor(r)
	if err != nil {
		return fmt.Errorf("find resource: %w", err)
	}
	m, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return fmt.Errorf("find resource: %w", err)
	}
	query.Set(trace.ParamGroup, r.Group)
	query.Set(trace.ParamResource, r.Resource)
	query.Set(trace.ParamName, name)
	query.Del(trace.ParamNamespace)
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		if o.namespace != "" {
			space = o.namespace
		}
		query.Set(trace.ParamNamespace, space)
	}
	if o.field != "" {
		query.Set(trace.ParamField, o.field)
	}
	whole := o.field == "" && !o.rejected && !o.brief && o.last == 0
	o.autoscaling = whole && r.Group == "autoscaling" && r.Resource == "horizontalpodautoscalers"
	o.storage = whole && r.Group == "" && (r.Resource == "persistentvolumeclaims" || r.Resource == "persistentvolumes")
	return nil
}

func resourceOf(mapper meta.RESTMapper, kind string) (schema.GroupVersionResource, error) {
	full, group := schema.ParseResourceArg(kind)
	if full != nil {
		if r, err := mapper.ResourceFor(*full); err == nil {
			return r, nil
		}
	}
	return mapper.ResourceFor(group.WithVersion(""))
}

// discovered is a discovery client that asks anew each time: a command asks once.
type discovered struct{ discovery.DiscoveryInterface }

// Fresh is true.
func (discovered) Fresh() bool { return true }

// Invalidate has nothing to forget.
func (discovered) Invalidate() {}

// ask asks the server a question.
func ask(ctx context.Context, config *rest.Config, path string, query url.Values) ([]byte, error) {
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	r := client.Get().AbsPath(path)
	for name, values := range query {
		r = r.Param(name, values[0])
	}
	answer := r.Do(ctx)
	if err := answer.Error(); err != nil { // as the server words it
		return nil, fmt.Errorf("get traces: %w", err)
	}
	return answer.Raw()
}
