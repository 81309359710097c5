// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

// Explain configures traces of writes.
type Explain struct {
	On    bool
	Bytes int64 // maximum memory of traces; 0: 16 MiB
	// Scheduling returns the scheduler's decisions; nil: there are none.
	Scheduling Schedulings
	// Autoscaling returns the decisions about HorizontalPodAutoscalers; nil: there are none.
	Autoscaling Autoscalings
}

// newExplain makes the recorder if it is enabled.
func (s *Server) newExplain() {
	if !s.opts.Explain.On {
		return
	}
	var mutators, validators []string
	for _, p := range s.opts.Admission {
		if _, ok := p.(admit.Mutator); ok {
			mutators = append(mutators, p.Name())
		}
		if _, ok := p.(admit.Validator); ok {
			validators = append(validators, p.Name())
		}
	}
	s.explain = explain.New(explain.Options{Bytes: s.opts.Explain.Bytes, Started: s.started, Mutators: mutators, Validators: validators,
		Calls: callsOf(s.opts.Ledger)})
}

// callsOf returns what returns the ledger's calls to extensions for a pod, or for a persistent volume.
func callsOf(ledger *extension.Ledger) func(resource, namespace, name string) []trace.Call {
	return func(resource, namespace, name string) []trace.Call {
		switch resource {
		case "pods":
			return trace.Calls(ledger.Spans(namespace, name))
		case "persistentvolumes":
			return trace.Calls(ledger.SpansOfVolume(name))
		}
		return nil
	}
}

// explaining adds the paths for queries about traces.
func (s *Server) explaining(mux map[string]http.Handler) {
	h := decisions(trace.ParamScheduling, s.scheduled,
		decisions(trace.ParamAutoscaling, s.autoscaled,
			decisions(trace.ParamDeletion, deleted(s.api.Explained()), s.explain.Handler(s.api.Explained(), status.Write))))
	mux[trace.Route], mux[trace.Route+"/"] = h, h
}

// entered returns the trace's stage for a name in the stages table. Stages without an entry belong to the previous one.
func entered(name string) (explain.Stage, bool) {
	switch name {
	case "authenticate":
		return explain.Authenticate, true
	case "audit":
		return explain.Audit, true
	case "impersonate":
		return explain.Impersonate, true
	case "flow control":
		return explain.FlowControl, true
	case "authorize":
		return explain.Authorize, true
	}
	return 0, false
}

// explained wraps a stage to record its entry, and the user after it, in the request's trace.
func explained(name string, next http.Handler) http.Handler {
	at, ok := entered(name)
	if !ok {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := recordOf(r.Context()).trace
		t.Enter(at)
		if at == explain.Audit || at == explain.FlowControl {
			if who, ok := request.UserFrom(r.Context()); ok && who != nil {
				t.Asks(who.GetName())
			}
		}
		next.ServeHTTP(w, r)
	})
}

// dispatched wraps the handler after the last stage.
func dispatched(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		recordOf(r.Context()).trace.Enter(explain.Decode)
		inner.ServeHTTP(w, r)
	})
}

// finished stores a trace when the request has been answered.
func finished(rec *requestRecord, took time.Duration) {
	if rec.trace == nil {
		return
	}
	a := explain.Answer{Code: rec.answer.status(), Source: rec.request.RemoteAddr, Took: took}
	if ids := rec.answer.Header()[audit.Header]; len(ids) > 0 {
		a.ID = ids[0]
	}
	rec.trace.Finish(rec.request, a)
}
