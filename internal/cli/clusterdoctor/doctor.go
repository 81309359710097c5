// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package clusterdoctor diagnoses a cluster through its API, as an administrator who only has a kubeconfig does: [Examine] runs the table
// of checks. It changes nothing.
//
//	server.go      the API server answers and is ready; certificates; aggregated API servers; webhooks
//	nodes.go       there are nodes, and they are ready
//	clouds.go      nodes that wait for a cloud's controller manager, and who waits for them
//	workloads.go   pods that do not start, claims that are not bound, namespaces that do not end
package clusterdoctor

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// State is the severity of a finding, as of package doctor, which diagnoses a node.
type State string

// The states of findings. Only Wrong needs attention.
const (
	OK    State = "ok"
	Note  State = "note"  // works, but not as well as it could
	Wrong State = "wrong" // breaks something
)

// Finding is the result of one check of one thing.
type Finding struct {
	Check string // a row of the table of checks
	State State
	What  string
	Do    string // the command that mends it; empty: nothing
}

// limit is how long the whole examination may take: a server that hangs is a finding, too.
const limit = 30 * time.Second

// most is how many findings of a check are shown one by one; the rest are counted.
const most = 5

// examination is one run of the checks.
type examination struct {
	config *rest.Config
	client kubernetes.Interface
	clock  clock.PassiveClock
}

// check is a row of the table: it returns what it finds, nothing if all is well.
type check struct {
	name string
	well string // what is shown if the check finds nothing
	look func(ctx context.Context, e *examination) ([]Finding, error)
}

// checks is the table, in the order in which findings are shown. The first asks whether the server answers at all: the others are skipped
// if it does not.
func checks() []check {
	return []check{
		{"API server", "it answers, and is ready", checkServer},
		{"certificates", "those of the kubeconfig are valid for longer than a month", checkCertificates},
		{"aggregated APIs", "all are available", checkAPIServices},
		{"webhooks", "all have the Service that they name", checkWebhooks},
		{"nodes", "all are ready", checkNodes},
		{"clouds", "no node waits for a cloud, or for a pod that waits for it", checkClouds},
		{"cluster DNS", "there is the Service kube-system/kube-dns", checkDNS},
		{"pods", "all run or wait for less than two minutes", checkPods},
		{"claims", "all are bound, or wait for their first pod", checkClaims},
		{"namespaces", "none waits for its end", checkNamespaces},
	}
}

// Examine runs all checks on the cluster of a client configuration.
func Examine(ctx context.Context, config *rest.Config) ([]Finding, error) {
	return examine(ctx, config, clock.RealClock{})
}

func examine(ctx context.Context, config *rest.Config, clock clock.PassiveClock) ([]Finding, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	e := &examination{config: config, client: client, clock: clock}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var out []Finding
	for i, c := range checks() {
		found, err := c.look(ctx, e)
		switch {
		case err != nil && i == 0:
			return []Finding{{c.name, Wrong, err.Error(), "mortise up, or systemctl start mortise; --kubeconfig FILE names another cluster"}}, nil
		case err != nil:
			found = []Finding{{State: Note, What: "not examined: " + err.Error()}}
		case len(found) == 0:
			found = []Finding{{State: OK, What: c.well}}
		}
		for n, f := range found {
			if n == most && len(found) > most+1 {
				out = append(out, Finding{c.name, f.State, fmt.Sprintf("and %d more", len(found)-most), f.Do})
				break
			}
			f.Check = c.name
			out = append(out, f)
		}
	}
	return out, nil
}

// older reports whether an object is older than an age: what is younger may be on its way.
func (e *examination) older(o metav1.Object, age time.Duration) bool {
	return e.clock.Since(o.GetCreationTimestamp().Time) > age
}
