// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"testing"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// A registration that could always be read has only the condition Available. One that could not be read has both
// conditions from then on.
func TestReadable(t *testing.T) {
	well := finding{apiregistrationv1.Available, apiregistrationv1.ConditionTrue, "Passed", ""}
	r := &apiregistrationv1.APIService{}
	for _, c := range []struct {
		name  string
		read  *reading
		found finding
		want  string // the condition afterwards
	}{
		{"nobody asked", nil, well, ""},
		{"it is read", &reading{}, well, ""},
		{"it is not there, and so not read", &reading{"NoAnswer", "https://a"}, refusal("FailedDiscoveryCheck", "no"), ""},
		{"it is not read", &reading{"NotUnderstood", "https://a"}, well, "False NotUnderstood https://a"},
		{"it is not there", &reading{"NoAnswer", "https://b"}, refusal("FailedDiscoveryCheck", "no"), "False NotUnderstood https://a"},
		{"it is back, and nobody asked yet", nil, well, "False NotUnderstood https://a"},
		{"it is read again", &reading{}, well, "True Read the server's discovery and OpenAPI documents are readable"},
	} {
		if f, ok := c.read.finding(r, c.found); ok {
			f.set(r, r.CreationTimestamp)
		}
		got := ""
		if c := condition(r, Readable); c != nil {
			got = string(c.Status) + " " + c.Reason + " " + c.Message
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
