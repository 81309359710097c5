// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
)

// quietChild is the argument that makes the program a quiet client, in a process of its own: requests do not wait there for what else the
// bench does meanwhile, such as reading a watch.
const quietChild = "quiet-client"

// quietClient configures a quiet client, on its standard input. It speaks HTTP/2 over one connection.
type quietClient struct {
	Base, Token string // the URL of a namespace that has the thousand ConfigMaps
	What        string // GETs or creates
	For         time.Duration
}

const (
	quietGets    = "GETs"
	quietCreates = "creates"
)

// quietly is what a quiet user does now and then.
type quietly struct {
	what  string
	limit float64 // of the p99 beside a storm, in milliseconds
}

// quietRequests are the GET and the create of a ConfigMap in a namespace that has the thousand of them.
func quietRequests() []quietly { return []quietly{{quietGets, 3}, {quietCreates, 6}} }

// paced is how long what was done now and then took, in milliseconds, where the machine's processors did not stand still meanwhile;
// and all of it.
type paced struct {
	p50, p99, allP99, stood float64
	n                       int
}

// heard is when a quiet client's requests were under way, and when processors stood still.
type heard struct{ requests, stood []span }

// runPaced sends one request after the other, at most at the pace.
func runPaced(ctx context.Context, q *quietClient) (paced, error) {
	ask, err := summon(ctx, q)
	if err != nil {
		return paced{}, err
	}
	h, err := ask()
	if err != nil {
		return paced{}, err
	}
	return h.until(0)
}

// summon starts a quiet client, which connects to the server. What it returns has it send its requests.
func summon(ctx context.Context, q *quietClient) (ask func() (*heard, error), err error) {
	told, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	c, err := startChild(ctx, quietChild)
	if err != nil {
		return nil, err
	}
	if _, err := c.in.Write(append(told, '\n')); err != nil || !c.lines.Scan() {
		return nil, errors.Join(errors.New("quiet client: it could not begin"), err, c.end())
	}
	return func() (*heard, error) {
		h := &heard{}
		stalls, err := lookOut(ctx)
		if err != nil {
			return nil, errors.Join(err, c.end())
		}
		var e error
		if _, err = fmt.Fprintln(c.in, "now"); err == nil {
			h.requests, err = c.spans()
		}
		err = errors.Join(err, c.end())
		h.stood, e = stalls()
		if err := errors.Join(err, e); err != nil {
			return nil, fmt.Errorf("quiet client: %w", err)
		}
		return h, nil
	}, nil
}

// until is how long the requests took that began before a time; 0: all of them.
func (h *heard) until(over int64) (paced, error) {
	var every, clear []time.Duration
	for _, s := range h.requests {
		if over > 0 && s.from > over {
			break
		}
		took := time.Duration(s.to - s.from)
		if every = append(every, took); !s.meets(h.stood) {
			clear = append(clear, took)
		}
	}
	if len(clear) == 0 {
		return paced{}, errors.New("measure a quiet client: the storm was over before, or the machine's processors never ran undisturbed")
	}
	return paced{
		p50: load.Quantile(clear, 50), p99: load.Quantile(clear, 99), allP99: load.Quantile(every, 99),
		stood: 100 * float64(len(every)-len(clear)) / float64(len(every)), n: len(every),
	}, nil
}

// beQuiet is that client. It says that it is ready, waits to be asked, and prints when each request began and ended.
func beQuiet(ctx context.Context, in io.Reader, out io.Writer) error {
	asked := bufio.NewScanner(in)
	var q quietClient
	if asked.Scan(); asked.Err() != nil {
		return asked.Err()
	}
	if err := json.Unmarshal(asked.Bytes(), &q); err != nil {
		return err
	}
	if _, err := ahead(); err != nil {
		return err
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, DisableCompression: true,
	}
	client := &http.Client{Transport: bearer{q.Token, transport}}
	name, serial := some(q.Base+"/configmaps", thousand), 0
	do := func() error { return load.Expect(ctx, client, http.StatusOK, "GET", name(), "", "") }
	if q.What == quietCreates {
		do = func() error {
			serial++
			return load.Expect(ctx, client, http.StatusCreated, "POST", q.Base+"/configmaps", "application/json",
				configMap(fmt.Sprintf("q-%d-%d", os.Getpid(), serial), kilobyte))
		}
	}
	for range 20 { // warm
		if err := do(); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "ready")
	if !asked.Scan() {
		return asked.Err()
	}
	all, err := pacing(q.For, do)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(out)
	for _, s := range all {
		fmt.Fprintln(w, s.from, s.to)
	}
	return w.Flush()
}

// pacing is when each thing was done.
func pacing(length time.Duration, do func() error) (all []span, err error) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < length; {
		<-tick.C
		var s span
		if s.from, err = monotonic(); err != nil {
			return nil, err
		}
		if err := do(); err != nil {
			return nil, err
		}
		if s.to, err = monotonic(); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}
