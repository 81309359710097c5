// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/test/recordings"
)

// recorded names the environment variable that says where the recordings of kube-apiserver are; they lie beside the checkout.
const recorded = "MORTISE_TEST_RECORDINGS"

// whoAsks are the exchanges that a server may answer otherwise than recorded, since who asks, and where, is another one: an administrator
// with a certificate, not with a token.
var whoAsks = map[string]bool{
	"bad-token": true,
	"kind/certificates.k8s.io/v1/certificatesigningrequests/get-yaml":   true,
	"kind/certificates.k8s.io/v1/certificatesigningrequests/get-table":  true,
	"kind/certificates.k8s.io/v1/certificatesigningrequests/list-table": true,
	"path/api": true,
}

// TestHandOverRecordings sends the recorded requests to Mortise and kube-apiserver on one etcd: reads to both, and writes by turns, a kind
// to the one and the next kind to the other. Then it exchanges the servers. Both answer as kube-apiserver did when it was recorded.
func TestHandOverRecordings(t *testing.T) {
	binary := kubeAPIServer(t)
	file := cmp.Or(os.Getenv(recorded), "../../../shared/recordings/upstream-1.37.1.jsonl")
	for _, first := range []string{"Mortise", "kube-apiserver"} {
		t.Run(first+" first", func(t *testing.T) { replay(t, binary, file, first == "kube-apiserver") })
	}
}

// replay sends the requests to two new servers. The first kind is written to kube-apiserver if swapped.
func replay(t *testing.T, binary, file string, swapped bool) {
	c := launch(t, 1).ready(t)
	defer c.remove()
	dir := t.TempDir()
	m, err := start(t, dir, "--store", "etcd", "--etcd-servers", strings.Join(c.urls, ","), "--advertise-address", "192.0.2.10",
		"--controllers", "none")
	must(t, err)
	servers := []*server{m, upstream(t, c, dir, binary, m, "--allow-privileged=false")} // as it was recorded
	names := []string{"Mortise", "kube-apiserver"}
	turn := 0
	if swapped {
		turn = 1
	}
	for _, e := range recordings.Before() {
		recordings.Answer(t, m.client, m.url, e)
	}
	var same, all [2]int
	area := ""
	must(t, recordings.Read(file, func(e recordings.Exchange) {
		if area != e.Area() {
			area, turn = e.Area(), 1-turn
		}
		to := []int{turn}
		if e.Method == http.MethodGet || e.Method == http.MethodHead || e.Method == "WAIT" {
			to = []int{turn, 1 - turn}
		}
		for _, i := range to {
			s := servers[i]
			say := func() map[string]any {
				got := withoutCredential(recordings.Answer(t, s.client, s.url, e)).(map[string]any)
				if names[i] == "kube-apiserver" && e.Recorded() {
					orderAsRecorded(got, e.Answer)
				}
				return got
			}
			got := say()
			// The other server learns of a definition by its informers, and answers as recorded then.
			for began := time.Now(); !alike(e, got) && len(to) == 2 && time.Since(began) < patience; {
				got = say()
			}
			if !e.Recorded() {
				continue
			}
			all[i]++
			if alike(e, got) {
				same[i]++
			} else if !whoAsks[e.ID] {
				t.Errorf("%s answers %s otherwise: %s %s\n%s", names[i], e.ID, e.Method, e.Path,
					strings.Join(differences("", any(e.Answer), any(got)), "\n"))
			}
		}
	}))
	for i, name := range names {
		t.Logf("%s answers %d of %d requests as recorded", name, same[i], all[i])
	}
}

// orderAsRecorded gives the custom resources of a group the order of a recorded answer: kube-apiserver lists them as a Go map has them.
func orderAsRecorded(got, recorded map[string]any) {
	resources := func(answer map[string]any) []any {
		body, ok := answer["body"].(map[string]any)
		if !ok || body["kind"] != "APIResourceList" {
			return nil
		}
		all, _ := body["resources"].([]any)
		return all
	}
	name := func(resource any) string {
		one, _ := resource.(map[string]any)
		of, _ := one["name"].(string)
		return of
	}
	place := map[string]int{}
	for i, r := range resources(recorded) {
		place[name(r)] = i
	}
	slices.SortStableFunc(resources(got), func(a, b any) int { return place[name(a)] - place[name(b)] })
}

// withoutCredential drops the mark of the certificate by which the administrator of a test is known.
func withoutCredential(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, x := range v {
			extra, ok := x.(map[string]any)
			if ok && key == "extra" && len(extra) == 1 && extra["authentication.kubernetes.io/credential-id"] != nil {
				delete(v, key)
				continue
			}
			v[key] = withoutCredential(x)
		}
	case []any:
		for i := range v {
			v[i] = withoutCredential(v[i])
		}
	}
	return v
}

// patience is how long a read is repeated that is not answered as recorded.
const patience = 5 * time.Second

func alike(e recordings.Exchange, got map[string]any) bool {
	if e.Method == "WAIT" {
		return got["status"] == float64(http.StatusOK)
	}
	return !e.Recorded() || whoAsks[e.ID] || reflect.DeepEqual(e.Answer, got)
}
