// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

const (
	installed = 1000 // definitions that are installed together
	idling    = 2000 // definitions that lie idle
	perGroup  = 20   // definitions of a group, as providers of infrastructure have them
	aggregate = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	asTable   = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
)

// manyDefinitions measures the installation of a thousand definitions and its effect on kubectl get, and the memory of two
// thousand unused ones, in a server with all its controllers.
func manyDefinitions(ctx context.Context, b *bench, t *load.Target, add adder) error {
	ns, err := t.Namespace(ctx)
	if err != nil {
		return err
	}
	at := func(i int) *definition {
		return &definition{group: fmt.Sprintf("g%d.%s.example.com", i/perGroup, ns), plural: fmt.Sprintf("things%d", i),
			kind: fmt.Sprintf("Thing%d", i), fields: 40, rule: true}
	}
	one := at(0)
	client, err := t.Client(1)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	if _, err := one.use(ctx, client, t, ns); err != nil {
		return err
	}
	few, err := asked(ctx, b, t, one, ns)
	if err != nil {
		return err
	}
	install := func(from, to int) (time.Duration, error) {
		began := time.Now()
		err := load.Many(ctx, t, 4, to-from, func(ctx context.Context, client *http.Client, i int) error {
			return load.Expect(ctx, client, http.StatusCreated, "POST", t.Config.Host+definitionsPath, "application/json", at(from+i-1).document())
		})
		return time.Since(began), err
	}
	before, err := t.Cpu()
	if err != nil {
		return err
	}
	took, err := install(1, installed)
	if err != nil {
		return err
	}
	after, err := t.Cpu()
	if err != nil {
		return err
	}
	add(fmt.Sprintf("%s CRDs (40 fields, one CEL rule) installed, 4 clients", report.Number(installed)),
		report.Value{Unit: "s", Number: took.Seconds(), Bound: report.AtMost(10)},
		report.Value{Name: "CPU each", Unit: "ms", Number: load.Ms(after-before) / (installed - 1)})
	lots, err := asked(ctx, b, t, one, ns)
	if err != nil {
		return err
	}
	compared := func(what string, few, many float64, limit report.Bound) {
		add(fmt.Sprintf("%s, %s CRDs", what, report.Number(installed)), report.Value{Unit: "ms", Number: many, Bound: limit},
			report.Value{Name: "with one CRD", Unit: "ms", Number: few})
	}
	compared("LIST of one CRD's objects as Table", few.table, lots.table, report.AtMost(max(1.5*few.table, few.table+1)))
	compared("discovery that has not changed since (304)", few.unchanged, lots.unchanged, report.Bound{})
	compared("discovery, aggregated, read whole", few.discovery, lots.discovery, report.Bound{})
	if err := nth(ctx, t, at, installed, add); err != nil {
		return err
	}
	if _, err := install(installed+nthTimes, idling); err != nil {
		return err
	}
	h, err := t.Collected(ctx)
	if err != nil {
		return err
	}
	// What nothing lives in is given back some seconds after the last work: ten seconds of a watch that the server itself ends.
	if err := load.Expect(ctx, client, http.StatusOK, "GET", t.Config.Host+"/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=10",
		"", ""); err != nil {
		return err
	}
	resident, _, err := t.Memory()
	if err != nil {
		return err
	}
	add(fmt.Sprintf("%s CRDs idle: the whole process, all controllers in", report.Number(idling)),
		report.Value{Name: "resident", Unit: "MB", Number: float64(resident) / (1 << 20), Bound: report.AtMost(300)},
		report.Value{Name: "live", Unit: "MB", Number: h.Live / 1024})
	for _, d := range []struct{ what, path string }{{"/openapi/v2", "/openapi/v2"}, {"/openapi/v3", "/openapi/v3"}} {
		began := time.Now()
		size, _, err := read(ctx, client, t.Config.Host+d.path, "application/json", "")
		if err != nil {
			return err
		}
		add(fmt.Sprintf("%s with %s CRDs, asked for the first time", d.what, report.Number(idling)),
			report.Value{Unit: "ms", Number: load.Ms(time.Since(began))}, report.Value{Text: fmt.Sprintf("%.1f MB", float64(size)/1e6)})
	}
	if h, err = t.Collected(ctx); err != nil {
		return err
	}
	if resident, _, err = t.Memory(); err != nil {
		return err
	}
	add("the same process thereafter", report.Value{Name: "resident", Unit: "MB", Number: float64(resident) / (1 << 20)},
		report.Value{Name: "live", Unit: "MB", Number: h.Live / 1024})
	return nil
}

const (
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	nthTimes        = 20
)

