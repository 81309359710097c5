// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

// Schedulings returns a scheduler's decisions about pods; nil for an unknown pod.
type Schedulings interface {
	Scheduling(namespace, name string) *trace.Scheduling
}

// decisions answers queries with a parameter that asks for decisions, and passes other requests to next.
func decisions(parameter string, of func(*http.Request) (any, error), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asks := r.URL.Query().Get(parameter)
		on, err := strconv.ParseBool(asks)
		switch {
		case asks == "" || err == nil && !on:
			next.ServeHTTP(w, r)
			return
		case err != nil:
			status.Write(w, r, apierrors.NewBadRequest(fmt.Sprintf("%s: %q is neither true nor false", parameter, asks)))
			return
		}
		v, err := of(r)
		if err != nil {
			status.Write(w, r, err)
			return
		}
		b, err := json.Marshal(v)
		if err != nil {
			status.Write(w, r, apierrors.NewInternalError(fmt.Errorf("encode decisions: %w", err)))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(b, '\n')) // the client may have left
	})
}

// scheduled returns the scheduler's decisions about a pod.
func (s *Server) scheduled(r *http.Request) (any, error) {
	pods := schema.GroupResource{Resource: "pods"}
	q := r.URL.Query()
	namespace, name := q.Get(trace.ParamNamespace), q.Get(trace.ParamName)
	if of := q.Get(trace.ParamResource); of != "" && of != pods.Resource || q.Get(trace.ParamGroup) != "" {
		return nil, apierrors.NewBadRequest("pods alone are scheduled")
	}
	switch {
	case r.Method != http.MethodGet:
		return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "explain"}, strings.ToLower(r.Method))
	case r.URL.Path != trace.Route || q.Get(trace.ParamField) != "":
		return nil, apierrors.NewBadRequest("scheduling decisions are about a pod, not about a write or a field")
	case namespace == "" || name == "":
		return nil, apierrors.NewBadRequest("scheduling decisions need the namespace and name of a pod")
	case s.opts.Explain.Scheduling == nil:
		return nil, unexplained("schedulings", "this server keeps no scheduling decisions: it was started without --explain, or runs no scheduler")
	}
	if v := s.opts.Explain.Scheduling.Scheduling(namespace, name); v != nil {
		return v, nil
	}
	live, _, err := s.api.Explained().Live(r.Context(), pods, namespace, name)
	if err != nil {
		return nil, err
	}
	spec, _ := live["spec"].(map[string]any)
	if node, _ := spec["nodeName"].(string); node != "" {
		return nil, unexplained("schedulings", fmt.Sprintf(
			"no decision about pod %s/%s is kept: it is on node %s, by another scheduler, without one, or longer than this server runs", namespace,
			name, node))
	}
	by, _ := spec["schedulerName"].(string)
	return nil, unexplained("schedulings", fmt.Sprintf(
		"there is no decision about pod %s/%s, and no scheduler of this server is responsible: the pod names the scheduler %s", namespace, name,
		by))
}

func unexplained(what, text string) error {
	e := apierrors.NewNotFound(schema.GroupResource{Resource: what}, "")
	e.ErrStatus.Message, e.ErrStatus.Details = text, nil
	return e
}
