// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// noisyChild is the argument that makes the program a noisy client, in a process of its own: what it costs beside the server
// is not measured as if it were the quiet one's.
const noisyChild = "noisy-client"

// noise configures a noisy client, on its standard input.
type noise struct {
	Host, Token, Shape string
	Clients            int
}

// shapes are the sorts of noise: 64 clients of one user that do one thing as fast as they can.
var shapes = []string{"LIST of 5,000 pods", "GET", "create"}

const (
	noisyClients = 64
	pace         = 4 * time.Millisecond // a quiet client does one thing at a time, so often
	timesIdle    = 3                    // what its p99 may be beside a noisy one, of that beside none
)

// quiet measures what a quiet user notices of a noisy one.
func quiet(ctx context.Context, b *bench, t *load.Target, add adder) error {
	ns, err := t.Namespace(ctx)
	if err != nil {
		return err
	}
	base := t.Config.Host + "/api/v1/namespaces/" + ns
	if err := load.Many(ctx, t, 16, pods, func(ctx context.Context, client *http.Client, i int) error {
		return load.Expect(ctx, client, http.StatusCreated, "POST", base+"/pods", "application/json", pod(fmt.Sprintf("web-5d59d67564-%05d", i)))
	}); err != nil {
		return err
	}
	if err := fill(ctx, t, base+"/configmaps", 0, thousand); err != nil {
		return err
	}
	noisyToken, err := createAccount(ctx, t, ns, "noisy")
	if err != nil {
		return err
	}
	quietToken, err := createAccount(ctx, t, ns, "quiet")
	if err != nil {
		return err
	}
	does := quietRequests()
	for _, shape := range shapes {
		idle := map[string]paced{}
		for _, d := range does {
			if idle[d.what], err = runPaced(ctx, &quietClient{Base: base, Token: quietToken, What: d.what, For: b.length()}); err != nil {
				return err
			}
		}
		stop, err := makeNoise(ctx, noise{Host: base, Token: noisyToken, Shape: shape, Clients: noisyClients})
		if err != nil {
			return err
		}
		for _, d := range does {
			is, err := runPaced(ctx, &quietClient{Base: base, Token: quietToken, What: d.what, For: b.length()})
			if err != nil {
				return errors.Join(err, stop(nil))
			}
			was := idle[d.what]
			add(fmt.Sprintf("quiet user's %s beside %d clients' %s", d.what, noisyClients, shape),
				report.Value{Name: "p99", Unit: "ms", Number: is.p99, Bound: report.AtMost(timesIdle * was.p99)},
				report.Value{Name: "idle p99", Unit: "ms", Number: was.p99}, report.Value{Name: "wanted", Unit: "ms", Number: d.limit},
				report.Value{Name: "p50", Unit: "ms", Number: is.p50}, report.Value{Name: "idle p50", Unit: "ms", Number: was.p50})
			add("  those that met processors standing still taken in",
				report.Value{Name: "p99", Unit: "ms", Number: is.allP99}, report.Value{Name: "idle p99", Unit: "ms", Number: was.allP99},
				report.Value{Name: "share of them", Unit: "%", Number: is.stood}, report.Value{Name: "idle", Unit: "%", Number: was.stood})
		}
		var did int64
		if err := stop(&did); err != nil {
			return err
		}
		add("  noisy: "+shape, report.Value{Unit: "/s", Number: float64(did) / (2 * b.length()).Seconds()})
	}
	return nil
}

// tokenClient is an HTTP/1.1 client with a bearer token. It only measures, and does not verify the server.
func tokenClient(token string, n int) *http.Client {
	transport := &http.Transport{
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true},
		MaxIdleConnsPerHost: n, MaxConnsPerHost: n, DisableCompression: true, ReadBufferSize: 32 << 10,
	}
	return &http.Client{Transport: bearer{token, transport}}
}

type bearer struct {
	token string
	*http.Transport
}

// RoundTrip adds the token.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.Transport.RoundTrip(r)
}

