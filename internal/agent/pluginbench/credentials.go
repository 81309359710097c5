// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/credentialprovider"
	"github.com/mortise-dev/mortise/internal/agent/imagecredentials"
	"github.com/mortise-dev/mortise/internal/agent/program"
)

// Provider is what an image credential provider is asked for.
type Provider struct {
	Config, BinDir string            // --image-credential-provider-config and -bin-dir
	Image          string            // one that the provider is for
	Annotations    map[string]string // of the pod's service account
}

// providerBench drives the providers of a configuration.
type providerBench struct {
	*bench
	providers *imagecredentials.Providers
	events    *record.FakeRecorder
	pod       *corev1.Pod
}

func credentialSteps(b *bench) ([]step, func(), error) {
	if b.Provider.Config == "" || b.Provider.BinDir == "" || b.Provider.Image == "" {
		return nil, nil, errors.New("drive a credential provider: it needs a configuration, a directory of programs and an image")
	}
	d := &providerBench{bench: b, events: record.NewFakeRecorder(1000)}
	d.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bench", UID: "bench"}, Spec: corev1.PodSpec{
		ServiceAccountName: "bench", Containers: []corev1.Container{{Name: "c", Image: b.Provider.Image}},
	}}
	return []step{
		{"has a valid configuration", true, d.opens},
		{"answers", true, d.answers},
		{"is asked once for several pulls at a time", false, d.together},
		{"is asked again as its answer says", false, d.caches},
		{"is not asked for other images", false, d.others},
		{"fails for what is no request", false, d.garbage},
		{"is given up when it does not answer", false, d.late},
		{"is passed over when half of its answer arrives", false, d.half},
	}, func() {}, nil
}

// accounts reads service accounts and makes tokens at the API server.
type accounts struct{ client kubernetes.Interface }

var errNoAPI = errors.New("service account tokens need an API server")

// ServiceAccount reads a service account.
func (a accounts) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if a.client == nil {
		return nil, errNoAPI
	}
	return a.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Token makes a token.
func (a accounts) Token(
	ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	if a.client == nil {
		return nil, errNoAPI
	}
	return a.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
}

// open reads the configuration anew: nothing is cached.
func (d *providerBench) open() (err error) {
	d.providers, err = imagecredentials.Open(imagecredentials.Options{
		Config: d.Provider.Config, BinDir: d.Provider.BinDir, Tokens: true, Accounts: accounts{d.Client}, Ledger: d.ledger,
		Node: &corev1.ObjectReference{Kind: "Node", Name: d.Node}, Events: d.events, Metrics: imagecredentials.NewMetrics(),
		Clock: clock.RealClock{}, Logger: d.said.logger(),
	})
	return err
}

func (d *providerBench) opens(ctx context.Context) finding {
	if err := d.open(); err != nil {
		return fail("%v", err).kubeletSays("failed to register CRI auth plugins: " + err.Error())
	}
	if d.Client != nil {
		if err := d.account(ctx); err != nil {
			return fail("make the pod's service account: %v", err)
		}
	}
	return ok("%s", d.Provider.Config)
}

// account makes the pod and its service account.
func (d *providerBench) account(ctx context.Context) error {
	_, err := d.Client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bench", Annotations: d.Provider.Annotations},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made := d.pod.DeepCopy()
	made.UID = ""
	if made, err = d.Client.CoreV1().Pods(namespace).Create(ctx, made, metav1.CreateOptions{}); err == nil {
		d.pod = made
	}
	return err
}

// calls returns how often providers were called.
func (d *providerBench) calls() (calls int64) {
	for _, e := range d.ledger.Snapshot() {
		if e.Point == extension.ImageCredentials && (d.Name == "" || e.Name == d.Name) {
			calls += e.Calls
		}
	}
	return calls
}

// event returns the newest event, which tells of a provider that failed; empty: there is none.
func (d *providerBench) event() (text string) {
	for {
		select {
		case text = <-d.events.Events:
		default:
			return text
		}
	}
}

func (d *providerBench) answers(ctx context.Context) finding {
	begun := time.Now()
	found, err := d.providers.Lookup(ctx, d.pod, d.Provider.Image)
	took := time.Since(begun)
	said := d.event()
	switch {
	case err != nil:
		return fail("%v", err)
	case said != "":
		return fail("%s", said).kubeletSays("Failed to get credentials from external registry credential provider: " + d.said.text())
	case d.calls() == 0:
		return fail("no provider was called: matchImages of %s match no %s, or the pod's service account lacks what a provider requires",
			d.Provider.Config, d.Provider.Image)
	case len(found) == 0:
		return fail("it has no credentials for %s: no key of auth in its answer matches the image", d.Provider.Image)
	}
	return d.slow(describe(found), took)
}

func describe(found []credentialprovider.Credential) finding {
	if len(found) == 1 {
		return ok("1 login")
	}
	return ok("%d logins, tried in turn", len(found))
}

func (d *providerBench) together(ctx context.Context) finding {
	if err := d.open(); err != nil {
		return fail("%v", err)
	}
	before := d.calls()
	var pulls sync.WaitGroup
	for range 10 {
		pulls.Go(func() { _, _ = d.providers.Lookup(ctx, d.pod, d.Provider.Image) }) // what fails is an event
	}
	pulls.Wait()
	calls := d.calls() - before
	if said := d.event(); said != "" {
		return fail("%s", said)
	}
	if calls > 1 {
		return warn("%d calls for 10 pulls: with cacheDuration 0 it is called again and again", calls)
	}
	return ok("1 call for 10 pulls")
}

func (d *providerBench) caches(ctx context.Context) finding {
	before := d.calls()
	begun := time.Now()
	if _, err := d.providers.Lookup(ctx, d.pod, d.Provider.Image); err != nil {
		return fail("%v", err)
	}
	if d.calls() != before {
		return warn("it is called for each pull: neither its answer nor its configuration has a cacheDuration")
	}
	f := ok("kubelet uses its answer again")
	f.took = time.Since(begun)
	return f
}

func (d *providerBench) others(ctx context.Context) finding {
	before := d.calls()
	if _, err := d.providers.Lookup(ctx, d.pod, "mortise-bench.invalid/image"); err != nil {
		return fail("%v", err)
	}
	if d.calls() != before {
		return warn("its matchImages match any image: it is called for each pull")
	}
	return ok("its matchImages do not match mortise-bench.invalid/image")
}

// garbage runs the programs with an input that is no request: one that answers anyway does not read what it is asked.
func (d *providerBench) garbage(ctx context.Context) finding {
	for _, e := range d.ledger.Snapshot() {
		if e.Point != extension.ImageCredentials || d.Name != "" && e.Name != d.Name {
			continue
		}
		answer, err := program.Command{Name: filepath.Join(d.Provider.BinDir, e.Name), Input: "no request"}.Run(ctx)
		if err == nil {
			return warn("%s answers %d bytes to an input that is no request", e.Name, len(answer))
		}
	}
	return ok("it ends with an error")
}
