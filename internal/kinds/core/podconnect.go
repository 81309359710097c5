// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	proxymetrics "k8s.io/apiserver/pkg/util/proxy/metrics"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/resource"
)

var podResource = schema.GroupResource{Resource: "pods"}

// podConnect returns the streaming subresources of a pod. They find the pod's node and proxy to its agent, which does the work; they
// validate the client's options, with upstream's messages.
//
// If an agent declares that it accepts WebSockets, the server passes them through. To other agents it speaks SPDY, which agents of every
// age support: it translates WebSocket clients that signal the end of their input (v5.channel.k8s.io), and port-forwards tunnelled through
// a WebSocket.
func podConnect(dial egress.Dial) []resource.Subresource {
	proxymetrics.Register()
	return []resource.Subresource{
		{
			Name: "attach", GroupVersionKind: corev1.SchemeGroupVersion.WithKind("PodAttachOptions"), Verbs: []string{"create", "get"},
			Connect: &resource.Connect{Options: attachOptions, Handler: connectAttach, AsCreate: true},
		},
		{
			Name: "exec", GroupVersionKind: corev1.SchemeGroupVersion.WithKind("PodExecOptions"), Verbs: []string{"create", "get"},
			Connect: &resource.Connect{Options: execOptions, Handler: connectExec, AsCreate: true},
		},
		{
			Name: "log", Verbs: []string{"get"},
			Connect: &resource.Connect{Options: logOptions, Handler: connectLog},
		},
		{
			Name: "portforward", GroupVersionKind: corev1.SchemeGroupVersion.WithKind("PodPortForwardOptions"), Verbs: []string{"create", "get"},
			Connect: &resource.Connect{Options: portForwardOptions, Handler: connectPortForward, AsCreate: true},
		},
		podProxy(dial),
	}
}

func connectExec(ctx context.Context, b resource.Backend, namespace, name string, opts runtime.Object, _ string) (http.Handler, error) {
	o := opts.(*corev1.PodExecOptions)
	q := streamQuery(o.Stdin, o.Stdout, o.Stderr, o.TTY)
	q["command"] = o.Command
	return connectCommand(ctx, b, command{verb: "exec", namespace: namespace, pod: name, container: o.Container, query: q})
}

func connectAttach(ctx context.Context, b resource.Backend, namespace, name string, opts runtime.Object, _ string) (http.Handler, error) {
	o := opts.(*corev1.PodAttachOptions)
	q := streamQuery(o.Stdin, o.Stdout, o.Stderr, o.TTY)
	return connectCommand(ctx, b, command{verb: "attach", namespace: namespace, pod: name, container: o.Container, query: q})
}

// streamQuery returns an agent's query parameters for the requested streams.
func streamQuery(stdin, stdout, stderr, tty bool) url.Values {
	q := url.Values{}
	for name, want := range map[string]bool{"input": stdin, "output": stdout, "error": stderr, "tty": tty} {
		if want {
			q.Set(name, "1")
		}
	}
	return q
}

// command is a request to an agent about a container.
type command struct {
	verb                      string // the first part of the agent's path
	namespace, pod, container string // no container: the pod's default one
	query                     url.Values
}

func connectCommand(ctx context.Context, b resource.Backend, c command) (http.Handler, error) {
	pod, container, err := podAndContainer(ctx, b, c.namespace, c.pod, c.container)
	if err != nil {
		return nil, err
	}
	location, transport, err := agentOf(ctx, b, pod)
	if err != nil {
		return nil, err
	}
	location.Path = strings.Join([]string{"", c.verb, pod.Namespace, pod.Name, container}, "/")
	location.RawQuery = c.query.Encode()
	if passesThrough(ctx, b, c.verb, pod.Spec.NodeName) {
		return hijackable(upgrade(location, transport)), nil
	}
	return hijackable(translator.NewTranslatingHandler(
		upgrade(location, transport),
		egress.BoundTranslation(location, transport, func(location *url.URL, transport http.RoundTripper) http.Handler {
			return translator.NewStreamTranslatorHandler(location, transport, 0, translator.Options{
				Stdin: c.query.Has("input"), Stdout: c.query.Has("output"), Stderr: c.query.Has("error"), Tty: c.query.Has("tty"),
			})
		}),
		wsstream.IsWebSocketRequestWithStreamCloseProtocol,
	)), nil
}

func connectPortForward(ctx context.Context, b resource.Backend, namespace, name string, opts runtime.Object, _ string) (http.Handler,
	error) {
	pod, err := getPod(ctx, b, namespace, name)
	if err != nil {
		return nil, err
	}
	location, transport, err := agentOf(ctx, b, pod)
	if err != nil {
		return nil, err
	}
	location.Path = strings.Join([]string{"", "portForward", pod.Namespace, pod.Name}, "/")
	var ports []string
	for _, p := range opts.(*corev1.PodPortForwardOptions).Ports {
		ports = append(ports, strconv.Itoa(int(p)))
	}
	if len(ports) > 0 {
		location.RawQuery = url.Values{"port": {strings.Join(ports, ",")}}.Encode()
	}
	handler := upgrade(location, transport)
	if passesThrough(ctx, b, "portforward", pod.Spec.NodeName) {
		return hijackable(handler), nil
	}
	return hijackable(translator.NewTranslatingHandler(
		handler, translator.NewTunnelingHandler(handler), wsstream.IsWebSocketRequestWithTunnelingProtocol)), nil
}

