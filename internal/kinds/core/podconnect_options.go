// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func optionsType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: "v1", Kind: kind}
}

func execOptions(q url.Values) (runtime.Object, error) {
	return &corev1.PodExecOptions{
		TypeMeta: optionsType("PodExecOptions"), Container: q.Get("container"), Command: q["command"],
		Stdin: flag(q, "stdin"), Stdout: flag(q, "stdout"), Stderr: flag(q, "stderr"), TTY: flag(q, "tty"),
	}, nil
}

func attachOptions(q url.Values) (runtime.Object, error) {
	return &corev1.PodAttachOptions{
		TypeMeta: optionsType("PodAttachOptions"), Container: q.Get("container"),
		Stdin: flag(q, "stdin"), Stdout: flag(q, "stdout"), Stderr: flag(q, "stderr"), TTY: flag(q, "tty"),
	}, nil
}

func portForwardOptions(q url.Values) (runtime.Object, error) {
	o := &corev1.PodPortForwardOptions{TypeMeta: optionsType("PodPortForwardOptions")}
	for _, text := range q["ports"] {
		for part := range strings.SplitSeq(text, ",") {
			p, err := strconv.ParseInt(part, 10, 32)
			if err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
			o.Ports = append(o.Ports, int32(p))
		}
	}
	return o, nil
}

// logOptions only parses. [checkLogOptions] validates the values and returns an Invalid status, which names the pod.
func logOptions(q url.Values) (runtime.Object, error) {
	o := &corev1.PodLogOptions{
		TypeMeta: optionsType("PodLogOptions"), Container: q.Get("container"), Follow: flag(q, "follow"), Previous: flag(q, "previous"),
		Timestamps: flag(q, "timestamps"), InsecureSkipTLSVerifyBackend: flag(q, "insecureSkipTLSVerifyBackend"),
	}
	for _, n := range []struct {
		name string
		to   **int64
	}{{"sinceSeconds", &o.SinceSeconds}, {"tailLines", &o.TailLines}, {"limitBytes", &o.LimitBytes}} {
		if !q.Has(n.name) {
			continue
		}
		v, err := strconv.ParseInt(q.Get(n.name), 10, 64)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		*n.to = &v
	}
	if q.Has("sinceTime") {
		o.SinceTime = &metav1.Time{}
		if err := o.SinceTime.UnmarshalQueryParameter(q.Get("sinceTime")); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if q.Has("stream") {
		stream := q.Get("stream")
		o.Stream = &stream
	}
	return o, nil
}

func proxyOptions(kind string) func(q url.Values) (runtime.Object, error) {
	return func(q url.Values) (runtime.Object, error) {
		switch path := q.Get("path"); kind {
		case "PodProxyOptions":
			return &corev1.PodProxyOptions{TypeMeta: optionsType(kind), Path: path}, nil
		case "ServiceProxyOptions":
			return &corev1.ServiceProxyOptions{TypeMeta: optionsType(kind), Path: path}, nil
		default:
			return &corev1.NodeProxyOptions{TypeMeta: optionsType("NodeProxyOptions"), Path: path}, nil
		}
	}
}

// flag parses a boolean of the query: a value is true, unless it is 0 or false.
func flag(q url.Values, name string) bool {
	v := q[name]
	return len(v) > 0 && v[0] != "0" && !strings.EqualFold(v[0], "false")
}
