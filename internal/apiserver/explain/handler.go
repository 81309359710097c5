// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/extension/trace"
)

// The maximum number of traces in a response, and the default.
const (
	maxLimit     = 1000
	defaultLimit = 100
)

// Handler answers queries about traces. refuse writes errors as the API does.
func (r *Recorder) Handler(objects Objects, refuse func(w http.ResponseWriter, r *http.Request, err error) int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		v, err := r.answer(q, objects)
		if err != nil {
			refuse(w, q, err)
			return
		}
		b, err := json.Marshal(v)
		if err != nil {
			refuse(w, q, apierrors.NewInternalError(fmt.Errorf("encode traces: %w", err)))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(b, '\n')) // the client may have left
	})
}

func (r *Recorder) answer(req *http.Request, objects Objects) (any, error) {
	if req.Method != http.MethodGet {
		return nil, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "explain"}, strings.ToLower(req.Method))
	}
	id := strings.Trim(strings.TrimPrefix(req.URL.Path, trace.Route), "/")
	if r == nil {
		return nil, notFound("the server keeps no traces of writes: it was started without --explain")
	}
	q, err := r.question(req.URL.Query())
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	q.id = id
	if field := req.URL.Query().Get(trace.ParamField); field != "" {
		path, err := trace.ParsePath(field)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if q.resource == "" || q.name == "" {
			return nil, apierrors.NewBadRequest("a field is asked for without the resource and name of its object")
		}
		return r.field(req, q, path, objects)
	}
	found, more := r.find(q)
	if id != "" && len(found) == 0 {
		return nil, notFound(fmt.Sprintf("there is no trace of a write with audit ID %q: traces begin with the server's start at %s, the oldest are dropped when there are too many, and reads have none",
			id, r.started.UTC().Format(time.RFC3339)))
	}
	v := &trace.View{Traces: []trace.Trace{}, More: more, Kept: r.kept()}
	for _, rec := range found {
		t, err := r.view(rec, objects)
		if err != nil { // for example, its kind is not served any more
			t.Message = strings.TrimSpace(t.Message + " (contents are hidden: " + err.Error() + ")")
		}
		v.Traces = append(v.Traces, t)
	}
	if r.calls != nil && q.object && q.group == "" && !q.rejected {
		v.Calls = r.calls(q.resource, q.namespace, q.name)
	}
	return v, nil
}

func notFound(text string) error {
	e := apierrors.NewNotFound(schema.GroupResource{Resource: "traces"}, "")
	e.ErrStatus.Message, e.ErrStatus.Details = text, nil
	return e
}

func (r *Recorder) question(v url.Values) (*question, error) {
	q := &question{
		group: v.Get(trace.ParamGroup), resource: v.Get(trace.ParamResource), namespace: v.Get(trace.ParamNamespace),
		name:        v.Get(trace.ParamName),
		subresource: v.Get(trace.ParamSubresource), limit: defaultLimit,
	}
	q.object = q.resource != "" && q.name != ""
	var err error
	if s := v.Get(trace.ParamRejected); s != "" {
		if q.rejected, err = strconv.ParseBool(s); err != nil {
			return nil, fmt.Errorf("%s: %q is neither true nor false", trace.ParamRejected, s)
		}
	}
	if s := v.Get(trace.ParamBrief); s != "" {
		if q.brief, err = strconv.ParseBool(s); err != nil {
			return nil, fmt.Errorf("%s: %q is neither true nor false", trace.ParamBrief, s)
		}
	}
	if s := v.Get(trace.ParamSince); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("%s: %q is no duration above 0", trace.ParamSince, s)
		}
		q.since = r.now().Add(-d)
	}
	if s := v.Get(trace.ParamLimit); s != "" {
		if q.limit, err = strconv.Atoi(s); err != nil || q.limit < 1 || q.limit > maxLimit {
			return nil, fmt.Errorf("%s: %q is no number from 1 to %d", trace.ParamLimit, s, maxLimit)
		}
	}
	return q, nil
}

// field returns which write set a field.
func (r *Recorder) field(req *http.Request, q *question, path trace.Path, objects Objects) (*trace.Field, error) {
	f := &trace.Field{Group: q.group, Resource: q.resource, Namespace: q.namespace, Name: q.name, Field: path.String(), Kept: r.kept()}
	live, _, err := objects.Live(req.Context(), schema.GroupResource{Group: q.group, Resource: q.resource}, q.namespace, q.name)
	gone := apierrors.IsNotFound(err)
	if err != nil && !gone {
		return nil, err
	}
	var m marks
	if f.Settings, m, err = r.settings(q, path, objects); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if secret(q.group, q.resource, "") {
		b, err := json.Marshal(live)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		f.Managers = managers(live, path)
		live = nil
		if err := json.Unmarshal(m.redactJSON(&request.RequestInfo{Resource: "secrets"}, b), &live); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
	} else {
		f.Managers = managers(live, path)
	}
	f.Value, f.Present = path.In(clean(live))
	switch {
	case gone && len(f.Settings) == 0:
		return nil, notFound(fmt.Sprintf("%s %q does not exist, and no trace of a write to it is kept", q.resource, q.name))
	case gone:
		f.Note = "the object does not exist any more"
	case len(f.Settings) == 0 && !f.Present:
		f.Note = "the object does not have the field, and no write that is kept has set or removed it"
	case len(f.Settings) == 0:
		f.Note = "no recorded write set the field: traces begin with the server's start, the oldest are dropped when there are too many, and status written by the cluster's own components is recorded without contents"
	case f.Settings[0].Present != f.Present || !reflect.DeepEqual(f.Settings[0].Value, f.Value):
		f.Note = "a later write, whose contents are not recorded, changed the field"
	}
	return f, nil
}