// passesThrough reports whether an agent accepts WebSockets itself, and counts the request in a metric.
func passesThrough(ctx context.Context, b resource.Backend, subresource, nodeName string) bool {
	obj, err := b.Get(ctx, schema.GroupResource{Resource: "nodes"}, "", nodeName)
	node, ok := obj.(*corev1.Node)
	if err == nil && ok && slices.Contains(node.Status.DeclaredFeatures, "ExtendWebSocketsToKubelet") {
		proxymetrics.IncWebSocketStreamingRequest(ctx, subresource, "proxied_to_kubelet")
		return true
	}
	proxymetrics.IncWebSocketStreamingRequest(ctx, subresource, "translated_at_apiserver")
	return false
}

// upgrade proxies a connection, for which the client must request an upgrade.
func upgrade(location *url.URL, transport http.RoundTripper) http.Handler {
	return proxy.NewUpgradeAwareHandler(location, transport, false, true, statusResponder{})
}

// hijackable lets a handler hijack the connection through the writers of earlier stages: the proxies ask for an http.Hijacker, and do not
// unwrap the writer. It bounds the wait for an agent's or a pod's answer to an upgrade.
func hijackable(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if httpstream.IsUpgradeRequest(r) {
			ctx, bounded, stop := egress.BoundUpgrade(r.Context(), w)
			defer stop()
			w, r = bounded, r.WithContext(ctx)
		}
		if _, can := w.(http.Hijacker); !can {
			w = hijacker{w, http.NewResponseController(w)}
		}
		h.ServeHTTP(w, r)
	})
}

type hijacker struct {
	http.ResponseWriter
	c *http.ResponseController
}

// Hijack implements http.Hijacker.
func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) { return h.c.Hijack() }

// Unwrap lets http.ResponseController reach the connection.
func (h hijacker) Unwrap() http.ResponseWriter { return h.ResponseWriter }

func getPod(ctx context.Context, b resource.Backend, namespace, name string) (*corev1.Pod, error) {
	obj, err := b.Get(ctx, podResource, namespace, name)
	if err != nil {
		return nil, err
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("read pod: it is a %T", obj)
	}
	return pod, nil
}

// podAndContainer resolves the container: the only one, if the client names none.
func podAndContainer(ctx context.Context, b resource.Backend, namespace, name, container string) (*corev1.Pod, string, error) {
	pod, err := getPod(ctx, b, namespace, name)
	if err != nil {
		return nil, "", err
	}
	switch {
	case container != "":
		if !slices.Contains(containerNames(pod), container) {
			return nil, "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", container, name))
		}
		return pod, container, nil
	case len(pod.Spec.Containers) == 1:
		return pod, pod.Spec.Containers[0].Name, nil
	case len(pod.Spec.Containers) == 0:
		return nil, "", apierrors.NewBadRequest("a container name must be specified for pod " + name)
	}
	return nil, "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: %s", name,
		containerNames(pod)))
}

// containerNames returns the names of all a pod's containers: init, ordinary, ephemeral.
func containerNames(pod *corev1.Pod) []string {
	var names []string
	for _, c := range pod.Spec.InitContainers {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.Containers {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	return names
}

// agentOf returns the URL and transport of the agent on the pod's node.
func agentOf(ctx context.Context, b resource.Backend, pod *corev1.Pod) (*url.URL, http.RoundTripper, error) {
	if pod.Spec.NodeName == "" {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", pod.Name))
	}
	location, transport, err := b.Node(ctx, pod.Spec.NodeName)
	switch {
	case apierrors.IsNotFound(err): // as upstream, with the pods' resource and the node's name
		return nil, nil, apierrors.NewNotFound(podResource, pod.Spec.NodeName)
	case err != nil:
		return nil, nil, err
	}
	own := *location
	return &own, transport, nil
}

// statusResponder answers with an API status when a request could not be proxied.
type statusResponder struct{}

// Error implements proxy.ErrorResponder.
func (statusResponder) Error(w http.ResponseWriter, _ *http.Request, err error) { writeStatus(w, err) }

func writeStatus(w http.ResponseWriter, err error) {
	status := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		status = known.Status()
	}
	if t, ok := w.(interface{ Answer(*metav1.Status) }); ok { // for the audit event
		t.Answer(&status)
	}
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	data, err := json.Marshal(status)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(status.Code))
	w.Write(append(data, '\n'))
}