// nth is what one more definition costs where there are many: its create, and discovery and its group's OpenAPI thereafter.
func nth(ctx context.Context, t *load.Target, at func(int) *definition, from int, add adder) error {
	client, err := t.Client(1)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	var create, discover, document []time.Duration
	timed := func(to *[]time.Duration, do func() error) error {
		began := time.Now()
		err := do()
		*to = append(*to, time.Since(began))
		return err
	}
	for i := range nthTimes {
		d := at(from + i)
		if err := errors.Join(
			timed(&create, func() error {
				return load.Expect(ctx, client, http.StatusCreated, "POST", t.Config.Host+definitionsPath, "application/json", d.document())
			}),
			timed(&discover, func() error {
				_, _, err := read(ctx, client, t.Config.Host+"/apis", aggregate, "")
				return err
			}),
			timed(&document, func() error {
				_, _, err := read(ctx, client, t.Config.Host+"/openapi/v3/apis/"+d.group+"/v1", "application/json", "")
				return err
			}),
		); err != nil {
			return err
		}
	}
	add(fmt.Sprintf("one more CRD where there are %s, median of %d", report.Number(float64(from)), nthTimes),
		report.Value{Name: "create", Unit: "ms", Number: load.Quantile(create, 50)},
		report.Value{Name: "discovery", Unit: "ms", Number: load.Quantile(discover, 50)},
		report.Value{Name: "OpenAPI of its group", Unit: "ms", Number: load.Quantile(document, 50)})
	return nil
}

// questions is what kubectl get asks, in milliseconds.
type questions struct{ table, unchanged, discovery float64 }

func asked(ctx context.Context, b *bench, t *load.Target, d *definition, ns string) (q questions, err error) {
	client, err := t.Client(1)
	if err != nil {
		return q, err
	}
	defer client.CloseIdleConnections()
	_, tag, err := read(ctx, client, t.Config.Host+"/apis", aggregate, "")
	if err != nil {
		return q, err
	}
	median := func(url, accept, tag string) (float64, error) {
		var all []time.Duration
		for range 100 {
			began := time.Now()
			if _, _, err := read(ctx, client, url, accept, tag); err != nil {
				return 0, err
			}
			all = append(all, time.Since(began))
		}
		return load.Quantile(all, 50), nil
	}
	if q.table, err = median(d.objects(t, ns), asTable, ""); err != nil {
		return q, err
	}
	if q.unchanged, err = median(t.Config.Host+"/apis", aggregate, tag); err != nil {
		return q, err
	}
	q.discovery, err = median(t.Config.Host+"/apis", aggregate, "")
	return q, err
}

// read does a GET as kubectl does, and returns the answer's size and tag.
func read(ctx context.Context, client *http.Client, url, accept, tag string) (int64, string, error) {
	request, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Accept", accept)
	request.Header.Set("Accept-Encoding", "gzip")
	if tag != "" {
		request.Header.Set("If-None-Match", tag)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	n, err := io.Copy(io.Discard, response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return 0, "", err
	}
	if response.StatusCode != http.StatusOK && !(tag != "" && response.StatusCode == http.StatusNotModified) {
		return 0, "", fmt.Errorf("GET %s: status %d", url, response.StatusCode)
	}
	return n, response.Header.Get("Etag"), nil
}

// customMemory is what many custom resources take, beside as many ConfigMaps of the same size.
func customMemory(ctx context.Context, b *bench, t *load.Target, add adder) error {
	base, err := stored(ctx, t, few)
	if err != nil {
		return err
	}
	client, err := t.Client(1)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ns, err := t.Namespace(ctx)
	if err != nil {
		return err
	}
	d := definition{group: ns + ".example.com", plural: "widgets", kind: "Widget", fields: 10, rule: true}
	if _, err := d.use(ctx, client, t, ns); err != nil {
		return err
	}
	begin, err := t.Collected(ctx)
	if err != nil {
		return err
	}
	if err := fill(ctx, t, base, few, few+b.Objects); err != nil {
		return err
	}
	plain, err := t.Collected(ctx)
	if err != nil {
		return err
	}
	var serial atomic.Int64
	custom := d.objects(t, ns)
	if err := load.Many(ctx, t, 32, b.Objects, func(ctx context.Context, client *http.Client, _ int) error {
		return load.Expect(ctx, client, http.StatusCreated, "POST", custom, "application/json",
			d.object(fmt.Sprint("m-", serial.Add(1)), kilobyte))
	}); err != nil {
		return err
	}
	end, err := t.Collected(ctx)
	if err != nil {
		return err
	}
	ofPlain, ofCustom := (plain.Live-begin.Live)/float64(b.Objects), (end.Live-plain.Live)/float64(b.Objects)
	add(fmt.Sprintf("memory per object of 1 KB, %s stored: ConfigMap and custom resource", report.Number(float64(b.Objects))),
		report.Value{Text: fmt.Sprintf("live %s and %s KB", report.Number(ofPlain), report.Number(ofCustom))},
		report.Value{Name: "custom / ConfigMap", Unit: "×", Number: ofCustom / ofPlain, Bound: report.AtMost(1.5)},
		report.Value{Name: "resident", Unit: "×", Number: (end.Resident - plain.Resident) / (plain.Resident - begin.Resident)})
	return nil
}
