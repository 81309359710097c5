// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// The event of a request that takes more than half a second contains its latencies; other events do not.
func TestSlowRequestsTellWhatTheySpendTimeOn(t *testing.T) {
	const prefix = "apiserver.latency.k8s.io/"
	for name, c := range map[string]struct {
		took time.Duration
		want []string
	}{
		"slow": {time.Second, []string{prefix + "authorization", prefix + "etcd", prefix + "mutating-webhook", prefix + "response-write",
			prefix + "total"}},
		"quick": {0, nil},
	} {
		var out bytes.Buffer
		a := New(policyOf(auditinternal.LevelMetadata), quiet, NewLog(&out, LogOptions{}))
		w := httptest.NewRecorder()
		r := With(w, httptest.NewRequest(http.MethodPost, "/", nil))
		r = r.WithContext(a.With(r.Context()))
		a.Serve(w, r, &authorizer.AttributesRecord{Verb: "create"}, time.Now().Add(-c.took), false,
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				request.TrackAuthorizationLatency(r.Context(), time.Millisecond)
				request.TrackStorageLatency(r.Context(), 2*time.Millisecond)
				request.TrackStorageLatency(r.Context(), 3*time.Millisecond)
				spent, _ := request.LatencyTrackersFrom(r.Context())
				spent.MutatingWebhookTracker.TrackDuration(time.Second)
				fine(w, r)
			}))
		lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
		var last auditv1.Event
		if err := json.Unmarshal(lines[len(lines)-1], &last); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out.Bytes())
		}
		var keys []string
		for key, value := range last.Annotations {
			if d, err := time.ParseDuration(value); err != nil || d <= 0 {
				t.Errorf("%s: %s is %q", name, key, value)
			}
			keys = append(keys, key)
		}
		if slices.Sort(keys); !slices.Equal(keys, c.want) {
			t.Errorf("%s: got %v, want %v", name, keys, c.want)
		}
		if got := last.Annotations[prefix+"etcd"]; c.want != nil && got != "5ms" {
			t.Errorf("%s: the store took %s", name, got)
		}
	}
}
