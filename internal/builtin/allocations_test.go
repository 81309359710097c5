// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/mortise-dev/mortise/store"
)

// TestAllocationsOfClientsThatLeave disconnects the client of a Service's create and delete while each of the request's syncs is under
// way. Whatever became durable, a Service that exists keeps its cluster IP and node port, and those of one that does not are free.
func TestAllocationsOfClientsThatLeave(t *testing.T) {
	const most = 30 // syncs of one request
	for which, method := range []string{http.MethodPost, http.MethodDelete} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			s := newHeldStore(t)
			m := newMember(t, store.New(s.engine))
			m.does(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"ns"}}`)
			const services = space + "services"
			body := func(name, spec string) string {
				return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"type":"NodePort",%s}}`, name, spec)
			}
			cut := 0
			for n := 1; ; n++ {
				if n > most {
					t.Fatalf("a request causes more than %d syncs", most)
				}
				ip, port := fmt.Sprintf("10.96.%d.%d", 7+which, n), 30100+100*which+n
				create := body("s", fmt.Sprintf(`"clusterIP":%q,"ports":[{"port":80,"nodePort":%d}]`, ip, port))
				path := services
				if method == http.MethodDelete {
					m.does(http.MethodPost, services, create)
					path += "/s"
				}
				w, held := s.disconnect(m, n, method, path, map[string]string{http.MethodPost: create}[method])
				if held {
					cut++
				}
				want := http.StatusCreated
				if m.say(t.Context(), "root", http.MethodGet, services+"/s", "").Code == http.StatusOK {
					want = http.StatusUnprocessableEntity
				}
				for what, spec := range map[string]string{
					"cluster IP": fmt.Sprintf(`"clusterIP":%q,"ports":[{"port":80}]`, ip),
					"node port":  fmt.Sprintf(`"ports":[{"port":80,"nodePort":%d}]`, port),
				} {
					got := m.say(t.Context(), "root", http.MethodPost, services, body("other", spec))
					if got.Code != want {
						t.Errorf("sync %d, the request was answered %d: another Service with its %s gets %d, want %d: %s", n, w.Code, what, got.Code,
							want, got.Body)
					}
					if got.Code == http.StatusCreated {
						m.does(http.MethodDelete, services+"/other", "")
					}
				}
				if want != http.StatusCreated {
					m.does(http.MethodDelete, services+"/s", "")
				}
				if !held {
					break
				}
			}
			if cut == 0 {
				t.Error("no sync was held")
			}
			t.Logf("%d syncs held", cut)
		})
	}
}
