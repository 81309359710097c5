// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package controllers runs the control loops: each watches objects through the API and writes other objects until the cluster's state
// matches the desired state.
//
// A [Controller] is a value: a name, the resources it reads and writes, and a function that builds its [Runner] from [Deps]. Each
// controller has a package of its own below this one, and knows the API server as a client only. [Run] starts the selected controllers on
// one shared set of informers, so that memory holds every object once, however many controllers read it.
//
// Every controller follows one pattern. Its constructor subscribes to informers with [Subscribe]; the handlers only add keys to a [Queue];
// the queue's workers call a sync function with a key; the sync function reads the caches, asks a pure function what to do, and does it.
// The sync is level-based: it never learns which event woke it, so lost, doubled and reordered events change nothing. Informers do not
// resync: where time itself matters (a deadline, a schedule, minReadySeconds), the sync requeues its key with a delay.
//
// Controllers fail alone. A panic in a handler or a worker, or an error returned by a Runner, ends that incarnation of that controller. Run
// then removes its subscriptions and, after a back-off, builds the controller anew. The other controllers go on.
//
// Lifetimes: Deps belong to one incarnation. Objects that informers return are shared: copy them before changing them.
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

	"github.com/mortise-dev/mortise/extension/controller"
)

// Manager is the user that all controllers share: the shared informers read as this user, and controllers without an account of their own
// write as it.
const Manager = "system:kube-controller-manager"

// Controller describes one control loop.
type Controller struct {
	// Name is the name in --controllers: upstream's name where upstream has the controller.
	Name string
	// Account is the service account in kube-system that the controller acts as. Roles are written for these names, which are older than
	// those in --controllers. [Manager] means that the controller acts as all controllers together. Without an Account, the controller acts
	// as the account named Name, which is an administrator.
	Account string
	// Rules are the role of Account where Kubernetes has no such role. They allow what the controller does beyond reading through the
	// shared informers.
	Rules []rbacv1.PolicyRule
	// Component is the event source that its events carry; Name when empty.
	Component string
	// Inputs are the resources whose events drive the controller and whose objects it reads through the shared informers. Outputs are the
	// resources that it writes.
	Inputs, Outputs []schema.GroupVersionResource
	// Syncs is the setting for the number of concurrent syncs; nil: always one.
	Syncs *Syncs
	// Settings are the controller's other settings. [Configure] sets them before New is called, and they hold for every incarnation of this
	// Controller: a Controller with settings belongs to one cluster.
	Settings []Setting
	// Check refuses settings that are invalid for the cluster's address ranges; nil: all are valid.
	Check func(*Cluster) error
	// New builds one incarnation. It subscribes to informers and must neither block nor send requests.
	New func(*Deps) (Runner, error)
}

// Runner is an incarnation of a controller.
type Runner = controller.Runner

// RunnerFunc makes a function a Runner.
type RunnerFunc = controller.RunnerFunc

// Cluster is what all controllers know about the cluster. The settings of one controller are in its Settings.
type Cluster struct {
	RootCA           []byte         // PEM; what kube-root-ca.crt publishes
	PodRootCA        []byte         // the same where it is not to be RootCA
	Signer           *Authority     // signs certificates; nil: the cluster signs none
	Tokens           TokenSigner    // signs the tokens that secrets hold; nil: secrets get no tokens
	PodCIDRs         []netip.Prefix // the ranges nodes' pod CIDRs are cut from; none: nodes get none
	ServiceCIDR      netip.Prefix   // its first address is the service "kubernetes"
	AdvertiseAddress netip.Addr     // the address at which pods reach the API server
	AdvertisePort    int            // 6443 when 0
	Servers          APIServers     // nil: no other server uses the store

	Signers map[string]func() *Authority // by signer name, where another authority than Signer signs

	ExternalCloud bool // a cloud's controller manager initializes nodes, deletes them, and makes load balancers

	Initializers bool // objects may be hidden while they wait for initializers: Metadata shows them, Informers do not
}

// APIServers are the API servers that share a store.
type APIServers interface {
	// Hold publishes a server's address until ctx ends, and calls changed with the addresses of all servers, in their order: first at once,
	// then whenever they change. Its calls do not overlap.
	Hold(ctx context.Context, own netip.Addr, changed func([]netip.Addr))
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

// Deps are what a controller works with. All controllers share the first part; the rest belongs to one controller.
type Deps struct {
	Client     kubernetes.Interface
	Dynamic    dynamic.Interface
	Metadata   metadata.Interface
	Discovery  discovery.DiscoveryInterface
	RESTMapper meta.ResettableRESTMapper // deferred; reset when a CRD is created, updated or deleted

	// Watcher is the client that the shared informers read with. A controller that makes an informer of its own, narrowed by a selector,
	// makes it on this client: the controller's own account may write what it has to, but may not always read.
	Watcher kubernetes.Interface

	Informers         informers.SharedInformerFactory
	MetadataInformers metadatainformer.SharedInformerFactory

	Clock   clock.WithTicker
	Cluster Cluster

	// Typed are the resources that the selected controllers watch as full objects. A controller that needs only metadata may use the same
	// cache for them.
	Typed map[schema.GroupVersionResource]bool

	// The controller's own.
	Logger   *slog.Logger
	Recorder record.EventRecorder
	Metrics  *Metrics // nil: nothing is measured
	Scaling  Scaling
	Name     string

	syncs *Syncs // nil: one object at a time
	scope *scope
	start func() // starts the informers that were requested since the last call
	queueing
}

// queueing is what all queues of the controllers have in common.
type queueing struct {
	turn    func(what string) time.Duration
	retries *RetryCounter
}

// Syncs is how many objects the controller syncs concurrently.
func (d *Deps) Syncs() int {
	if d.syncs == nil {
		return 1
	}
	return d.syncs.effective()
}

// Await makes the incarnation wait for the informer's initial list although it does not subscribe to its events.
func (d *Deps) Await(informer cache.SharedIndexInformer) {
	d.scope.mu.Lock()
	defer d.scope.mu.Unlock()
	d.scope.awaited = append(d.scope.awaited, informer)
}

// scope collects what an incarnation has to release when it ends.
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

// errPanic is the class of the errors that recovered panics become.
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

// synced waits until every subscription has delivered its initial list. It returns false when ctx ended first.
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
