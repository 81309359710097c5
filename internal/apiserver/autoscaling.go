// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/resource"
)

// Autoscalings returns the decisions about HorizontalPodAutoscalers; nil for an unknown autoscaler.
type Autoscalings interface {
	Autoscaling(namespace, name string) *trace.Autoscaling
}

// autoscaled returns the decisions about an autoscaler, with the services behind the metrics APIs.
func (s *Server) autoscaled(r *http.Request) (any, error) {
	autoscalers := schema.GroupResource{Group: "autoscaling", Resource: "horizontalpodautoscalers"}
	q := r.URL.Query()
	namespace, name := q.Get(trace.ParamNamespace), q.Get(trace.ParamName)
	of := schema.GroupResource{Group: q.Get(trace.ParamGroup), Resource: q.Get(trace.ParamResource)}
	switch {
	case r.Method != http.MethodGet:
		return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "explain"}, strings.ToLower(r.Method))
	case of.Resource != "" && of != autoscalers:
		return nil, apierrors.NewBadRequest("autoscaling decisions are about a HorizontalPodAutoscaler")
	case r.URL.Path != trace.Route || q.Get(trace.ParamField) != "":
		return nil, apierrors.NewBadRequest("autoscaling decisions are about a HorizontalPodAutoscaler, not about a write or a field")
	case namespace == "" || name == "":
		return nil, apierrors.NewBadRequest("autoscaling decisions need the namespace and name of a HorizontalPodAutoscaler")
	case s.opts.Explain.Autoscaling == nil:
		return nil, unexplained("autoscalings",
			"this server keeps no autoscaling decisions: it was started without --explain, or runs no controllers")
	}
	v := s.opts.Explain.Autoscaling.Autoscaling(namespace, name)
	if v == nil {
		if _, _, err := s.api.Explained().Live(r.Context(), autoscalers, namespace, name); err != nil {
			return nil, err
		}
		return nil, unexplained("autoscalings", fmt.Sprintf("no decision about HorizontalPodAutoscaler %s/%s is kept: "+
			"the controller has not evaluated it yet, does not run, or runs in another server", namespace, name))
	}
	for i := range v.Decisions {
		for j := range v.Decisions[i].Metrics {
			m := &v.Decisions[i].Metrics[j]
			if to, _ := s.others.find(m.Path); to != nil {
				m.Service = to.Where()
				continue
			}
			m.BuiltIn = m.Path != "" && serves(s.kinds.list(), strings.Split(strings.TrimPrefix(m.Path, "/apis/"), "/")[0])
		}
	}
	return v, nil
}

// serves reports whether kinds are of a group.
func serves(kinds []*resource.Descriptor, group string) bool {
	return slices.ContainsFunc(kinds, func(d *resource.Descriptor) bool { return d.Group == group })
}
