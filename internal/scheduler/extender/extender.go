// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package extender calls scheduler extenders: HTTP servers that a KubeSchedulerConfiguration names, and that filter and rank nodes, check
// preemptions, or bind, for all profiles. [All] creates them, in the order in which the scheduler calls them.
//
// A request is a POST of JSON to <urlPrefix>/<verb>, with the types of k8s.io/kube-scheduler/extender/v1; their keys are capitalised, since
// the types name none. An extender that caches nodes itself (nodeCacheCapable) gets names, others get the objects. Every request goes
// through the extension ledger.
//
// The scheduler validates an extender's answer as kube-scheduler does, and a little more strictly: nodes that were not in the request, and
// victims that are not on their node, are errors; the size of an answer is bounded; a node that is named several times counts once.
package extender

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
)

// DefaultTimeout is the timeout for an extender that sets none.
const DefaultTimeout = 5 * time.Second

// DefaultPause is how long an extender is not called after its breaker opens.
const DefaultPause = 10 * time.Second

// leastLimit is the smallest limit of an answer in bytes; an answer may also be several times as big as the request.
const leastLimit = 64 << 20

// Options are shared by all extenders.
type Options struct {
	Ledger *extension.Ledger // nil: a private one
	Where  string            // the source of the configuration, for the ledger
	// After so many failures in a row the scheduler does not call an extender for Pause (0: 10 s), and counts it as failing; then one
	// request tries it. 0: it always calls the extender, as kube-scheduler does.
	Failures int
	Pause    time.Duration
}

// All creates the extenders; those that may fail (ignorable) come after the others. Requests end with ctx.
func All(ctx context.Context, configured []configv1.Extender, o Options) ([]fwk.Extender, error) {
	if o.Ledger == nil {
		o.Ledger = extension.NewLedger(clock.RealClock{})
	}
	var firm, ignorable []fwk.Extender
	for i := range configured {
		x, err := newExtender(ctx, configured[i].DeepCopy(), o)
		if err != nil {
			return nil, err
		}
		o.Ledger.Register(x.ref, o.Where)
		if x.IsIgnorable() {
			ignorable = append(ignorable, x)
		} else {
			firm = append(firm, x)
		}
	}
	return append(firm, ignorable...), nil
}

type extender struct {
	*configv1.Extender

	ref     extension.Ref
	managed sets.Set[string]
	ask     func(verb string, question, answer any, check func() error) error
}

var _ fwk.Extender = (*extender)(nil)

func newExtender(ctx context.Context, c *configv1.Extender, o Options) (*extender, error) {
	transport, err := transport(c)
	if err != nil {
		return nil, err
	}
	client := egress.SameOriginClient(&http.Client{Transport: transport, Timeout: c.HTTPTimeout.Duration})
	if client.Timeout == 0 {
		client.Timeout = DefaultTimeout
	}
	x := &extender{Extender: c, ref: extension.Ref{Point: extension.SchedulerExtender, Name: c.URLPrefix}, managed: sets.New[string]()}
	for _, r := range c.ManagedResources {
		x.managed.Insert(r.Name)
	}
	policy := extension.Policy{Failures: o.Failures, Pause: cmp.Or(o.Pause, DefaultPause)}
	x.ask = func(verb string, question, answer any, check func() error) error {
		var own error // kube-scheduler's message, which events and conditions contain
		if err := o.Ledger.Call(ctx, x.ref, policy, func(ctx context.Context) error {
			if own = post(ctx, client, c.URLPrefix, verb, question, answer); own == nil && check != nil {
				own = check() // an invalid answer is a failure too
			}
			return own
		}); own == nil {
			return err
		}
		return own
	}
	return x, nil
}

// transport returns the HTTP transport for an extender. With enableHTTPS and no CA, it does not verify certificates, as kube-scheduler.
func transport(c *configv1.Extender) (http.RoundTripper, error) {
	var config rest.Config
	if t := c.TLSConfig; t != nil {
		config.TLSClientConfig = rest.TLSClientConfig{
			Insecure: t.Insecure, ServerName: t.ServerName, CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile,
			CertData: t.CertData, KeyData: t.KeyData, CAData: t.CAData,
		}
	}
	if c.EnableHTTPS && config.CAFile == "" && len(config.CAData) == 0 {
		config.Insecure = true
	}
	tls, err := rest.TLSConfigFor(&config)
	if err != nil {
		return nil, err
	}
	return utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: tls}), nil
}

func post(ctx context.Context, client *http.Client, prefix, verb string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	url := strings.TrimRight(prefix, "/") + "/" + verb
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("failed %v with extender at URL %v, code %v", verb, url, response.StatusCode) // upstream's words
	}
	limited := &io.LimitedReader{R: response.Body, N: max(leastLimit, 4*int64(len(body)))}
	if err := json.NewDecoder(limited).Decode(answer); err != nil {
		if limited.N <= 0 {
			return fmt.Errorf("%v with extender at URL %v: the answer is too big", verb, url)
		}
		return err
	}
	return nil
}

