// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/aggregate"
	"github.com/mortise-dev/mortise/resource"
)

// A registration whose service is this server is detected: its condition reports the loop, and it never becomes
// available. If a user sets it to available, a request makes one round.
func TestRegistrationThatLeadsBack(t *testing.T) {
	a := startAggregating(t, nil)
	at, err := url.Parse(a.url)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	port := int32(number)
	a.register(func(r *apiregistrationv1.APIService) { r.Spec.Service.Port = &port })
	a.reason("FailedDiscoveryCheck")
	if m := a.Aggregator().Services()[0].Message; !strings.Contains(m, a.url+"/apis/agg.io/v1: the service leads back to this API server") {
		t.Errorf("the condition says %q", m)
	}
	backend, ok := a.Backend().(aggregate.Backend)
	if !ok {
		t.Fatalf("%T writes no status", a.Backend())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for { // until no probe resets the condition between the two requests
		if err := backend.UpdateStatus(t.Context(), apiservices, "", "v1.agg.io", "liar", func(obj resource.Object) {
			c := &obj.(*apiregistrationv1.APIService).Status.Conditions[0]
			c.Status, c.Reason, c.LastTransitionTime = apiregistrationv1.ConditionTrue, "Passed", metav1.Now().Rfc3339Copy()
		}); err != nil {
			t.Fatal(err)
		}
		resp, body := a.say(a.client, "GET", things)
		if resp.StatusCode == http.StatusLoopDetected {
			if !strings.Contains(resp.Header.Get("Warning"), "APIService v1.agg.io") || !strings.Contains(body, "leads back") {
				t.Errorf("%q %q", resp.Header.Get("Warning"), body)
			}
			break
		}
		if resp.StatusCode != http.StatusServiceUnavailable || ctx.Err() != nil {
			t.Fatalf("%d %q", resp.StatusCode, body)
		}
	}
	a.reason("FailedDiscoveryCheck")
	if resp, _ := a.say(a.client, "GET", "/api/v1/namespaces"); resp.StatusCode != http.StatusOK {
		t.Errorf("namespaces: %d", resp.StatusCode)
	}
}