// createAccount creates a service account with all permissions by a role, and returns a token of it.
func createAccount(ctx context.Context, t *load.Target, ns, name string) (string, error) {
	client, err := t.Client(1)
	if err != nil {
		return "", err
	}
	defer client.CloseIdleConnections()
	base := t.Config.Host + "/api/v1/namespaces/" + ns + "/serviceaccounts"
	if err := load.Expect(ctx, client, http.StatusCreated, "POST", base, "application/json",
		fmt.Sprintf(`{"metadata":{"name":%q}}`, name)); err != nil {
		return "", err
	}
	if err := load.Expect(ctx, client, http.StatusCreated, "POST", t.Config.Host+"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		"application/json",
		fmt.Sprintf(`{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"ServiceAccount","name":%q,"namespace":%q}]}`, ns+"-"+name, name, ns)); err != nil {
		return "", err
	}
	code, answer, err := load.Say(ctx, client, "POST", base+"/"+name+"/token", "application/json",
		`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":7200}}`)
	if err != nil {
		return "", err
	}
	var review struct{ Status struct{ Token string } }
	if err := json.Unmarshal(answer, &review); err != nil || code != http.StatusCreated {
		return "", fmt.Errorf("ask for token: status %d: %.300s", code, answer)
	}
	return review.Status.Token, nil
}

// makeNoise starts a noisy client, and returns what ends it and tells how much it did.
func makeNoise(ctx context.Context, n noise) (stop func(did *int64) error, err error) {
	told, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	c, err := startChild(ctx, noisyChild)
	if err != nil {
		return nil, err
	}
	_, err = c.in.Write(append(told, '\n'))
	if err == nil && !c.lines.Scan() { // all its clients are connected and have had an answer
		err = errors.Join(io.ErrUnexpectedEOF, c.lines.Err())
	}
	if err != nil {
		return nil, errors.Join(err, c.Process.Kill(), c.Wait())
	}
	return func(did *int64) error {
		err := c.in.Close()
		if did != nil && err == nil {
			c.lines.Scan()
			_, err = fmt.Sscan(c.lines.Text(), did)
		}
		if err := errors.Join(err, c.Wait()); err != nil {
			return fmt.Errorf("noisy client: %w", err)
		}
		return nil
	}, nil
}

// beNoisy sends the requests that standard input configures until the input ends, and prints their number. It honours
// Retry-After.
func beNoisy(ctx context.Context, in io.Reader, out io.Writer) error {
	var n noise
	d := json.NewDecoder(in)
	if err := d.Decode(&n); err != nil {
		return err
	}
	// It has the cores that are left (SCHED_IDLE): with a machine of its own it would take none of the server's.
	if err := placed(unix.SchedAttr{Policy: unix.SCHED_IDLE}); err != nil {
		return fmt.Errorf("step back: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, in) // until it is closed
	}()
	client := tokenClient(n.Token, n.Clients)
	var done, serial atomic.Int64
	name := some(n.Host+"/configmaps", thousand)
	run := fmt.Sprint(os.Getpid())
	once := func(buf []byte) (int, error) {
		method, url, body := "GET", name(), ""
		switch n.Shape {
		case shapes[0]:
			url = n.Host + "/pods"
		case shapes[2]:
			method, url, body = "POST", n.Host+"/configmaps", configMap(fmt.Sprint("n-", run, "-", serial.Add(1)), kilobyte)
		}
		r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
		if err != nil {
			return 0, err
		}
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		w, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, w.Body, buf)
		return w.StatusCode, errors.Join(err, w.Body.Close())
	}
	var g errgroup.Group
	begun := make(chan struct{}, n.Clients)
	g.Go(func() error {
		for range n.Clients {
			select {
			case <-begun:
			case <-ctx.Done():
				return nil
			}
		}
		done.Store(0)
		_, err := fmt.Fprintln(out, "begun")
		return err
	})
	for range n.Clients {
		g.Go(func() error {
			buf := make([]byte, 64<<10)
			for first := true; ctx.Err() == nil; first = false {
				code, err := once(buf)
				if first {
					begun <- struct{}{}
				}
				switch {
				case ctx.Err() != nil:
				case err != nil:
					return err
				case code == http.StatusTooManyRequests:
				case code >= 300:
					return fmt.Errorf("status %d", code)
				default:
					done.Add(1)
				}
			}
			return nil
		})
	}
	err := g.Wait()
	_, e := fmt.Fprintln(out, done.Load())
	return errors.Join(err, e)
}
