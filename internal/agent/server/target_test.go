// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"io"
	"net/http"
	"testing"
)

// TestTargets: the node is asked for the pod that was found and for no other of its name, whether the path has a UID or not. A UID of
// another pod finds nothing.
func TestTargets(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct{ method, before, after string }{
		{"GET", "exec/default/p", "/c?command=x&output=1"},
		{"POST", "exec/default/p", "/c?command=x&output=1"},
		{"GET", "attach/default/p", "/c?output=1"},
		{"POST", "attach/default/p", "/c?output=1"},
		{"POST", "run/default/p", "/c?cmd=x"},
		{"GET", "portForward/default/p", "?port=80"},
		{"POST", "portForward/default/p", "?port=80"},
		{"GET", "containerLogs/default/p", "/c"}, // it has no path with a UID
	} {
		for _, uid := range []string{"", "/u1", "/u2"} {
			if uid != "" && c.before == "containerLogs/default/p" {
				continue
			}
			r, err := http.NewRequestWithContext(t.Context(), c.method, f.host+"/"+c.before+uid+c.after, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := f.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			select {
			case target := <-f.node.targets:
				if uid == "/u2" || target.UID != "u1" || target.Namespace != "default" || target.Pod != "p" {
					t.Errorf("%s %s%s: the node was asked for %+v", c.method, c.before, uid, target)
				}
			default:
				if uid != "/u2" || resp.StatusCode != http.StatusNotFound {
					t.Errorf("%s %s%s: %d, and the node was not asked", c.method, c.before, uid, resp.StatusCode)
				}
			}
		}
	}
}
