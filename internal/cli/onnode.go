// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/extension/trace"
)

// onNode asks a node for its plug-ins, and for the calls for the pod that the query names. Nothing comes from nodes in the server's
// process, whose plug-ins the server lists, and from other kubelets.
func onNode(ctx context.Context, config *rest.Config, node string, query url.Values) (*trace.OnNode, error) {
	body, err := ask(ctx, config, "/api/v1/nodes/"+url.PathEscape(node)+"/proxy"+trace.NodeRoute, query)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask node %s for its plug-ins: %w", node, err)
	}
	there := &trace.OnNode{}
	if err := json.Unmarshal(body, there); err != nil {
		return nil, fmt.Errorf("read answer of node %s: %w", node, err)
	}
	return there, nil
}

// addNode adds the calls that the pod's node has made for the pod to an answer about it. A pod that is gone has no node. With an error, it
// returns the answer as it is.
func addNode(ctx context.Context, config *rest.Config, query url.Values, body []byte) ([]byte, error) {
	space, name := query.Get(trace.ParamNamespace), query.Get(trace.ParamName)
	text, err := ask(ctx, config, "/api/v1/namespaces/"+url.PathEscape(space)+"/pods/"+url.PathEscape(name), nil)
	pod := corev1.Pod{}
	if err != nil || json.Unmarshal(text, &pod) != nil || pod.Spec.NodeName == "" {
		return body, nil
	}
	there, err := onNode(ctx, config, pod.Spec.NodeName, url.Values{trace.ParamNamespace: {space}, trace.ParamName: {name}})
	if there == nil || len(there.Calls) == 0 {
		return body, err
	}
	v := &trace.View{}
	if err := json.Unmarshal(body, v); err != nil {
		return body, nil // the caller fails to read it, too
	}
	v.Calls = append(v.Calls, there.Calls...)
	if text, err = json.Marshal(v); err != nil {
		return body, fmt.Errorf("add calls of node %s: %w", pod.Spec.NodeName, err)
	}
	return text, nil
}
