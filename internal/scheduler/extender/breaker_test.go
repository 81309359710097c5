// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extender_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/scheduler/extender"
)

// TestBreaker: an extender that is dead, slow or lies is not asked for a while after some failures in a row; one question tries
// it then. Without a breaker it is asked every time.
func TestBreaker(t *testing.T) {
	snapshot, _ := cluster()
	for _, c := range []struct {
		name   string
		broken func(w http.ResponseWriter, r *http.Request)
		err    string
	}{
		{"dead", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
		{"slow", func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, "Client.Timeout exceeded"},
		{"lying", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"NodeNames":["z"]}`) }, `claims a filtered node "z"`},
		{"complaining", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"Error":"no idea"}`) }, "no idea"},
	} {
		for _, failures := range []int{0, 3} {
			t.Run(fmt.Sprintf("%s, breaker after %d", c.name, failures), func(t *testing.T) {
				t.Parallel()
				var asked atomic.Int32
				var mended atomic.Bool
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					asked.Add(1)
					if mended.Load() {
						fmt.Fprint(w, `{"NodeNames":["b"]}`)
						return
					}
					c.broken(w, r)
				}))
				defer s.Close()
				now := clocktesting.NewFakeClock(time.Unix(0, 0))
				ledger := extension.NewLedger(now)
				timeout := 30 * time.Second
				if c.name == "slow" {
					timeout = time.Second // in which a busy machine still brings the question to the server
				}
				all, err := extender.All(t.Context(), []configv1.Extender{{
					URLPrefix: s.URL, FilterVerb: "filter", NodeCacheCapable: true, HTTPTimeout: metav1.Duration{Duration: timeout},
				}}, extender.Options{Ledger: ledger, Failures: failures, Pause: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				for i := range 5 {
					_, _, _, err := all[0].Filter(newcomer(), snapshot.Nodes())
					open := failures > 0 && i >= failures
					if err == nil || errors.Is(err, extension.ErrOpen) != open || !strings.Contains(err.Error(), c.err) {
						t.Errorf("question %d is answered %v, want an error with %s, kept back: %v", i, err, c.err, open)
					}
				}
				want, state := int32(5), extension.Failing
				if failures > 0 {
					want, state = int32(failures), extension.Open
				}
				if got := asked.Load(); got != want {
					t.Errorf("it was asked %d times, want %d", got, want)
				}
				if e := ledger.Snapshot(); len(e) != 1 || e[0].State != state || e[0].Failures != int64(want) {
					t.Errorf("the ledger has %+v, want %s", e, state)
				}
				if c.name == "slow" {
					return // that it is quick enough afterwards nobody can promise
				}
				mended.Store(true)
				now.Step(2 * time.Minute)
				if left, _, _, err := all[0].Filter(newcomer(), snapshot.Nodes()); err != nil || len(left) != 1 {
					t.Errorf("mended, it is answered %v, %v", names(left), err)
				}
			})
		}
	}
}