// Name returns the extender's address.
func (x *extender) Name() string { return x.URLPrefix }

// IsIgnorable reports whether pods are scheduled without the extender when it fails.
func (x *extender) IsIgnorable() bool { return x.Ignorable }

// IsFilter and the next three report what the extender does.
func (x *extender) IsFilter() bool           { return x.FilterVerb != "" }
func (x *extender) IsPrioritizer() bool      { return x.PrioritizeVerb != "" }
func (x *extender) IsBinder() bool           { return x.BindVerb != "" }
func (x *extender) SupportsPreemption() bool { return x.PreemptVerb != "" }

// IsInterested reports whether the extender handles the pod: any pod, or those that request its managed resources.
func (x *extender) IsInterested(pod *corev1.Pod) bool {
	return x.managed.Len() == 0 || x.wanted(pod.Spec.Containers) || x.wanted(pod.Spec.InitContainers)
}

func (x *extender) wanted(containers []corev1.Container) bool {
	for i := range containers {
		for _, list := range []corev1.ResourceList{containers[i].Resources.Requests, containers[i].Resources.Limits} {
			for name := range list {
				if x.managed.Has(string(name)) {
					return true
				}
			}
		}
	}
	return false
}

// question returns the request about a pod and nodes.
func (x *extender) question(pod *corev1.Pod, nodes []fwk.NodeInfo) *extenderv1.ExtenderArgs {
	q := &extenderv1.ExtenderArgs{Pod: pod}
	if x.NodeCacheCapable {
		names := make([]string, len(nodes))
		for i, n := range nodes {
			names[i] = n.Node().Name
		}
		q.NodeNames = &names
		return q
	}
	q.Nodes = &corev1.NodeList{Items: make([]corev1.Node, len(nodes))}
	for i, n := range nodes {
		q.Nodes.Items[i] = *n.Node()
	}
	return q
}

// Filter asks which of the nodes remain, and why others do not.
func (x *extender) Filter(pod *corev1.Pod, nodes []fwk.NodeInfo) (left []fwk.NodeInfo, failed, unresolvable extenderv1.FailedNodesMap,
	err error) {
	if x.FilterVerb == "" {
		return nodes, extenderv1.FailedNodesMap{}, extenderv1.FailedNodesMap{}, nil
	}
	var answer extenderv1.ExtenderFilterResult
	if err := x.ask(x.FilterVerb, x.question(pod, nodes), &answer, func() error {
		if answer.Error != "" {
			return errors.New(answer.Error)
		}
		left, err = x.remaining(&answer, nodes)
		return err
	}); err != nil {
		return nil, nil, nil, err
	}
	return left, answer.FailedNodes, answer.FailedAndUnresolvableNodes, nil
}

// remaining returns the nodes that an answer leaves: each once, and none that was not in the request.
func (x *extender) remaining(answer *extenderv1.ExtenderFilterResult, nodes []fwk.NodeInfo) (left []fwk.NodeInfo, err error) {
	var names []string
	switch {
	case x.NodeCacheCapable && answer.NodeNames != nil:
		names = *answer.NodeNames
	case answer.Nodes != nil:
		for i := range answer.Nodes.Items {
			names = append(names, answer.Nodes.Items[i].Name)
		}
	}
	asked := make(map[string]fwk.NodeInfo, len(nodes))
	for _, n := range nodes {
		asked[n.Node().Name] = n
	}
	seen := sets.New[string]()
	for _, name := range names {
		n := asked[name]
		if n == nil {
			return nil, fmt.Errorf("extender %q claims a filtered node %q which is not found in the input node list", x.URLPrefix,
				name) // upstream's words
		}
		if !seen.Has(name) {
			seen.Insert(name)
			left = append(left, n)
		}
	}
	return left, nil
}

// Prioritize asks for the nodes' scores, and returns them with the extender's weight.
func (x *extender) Prioritize(pod *corev1.Pod, nodes []fwk.NodeInfo) (*extenderv1.HostPriorityList, int64, error) {
	var answer extenderv1.HostPriorityList
	if x.PrioritizeVerb == "" {
		for _, n := range nodes {
			answer = append(answer, extenderv1.HostPriority{Host: n.Node().Name})
		}
		return &answer, 0, nil
	}
	if err := x.ask(x.PrioritizeVerb, x.question(pod, nodes), &answer, nil); err != nil {
		return nil, 0, err
	}
	return &answer, x.Weight, nil
}

// Bind lets the extender bind the pod.
func (x *extender) Bind(b *corev1.Binding) error {
	if !x.IsBinder() {
		return errors.New("unexpected empty bindVerb in extender") // upstream's words
	}
	var answer extenderv1.ExtenderBindingResult
	question := &extenderv1.ExtenderBindingArgs{PodName: b.Name, PodNamespace: b.Namespace, PodUID: b.UID, Node: b.Target.Name}
	return x.ask(x.BindVerb, question, &answer, func() error {
		if answer.Error != "" {
			return errors.New(answer.Error)
		}
		return nil
	})
}
