// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package controllers runs the control loops: the parts of the system that watch objects through the API and write other
// objects until what is matches what was asked for.
//
// A [Controller] is a value: a name, what it reads, what it writes, and a function that builds its [Runner] from [Deps].
// Each lives in a package of its own below this one, and knows the API server as a client only. [Run] starts those that
// are selected on one shared set of informers, so that every object is held once however many controllers look at it.
//
// The pattern inside a controller is always the same. Its constructor subscribes to informers with [Subscribe]; the
// handlers do nothing but put keys into a [Queue]; the queue's workers call a sync function with a key; the sync function
// reads the caches, asks a pure function what ought to be done, and does it. The sync is level-based: it never learns
// which event woke it, so lost, doubled and reordered events change nothing. There are no resyncs: where time itself
// matters (a deadline, a schedule, minReadySeconds), the sync puts its key back with a delay.
//
// Controllers fail alone. A panic in a handler or a worker, or an error returned by a Runner, ends that incarnation of
// that controller; its subscriptions are removed and after a back-off it is built anew. Nothing else notices.
//
// Lifetimes: Deps belong to one incarnation. Objects that informers hand out are shared and must not be changed; copy
// first.
package controllers

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// Manager is the user that all controllers together are: it reads for the shared informers, and writes for those that have no account
// of their own.
const Manager = "system:kube-controller-manager"

// Controller describes one control loop.
type Controller struct {
	// Name is what --controllers selects by: upstream's name where upstream has the controller.
	Name string
	// Account is the service account of kube-system that the controller acts as: roles are written for these names, which are older
	// than those of --controllers. [Manager] is for one that acts as all controllers together. A controller without an account acts as
	// the account of its own name, which is an administrator.
	Account string
	// Rules are the role of Account, where Kubernetes has no such role. They allow what the controller does beside reading by the shared
	// informers.
	Rules []rbacv1.PolicyRule
	// Component is the event source that its events carry; Name when empty.
	Component string
	// Inputs are the resources whose events drive it and all of whose objects it sees by the shared informers; Outputs are
	// those that it writes.
	Inputs, Outputs []schema.GroupVersionResource
	// Syncs is the setting of how many objects are synced concurrently; nil: it is always one.
	Syncs *Syncs
	// Settings are the controller's other settings. They are set by [Configure], before New is called, and hold for all that is
	// made of this Controller: one with settings is of one cluster.
	Settings []Setting
	// Check refuses settings that are invalid in a cluster of these address ranges; nil: all are valid.
	Check func(*Cluster) error
	// New builds one incarnation. It subscribes to informers and must not block or talk to the server.
	New func(*Deps) (Runner, error)
}

// Runner is an incarnation of a controller.
type Runner interface {
	// Run works until ctx ends, then returns nil. It is called once all subscriptions made by New have delivered their
	// initial lists. An error makes the controller start again.
	Run(ctx context.Context) error
}

// RunnerFunc is a function as a Runner.
type RunnerFunc func(ctx context.Context) error

// Run calls f.
func (f RunnerFunc) Run(ctx context.Context) error { return f(ctx) }

// Cluster is what all controllers know of the cluster. The settings of one controller are its own.
type Cluster struct {
	RootCA           []byte         // PEM; what kube-root-ca.crt publishes
	PodRootCA        []byte         // the same where it is not to be RootCA
	Signer           *Authority     // signs certificates; nil: the cluster signs none
	Tokens           TokenSigner    // signs the tokens that secrets hold; nil: secrets get no tokens
	PodCIDRs         []netip.Prefix // the ranges nodes' pod CIDRs are cut from; none: nodes get none
	ServiceCIDR      netip.Prefix   // its first address is the service "kubernetes"
	AdvertiseAddress netip.Addr     // where the API server can be reached from pods
	AdvertisePort    int            // 6443 when 0

	Signers map[string]func() *Authority // by signer name, where it is not to be Signer

	Initializers bool // objects may be hidden while they wait for initializers: Metadata shows them, Informers do not
}

// Trusted returns the certificate authorities that pods trust.
func (c *Cluster) Trusted() []byte {
	if len(c.PodRootCA) > 0 {
		return c.PodRootCA
	}
	return c.RootCA
}

// TokenSigner signs the token that a secret holds for a service account.
type TokenSigner func(ctx context.Context, namespace, secret, account, uid string) (string, error)

// Authority signs certificates.
type Authority struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
}

// Deps are what a controller works with. The shared parts are shared by all controllers, the rest is its own.
type Deps struct {
	Client     kubernetes.Interface
	Dynamic    dynamic.Interface
	Metadata   metadata.Interface
	Discovery  discovery.DiscoveryInterface
	RESTMapper meta.ResettableRESTMapper // deferred; reset when a CRD comes, changes or goes

	// Watcher is who reads for the shared informers. One that a controller makes for itself, narrowed by a selector, is made
	// on it: a controller's own account may write what it has to, but not always read.
	Watcher kubernetes.Interface

	Informers         informers.SharedInformerFactory
	MetadataInformers metadatainformer.SharedInformerFactory

	Clock   clock.WithTicker
	Cluster Cluster

	// Typed tells which resources the selected controllers watch in full, so that one that needs only metadata may use
	// the same cache.
	Typed map[schema.GroupVersionResource]bool

	// Its own.
	Logger   *slog.Logger
	Recorder record.EventRecorder
	Metrics  *Metrics // nil: not measured
	Name     string

	syncs *Syncs // nil: one object at a time
	scope *scope
	start func() // starts informers that were asked for since the last call
	turn  func(what string) time.Duration
}

// Syncs is how many objects the controller syncs concurrently.
func (d *Deps) Syncs() int {
	if d.syncs == nil {
		return 1
	}
	return d.syncs.effective()
}

// Await makes the incarnation wait for informer's initial list although it does not subscribe to its events.
func (d *Deps) Await(informer cache.SharedIndexInformer) {
	d.scope.mu.Lock()
	defer d.scope.mu.Unlock()
	d.scope.awaited = append(d.scope.awaited, informer)
}

// scope collects what an incarnation must leave behind when it ends.
type scope struct {
	mu            sync.Mutex
	subscriptions []subscription
	late          []subscription
	awaited       []cache.SharedIndexInformer
	stops         []func()
	fail          func(error)
}

type subscription struct {
	informer cache.SharedIndexInformer
	handle   cache.ResourceEventHandlerRegistration
}

// errPanic is the class of errors that panics become.
var errPanic = errors.New("panic")

func panicError(what string, v any, stack []byte) error {
	return fmt.Errorf("%s: %w: %v\n%s", what, errPanic, v, stack)
}

// close removes the subscriptions and stops the queues.
func (s *scope) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, stop := range s.stops {
		stop()
	}
	for _, sub := range append(s.subscriptions, s.late...) {
		errs = append(errs, sub.informer.RemoveEventHandler(sub.handle))
	}
	s.subscriptions = nil
	return errors.Join(errs...)
}

// synced waits until every subscription has delivered its initial list; false when ctx ended first.
func (s *scope) synced(ctx context.Context) bool {
	s.mu.Lock()
	var waits []cache.DoneChecker
	for _, sub := range s.subscriptions {
		waits = append(waits, sub.handle.HasSyncedChecker())
	}
	for _, informer := range s.awaited {
		waits = append(waits, informer.HasSyncedChecker())
	}
	s.mu.Unlock()
	for _, wait := range waits {
		select {
		case <-wait.Done():
		case <-ctx.Done():
			return false
		}
	}
	return true
}
