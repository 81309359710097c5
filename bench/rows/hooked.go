// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// hookRounds is how often the three take turns: what else the machine does meanwhile falls upon all. A policy adds a tenth of a create,
// which nine rounds told to within 10 µs.
const hookRounds = 27

// hooked is what one webhook on this machine, and one policy, add to a create. The creates are dry runs: the disk would hide it. The
// webhook's own time is taken off. What no webhook costs is too little to see from outside: BenchmarkWebhook/none.
func hooked(ctx context.Context, b *bench, t *load.Target, add adder) error {
	var own, asked atomic.Int64
	var review atomic.Pointer[[]byte] // one that was asked
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		begun := time.Now()
		body, err := io.ReadAll(q.Body)
		var r struct{ Request struct{ UID string } }
		if err := errors.Join(err, json.Unmarshal(body, &r)); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.CompareAndSwap(nil, &body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true}}`, r.Request.UID)
		own.Add(int64(time.Since(begun)))
		asked.Add(1)
	}))
	defer hook.Close()
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}))
	ns, err := t.Namespace(ctx)
	if err != nil {
		return err
	}
	client, err := t.Client(1)
	if err != nil {
		return err
	}
	const group = "/apis/admissionregistration.k8s.io/v1/"
	const rules = `[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]`
	type object struct{ path, body string }
	ways := [][]object{
		nil,
		{{"validatingwebhookconfigurations",
			fmt.Sprintf(`{"metadata":{"name":"bench"},"webhooks":[{"name":"bench.example.com","clientConfig":{"url":%q,"caBundle":%q},"rules":%s,"sideEffects":"None","admissionReviewVersions":["v1"]}]}`, hook.URL, ca, rules)}},
		{{"validatingadmissionpolicies", fmt.Sprintf(
			`{"metadata":{"name":"bench"},"spec":{"matchConstraints":{"resourceRules":%s},"validations":[{"expression":"!has(object.metadata.labels) || object.metadata.labels.all(k, k != 'forbidden')"}]}}`, rules)},
			{"validatingadmissionpolicybindings", `{"metadata":{"name":"bench"},"spec":{"policyName":"bench","validationActions":["Deny"]}}`}},
	}
	results := make([][]load.Result, len(ways))
	base := t.Config.Host + "/api/v1/namespaces/" + ns + "/configmaps?dryRun=All"
	for range hookRounds {
		for i, way := range ways {
			for _, o := range way {
				if err := load.Expect(ctx, client, http.StatusCreated, "POST", t.Config.Host+group+o.path, "application/json", o.body); err != nil {
					return err
				}
			}
			r, err := load.Loop(ctx, t, 1, b.length()/8, func(ctx context.Context, client *http.Client) error {
				return load.Expect(ctx, client, http.StatusCreated, "POST", base, "application/json", configMap("c", kilobyte))
			})
			results[i] = append(results[i], r)
			for _, o := range way {
				err = errors.Join(err, load.Expect(ctx, client, http.StatusOK, "DELETE", t.Config.Host+group+o.path+"/bench", "application/json", ""))
			}
			if err != nil {
				return err
			}
		}
	}
	if asked.Load() == 0 {
		return errors.New("measure webhooks: the webhook was not asked")
	}
	adds := func(way []load.Result) float64 { // in each round, over the creates of that round
		var more []load.Result
		for i, r := range way {
			more = append(more, load.Result{P50: 1000 * (r.P50 - results[0][i].P50)})
		}
		return middle(more).P50
	}
	ownTime := func() float64 { return float64(own.Load()) / float64(asked.Load()) / 1000 }
	hookTime := ownTime()
	own.Store(0)
	asked.Store(0)
	took, err := posted(ctx, plain{hook.URL, *review.Load(), b.length()})
	if err != nil {
		return err
	}
	add("one create as a dry run, no webhook and no policy", report.Value{Name: "p50", Unit: "ms", Number: middle(results[0]).P50})
	add("  one webhook of this machine adds, over its own time",
		report.Value{Unit: "µs", Number: adds(results[1]) - hookTime, Bound: report.AtMost(300)})
	add("    of that, a POST of the same review by net/http from another process, over that time",
		report.Value{Unit: "µs", Number: float64(took)/1000 - ownTime()})
	add("  one policy adds", report.Value{Unit: "µs", Number: adds(results[2]), Bound: report.AtMost(30)})
	return nil
}
