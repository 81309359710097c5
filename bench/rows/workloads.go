// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

const (
	manyPods    = 5000
	manySets    = 1000
	manyOwned   = 10_000
	idlePods    = 1000
	mergePatch  = "application/merge-patch+json"
	jsonContent = "application/json"
)

func deployment(name string, replicas int) string {
	return fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%[1]q},"spec":{"replicas":%[2]d,"selector":{"matchLabels":{"app":%[1]q}},`+
		`"template":{"metadata":{"labels":{"app":%[1]q}},"spec":{"terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"10m"}}}]}}}}`, name, replicas)
}

// rollout is what is looked at of a Deployment in a watch.
type rollout struct {
	Type   string
	Object struct {
		Metadata struct{ Name string }
		Spec     struct{ Replicas int }
		Status   struct{ Replicas, AvailableReplicas int }
	}
}

// How a watch decodes objects: completely, or only as much as is needed to count them, so that the measurement does not
// measure the decoder.
const (
	wholeObjects = "application/json"
	namesAlone   = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
)

// watchLines hands each line of a watch to see, until that says that it has seen enough.
func watchLines(ctx context.Context, client *http.Client, url, media string, see func(line []byte) (enough bool, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, load.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", media)
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("watch %s: status %d", url, response.StatusCode)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(make([]byte, 1<<20), 16<<20)
	for lines.Scan() {
		if enough, err := see(lines.Bytes()); enough || err != nil {
			return err
		}
	}
	return fmt.Errorf("watch %s ended too early: %w", url, errors.Join(ctx.Err(), lines.Err()))
}

// watchRollouts hands each version of a Deployment to see.
func watchRollouts(ctx context.Context, client *http.Client, url string, see func(r *rollout) (enough bool)) error {
	return watchLines(ctx, client, url, wholeObjects, func(line []byte) (bool, error) {
		var r rollout
		if err := json.Unmarshal(line, &r); err != nil {
			return false, fmt.Errorf("read event: %w", err)
		}
		return see(&r), nil
	})
}

// watchGone waits until n objects are gone.
func watchGone(ctx context.Context, client *http.Client, url string, n int) error {
	deleted := []byte(`{"type":"DELETED"`)
	return watchLines(ctx, client, url, namesAlone, func(line []byte) (bool, error) {
		if bytes.HasPrefix(line, deleted) {
			n--
		}
		return n == 0, nil
	})
}

// timed is how long something takes from act until seen says that it has happened, and the server's CPU meanwhile.
func timed(ctx context.Context, s *load.Server, act, seen func(ctx context.Context) error) (took, cpu time.Duration, err error) {
	before, err := s.Cpu()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return seen(gctx) })
	g.Go(func() error { return act(gctx) })
	if err := g.Wait(); err != nil {
		return 0, 0, err
	}
	took = time.Since(began)
	after, err := s.Cpu()
	return took, after - before, err
}

func seconds(took, cpu time.Duration, limit float64) []report.Value {
	return []report.Value{{Unit: "s", Number: took.Seconds(), Bound: report.AtMost(limit)}, {Name: "CPU", Unit: "s", Number: cpu.Seconds()}}
}

// workloads are all controllers, the scheduler and simulated nodes at once: one large Deployment up, down and up again,
// then many small ones.
func workloads(ctx context.Context, b *bench, add adder) (err error) {
	s, err := load.Start(ctx, b.binary, "--node", "simulated", "--nodes", "100")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	ns, err := s.Namespace(ctx)
	if err != nil {
		return err
	}
	client, err := s.Client(2)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	base := s.Config.Host + "/apis/apps/v1/namespaces/" + ns + "/deployments"
	for _, step := range []struct {
		what     string
		replicas int
		limit    float64
	}{{"created, until all are available", manyPods, 15}, {"scaled to 0, until the last is gone", 0, 15}, {"and back", manyPods, 15},
		{"to 0 again", 0, 15}} {
		rv, err := newest(ctx, client, base)
		if err != nil {
			return err
		}
		took, cpu, err := timed(ctx, s, func(ctx context.Context) error {
			if step.what[0] == 'c' {
				return load.Expect(ctx, client, http.StatusCreated, "POST", base, jsonContent, deployment("big", step.replicas))
			}
			return load.Expect(ctx, client, http.StatusOK, "PATCH", base+"/big", mergePatch, fmt.Sprintf(`{"spec":{"replicas":%d}}`, step.replicas))
		}, func(ctx context.Context) error {
			return watchRollouts(ctx, client, base+"?watch=1&resourceVersion="+rv, func(r *rollout) bool {
				o := &r.Object
				return o.Spec.Replicas == step.replicas && o.Status.AvailableReplicas == step.replicas && o.Status.Replicas == step.replicas
			})
		})
		if err != nil {
			return err
		}
		add(fmt.Sprintf("a Deployment of %s pods on 100 simulated nodes %s", report.Number(manyPods), step.what),
			seconds(took, cpu, step.limit)...)
	}
	rv, err := newest(ctx, client, base)
	if err != nil {
		return err
	}
	took, cpu, err := timed(ctx, s, func(ctx context.Context) error {
		return load.Many(ctx, &s.Target, 16, manySets, func(ctx context.Context, client *http.Client, i int) error {
			return load.Expect(ctx, client, http.StatusCreated, "POST", base, jsonContent, deployment(fmt.Sprintf("small-%04d", i), 3))
		})
	}, func(ctx context.Context) error {
		ready := map[string]bool{}
		return watchRollouts(ctx, client, base+"?watch=1&resourceVersion="+rv, func(r *rollout) bool {
			if r.Object.Status.AvailableReplicas == 3 {
				ready[r.Object.Metadata.Name] = true
			}
			return len(ready) == manySets
		})
	})
	if err != nil {
		return err
	}
	add(fmt.Sprintf("%s Deployments of 3 created in one go, until all are available", report.Number(manySets)), seconds(took, cpu, 30)...)
	return nil
}

// cleaning is the garbage collector and the deletion of namespaces.
func cleaning(ctx context.Context, b *bench, add adder) (err error) {
	s, err := load.Start(ctx, b.binary, "--node", "simulated")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	client, err := s.Client(2)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ns, err := s.Namespace(ctx)
	if err != nil {
		return err
	}
	base := s.Config.Host + "/api/v1/namespaces/" + ns + "/configmaps"
	_, answer, err := load.Say(ctx, client, "POST", base, jsonContent, `{"metadata":{"name":"owner"}}`)
	if err != nil {
		return err
	}
	var owner struct{ Metadata struct{ UID string } }
	if err := json.Unmarshal(answer, &owner); err != nil {
		return fmt.Errorf("read owner: %w", err)
	}
	if err := load.Many(ctx, &s.Target, 16, manyOwned, func(ctx context.Context, client *http.Client, i int) error {
		return load.Expect(ctx, client, http.StatusCreated, "POST", base, jsonContent, fmt.Sprintf(
			`{"metadata":{"name":"owned-%05d","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":%q}]},"data":{"a":"b"}}`,
			i, owner.Metadata.UID))
	}); err != nil {
		return err
	}
	rv, err := newest(ctx, client, base)
	if err != nil {
		return err
	}
	took, cpu, err := timed(ctx, s, func(ctx context.Context) error {
		return load.Expect(ctx, client, http.StatusOK, "DELETE", base+"/owner", jsonContent, `{"propagationPolicy":"Background"}`)
	}, func(ctx context.Context) error {
		return watchGone(ctx, client, base+"?watch=1&resourceVersion="+rv, manyOwned+1)
	})
	if err != nil {
		return err
	}
	add(fmt.Sprintf("an owner of %s ConfigMaps deleted, until the last is collected", report.Number(manyOwned)), seconds(took, cpu, 5)...)

	if err := load.Many(ctx, &s.Target, 16, manyOwned, func(ctx context.Context, client *http.Client, i int) error {
		resource := []string{"configmaps", "secrets"}[i%2]
		return load.Expect(ctx, client, http.StatusCreated, "POST", s.Config.Host+"/api/v1/namespaces/"+ns+"/"+resource, jsonContent,
			fmt.Sprintf(`{"metadata":{"name":"one-%05d"}}`, i))
	}); err != nil {
		return err
	}
	namespaces := s.Config.Host + "/api/v1/namespaces"
	if rv, err = newest(ctx, client, namespaces); err != nil {
		return err
	}
	took, cpu, err = timed(ctx, s, func(ctx context.Context) error {
		return load.Expect(ctx, client, http.StatusOK, "DELETE", namespaces+"/"+ns, "", "")
	}, func(ctx context.Context) error {
		return watchGone(ctx, client, namespaces+"?watch=1&fieldSelector=metadata.name%3D"+ns+"&resourceVersion="+rv, 1)
	})
	if err != nil {
		return err
	}
	add(fmt.Sprintf("a namespace of %s ConfigMaps and Secrets deleted, until it is gone", report.Number(manyOwned)), seconds(took, cpu, 5)...)
	return nil
}

// idleCluster is the CPU of a cluster in which pods run and nothing happens.
func idleCluster(ctx context.Context, b *bench, add adder) (err error) {
	s, err := load.Start(ctx, b.binary, "--node", "simulated", "--nodes", "100")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	client, err := s.Client(2)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	base := s.Config.Host + "/apis/apps/v1/namespaces/default/deployments"
	rv, err := newest(ctx, client, base)
	if err != nil {
		return err
	}
	if _, _, err := timed(ctx, s, func(ctx context.Context) error {
		return load.Expect(ctx, client, http.StatusCreated, "POST", base, jsonContent, deployment("idle", idlePods))
	}, func(ctx context.Context) error {
		return watchRollouts(ctx, client, base+"?watch=1&resourceVersion="+rv,
			func(r *rollout) bool { return r.Object.Status.AvailableReplicas == idlePods })
	}); err != nil {
		return err
	}
	// A watch that the server itself ends is as long a rest.
	const rest = 30
	idle := func() error {
		return load.Expect(ctx, client, http.StatusOK, "GET",
			fmt.Sprintf("%s/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=%d", s.Config.Host, rest), "", "")
	}
	if err := idle(); err != nil {
		return err
	}
	before, err := s.Cpu()
	if err != nil {
		return err
	}
	if err := idle(); err != nil {
		return err
	}
	after, err := s.Cpu()
	if err != nil {
		return err
	}
	add(fmt.Sprintf("CPU at rest with %s pods on 100 simulated nodes", report.Number(idlePods)),
		report.Value{Unit: "ms/s", Number: load.Ms(after-before) / rest, Bound: report.AtMost(20)})
	return nil
}
