// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/tracetext"
)

const (
	reportedWrites  = 10 // of each kind a failed test logs, a line each
	explainedWrites = 2  // of an object a failed test logs all that is known
	reportedObjects = 5  // of those that were written last a failed test logs the writes
)

// report logs what is known about an object that a test has waited for in vain.
func report(s *Server, t T, w *watched) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	defer cancel()
	what := w.resource.Resource + " " + w.name
	u, err := w.client.Get(ctx, w.name, metav1.GetOptions{})
	if err != nil {
		t.Logf("%s: %v", what, err)
	} else {
		u.SetManagedFields(nil)
		if text, err := yaml.Marshal(u.Object); err == nil {
			t.Logf("%s is now:\n%s", what, text)
		}
	}
	about := url.Values{trace.ParamGroup: {w.resource.Group}, trace.ParamResource: {w.resource.Resource}, trace.ParamName: {w.name}}
	if w.namespace != "" {
		about.Set(trace.ParamNamespace, w.namespace)
	}
	explainWrites(t, what, reportWrites(ctx, s, t, "writes of "+what, about))
	events, err := s.Client().CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.name", w.name).String(),
	})
	if err == nil {
		for _, e := range events.Items {
			t.Logf("event of %s %s: %s %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Type, e.Reason, e.Message)
		}
	}
	reportWrites(ctx, s, t, "last writes of all", url.Values{})
}

// reportWrites logs writes, a line each, and returns their traces, the newest first. A server that records none has nothing to say.
func reportWrites(ctx context.Context, s *Server, t T, what string, about url.Values) []trace.Trace {
	t.Helper()
	about.Set(trace.ParamLimit, strconv.Itoa(reportedWrites))
	q := s.Client().Discovery().RESTClient().Get().AbsPath(trace.Route)
	for name, values := range about {
		q = q.Param(name, values[0])
	}
	answer, err := q.DoRaw(ctx)
	if err != nil {
		return nil
	}
	var view trace.View
	if err := json.Unmarshal(answer, &view); err != nil {
		t.Logf("read traces: %v", err)
		return nil
	}
	var b strings.Builder
	for i := range view.Traces {
		w := &view.Traces[i]
		fmt.Fprintf(&b, "\n  %s %s %s: %d", w.Time, w.User, w.Method+" "+w.URI, w.Code)
		if w.Refused != "" || w.Message != "" {
			fmt.Fprintf(&b, " refused by %s: %s", w.Refused, w.Message)
		}
	}
	if b.Len() > 0 {
		t.Logf("%s:%s", what, b.String())
	}
	return view.Traces
}

// explainWrites logs what `mortise explain` prints of the newest of an object's writes: what each step changed, who refused, and what the
// server stored.
func explainWrites(t T, what string, writes []trace.Trace) {
	t.Helper()
	for i := range writes[:min(len(writes), explainedWrites)] {
		var b bytes.Buffer
		if err := tracetext.Write(&b, &writes[i]); err != nil {
			t.Logf("explain %s: %v", what, err)
			return
		}
		t.Logf("a write of %s:\n%s", what, b.String())
	}
}

// written names the object of a write.
type written struct{ group, resource, namespace, name string }

// explainObjects logs the writes of the objects that were written last: what does not settle goes on writing them.
func explainObjects(t T, writes []trace.Trace) {
	t.Helper()
	var objects []written
	of := map[written][]trace.Trace{}
	for i := range writes {
		w := &writes[i]
		o := written{w.Group, w.Resource, w.Namespace, w.Name}
		if o.name == "" && len(w.Objects) > 0 { // the server made the name
			o.name = w.Objects[0].Name
		}
		if of[o] == nil {
			objects = append(objects, o)
		}
		of[o] = append(of[o], *w)
	}
	for _, o := range objects[:min(len(objects), reportedObjects)] {
		explainWrites(t, o.resource+" "+o.name, of[o])
	}
}
