// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

const pods = 5000

// pod is about 2 KB as it is stored, as pods of a Deployment are.
func pod(name string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"app":"web","pod-template-hash":"5d59d67564","tier":"front"},"annotations":{"example.com/checksum":"8d969eef6ecad3c29a3a629280e686cf0c3f5d5a86aff3ca12020c923adc6c92"}},`+
		`"spec":{"automountServiceAccountToken":false,"containers":[{"name":"web","image":"registry.example.com/web:v1.2.3","ports":[{"containerPort":8080,"name":"http"}],`+
		`"env":[{"name":"POD_NAME","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}},{"name":"LEVEL","value":"info"}],`+
		`"resources":{"requests":{"cpu":"10m","memory":"16Mi"}}}]}}`, name)
}

// measured is how a list went.
type measured struct {
	first, p50 float64 // milliseconds until the last byte
	cpu        float64
	bytes      int64
}

// lists reads all pods as each medium.
func lists(ctx context.Context, b *bench, t *load.Target, add adder) error {
	ns, err := t.Namespace(ctx)
	if err != nil {
		return err
	}
	base := t.Config.Host + "/api/v1/namespaces/" + ns + "/pods"
	err = load.Many(ctx, t, 16, pods, func(ctx context.Context, client *http.Client, i int) error {
		return load.Expect(ctx, client, http.StatusCreated, "POST", base, "application/json", pod(fmt.Sprintf("web-5d59d67564-%05d", i)))
	})
	if err != nil {
		return err
	}
	for _, m := range []struct {
		what, media, encoding string
		upstream              float64 // milliseconds
	}{
		{"JSON", "application/json", "identity", 150},
		{"protobuf", "application/vnd.kubernetes.protobuf", "identity", 79},
		{"JSON, gzip", "application/json", "gzip", 0},
		{"protobuf, gzip", "application/vnd.kubernetes.protobuf", "gzip", 0},
		{"Table", "application/json;as=Table;g=meta.k8s.io;v=v1", "identity", 0},
	} {
		r, err := listing(ctx, t, b.length(), base, m.media, m.encoding)
		if err != nil {
			return err
		}
		share := report.ShareOf(m.upstream, tenth)
		if m.upstream == 0 {
			share = report.Bound{}
		}
		add(fmt.Sprintf("LIST of %s pods as %s", report.Number(pods), m.what),
			report.Value{Unit: "ms", Number: r.p50, Bound: share}, report.Value{Name: "CPU", Unit: "ms", Number: r.cpu, Bound: share},
			report.Value{Name: "first", Unit: "ms", Number: r.first}, report.Value{Text: fmt.Sprintf("%.1f MB", float64(r.bytes)/1e6)})
	}
	return nil
}

// listing reads a list over and over for a while.
func listing(ctx context.Context, t *load.Target, length time.Duration, url, media, encoding string) (m measured, err error) {
	client, err := t.Client(1)
	if err != nil {
		return m, err
	}
	defer client.CloseIdleConnections()
	buf := make([]byte, 256<<10)
	once := func() (time.Duration, error) {
		request, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			return 0, err
		}
		request.Header.Set("Accept", media)
		request.Header.Set("Accept-Encoding", encoding)
		began := time.Now()
		response, err := client.Do(request)
		if err != nil {
			return 0, err
		}
		m.bytes, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, response.Body, buf)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return 0, err
		}
		if response.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("GET %s: status %d", url, response.StatusCode)
		}
		return time.Since(began), nil
	}
	first, err := once()
	if err != nil {
		return m, err
	}
	m.first = load.Ms(first)
	before, err := t.Cpu()
	if err != nil {
		return m, err
	}
	var all []time.Duration
	for began := time.Now(); time.Since(began) < length; {
		took, err := once()
		if err != nil {
			return m, err
		}
		all = append(all, took)
	}
	after, err := t.Cpu()
	if err != nil {
		return m, err
	}
	m.p50, m.cpu = load.Quantile(all, 50), load.Ms(after-before)/float64(len(all))
	return m, nil
}

// newest is the revision at which a collection is now.
func newest(ctx context.Context, client *http.Client, url string) (string, error) {
	status, answer, err := load.Say(ctx, client, "GET", url+"?limit=1", "", "")
	if err != nil {
		return "", err
	}
	_, after, ok := strings.Cut(string(answer), `"resourceVersion":"`)
	if status != http.StatusOK || !ok {
		return "", fmt.Errorf("GET %s: status %d: %.300s", url, status, answer)
	}
	rv, _, _ := strings.Cut(after, `"`)
	return rv, nil
}
