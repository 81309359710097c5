// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// definition is a CRD of the benchmark: so many fields, f1 to fN, and a rule over two of them. No two say the same, so that
// nothing is gained by sharing what is alike.
type definition struct {
	group, plural, kind string
	fields              int
	rule                bool
}

func (d *definition) document() string {
	var props strings.Builder
	props.WriteString(`"data":{"type":"string"}`)
	for i := 1; i <= d.fields; i++ {
		switch i % 4 {
		case 0:
			fmt.Fprintf(&props, `,"f%d":{"type":"string","maxLength":64,"description":"What field %d of a %s is for."}`, i, i, d.kind)
		case 1:
			fmt.Fprintf(&props, `,"f%d":{"type":"integer","format":"int32","minimum":0}`, i)
		case 2:
			fmt.Fprintf(&props, `,"f%d":{"type":"boolean"}`, i)
		case 3:
			fmt.Fprintf(&props, `,"f%d":{"type":"array","maxItems":16,"items":{"type":"string","maxLength":64}}`, i)
		}
	}
	rule := ""
	if d.rule {
		rule = `,"x-kubernetes-validations":[{"rule":"!has(self.f1) || !has(self.f5) || self.f1 <= self.f5","message":"f1 is at most f5"}]`
	}
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[2]s.%[1]s"},`+
		`"spec":{"group":%[1]q,"scope":"Namespaced","names":{"plural":%[2]q,"kind":%[3]q},"versions":[{"name":"v1","served":true,"storage":true,`+
		`"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{%[4]s}%[5]s}}}}}]}}`,
		d.group, d.plural, d.kind, props.String(), rule)
}

func (d *definition) object(name, data string) string {
	return fmt.Sprintf(`{"apiVersion":"%s/v1","kind":%q,"metadata":{"name":%q},"spec":{"f1":1,"f2":true,"f3":["a"],"f5":5,"data":%q}}`,
		d.group, d.kind, name, data)
}

func (d *definition) objects(t *load.Target, ns string) string {
	return fmt.Sprintf("%s/apis/%s/v1/namespaces/%s/%s", t.Config.Host, d.group, ns, d.plural)
}

// use creates the definition and its first object, and returns how long the object took from when the definition's create
// had returned. A server that does not serve the kind at once is asked again.
func (d *definition) use(ctx context.Context, client *http.Client, t *load.Target, ns string) (time.Duration, error) {
	if err := load.Expect(ctx, client, http.StatusCreated, "POST", t.Config.Host+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"application/json", d.document()); err != nil {
		return 0, err
	}
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for began := time.Now(); ; {
		status, answer, err := load.Say(ctx, client, "POST", d.objects(t, ns), "application/json", d.object("first", "x"))
		if err != nil {
			return 0, err
		}
		if status == http.StatusCreated {
			return time.Since(began), nil
		}
		if status != http.StatusNotFound && status != http.StatusTooManyRequests || time.Since(began) > 30*time.Second {
			return 0, fmt.Errorf("create first %s: status %d: %.300s", d.kind, status, answer)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// remove deletes the definition, and with it the objects.
func (d *definition) remove(ctx context.Context, client *http.Client, t *load.Target) error {
	return load.Expect(ctx, client, http.StatusOK, "DELETE",
		t.Config.Host+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+d.plural+"."+d.group, "", "")
}

// several makes up to n definitions, as many as fit in a while.
func several(ctx context.Context, t *load.Target, n, fields int, while time.Duration) (_ []time.Duration, undo func() error, err error) {
	ns, err := t.Namespace(ctx)
	if err != nil {
		return nil, nil, err
	}
	client, err := t.Client(1)
	if err != nil {
		return nil, nil, err
	}
	var took []time.Duration
	var made []definition
	undo = func() error {
		defer client.CloseIdleConnections()
		var errs []error
		for _, d := range made {
			errs = append(errs, d.remove(ctx, client, t))
		}
		return errors.Join(errs...)
	}
	for began := time.Now(); len(took) < n && (len(took) < 3 || time.Since(began) < while); {
		d := definition{group: ns + ".example.com", plural: fmt.Sprintf("things%d", len(took)), kind: fmt.Sprintf("Thing%d", len(took)),
			fields: fields, rule: true}
		made = append(made, d)
		one, err := d.use(ctx, client, t, ns)
		if err != nil {
			return nil, nil, errors.Join(err, undo())
		}
		took = append(took, one)
	}
	return took, undo, nil
}

// definitions is a CRD's create until its first object is accepted.
func definitions(ctx context.Context, b *bench, t *load.Target, add adder) error {
	took, undo, err := several(ctx, t, 20, 40, 10*time.Second)
	if err != nil {
		return err
	}
	add(fmt.Sprintf("CRD (40 fields, one CEL rule): create returns → first CR accepted, median of %d", len(took)),
		report.Value{Unit: "ms", Number: load.Quantile(took, 50), Bound: report.AtMost(10)})
	return undo()
}

// definitionMemory is what a CRD with an object takes, after garbage was collected.
func definitionMemory(ctx context.Context, b *bench, t *load.Target, add adder) error {
	_, undo, err := several(ctx, t, 3, 40, time.Minute) // what the first ones make for all
	if err != nil {
		return err
	}
	before, err := t.Collected(ctx)
	if err != nil {
		return err
	}
	took, undoMore, err := several(ctx, t, 200, 40, 20*time.Second)
	if err != nil {
		return err
	}
	after, err := t.Collected(ctx)
	if err != nil {
		return err
	}
	add(fmt.Sprintf("memory per CRD (40 fields, one CEL rule, one object written), %d of them", len(took)),
		after.Per(before, len(took), report.AtMost(200))...)
	return errors.Join(undoMore(), undo())
}
