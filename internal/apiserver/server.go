// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package apiserver is the API server: it serves the Kubernetes API over HTTP from a store.
//
// [New] makes a [Server] from descriptors, a store and an admission chain. Requests pass through the stages of the
// ordered table in pipeline.go, and end at a resource's verb (package verbs) or at one of the other paths (paths.go).
// There are two ways in: [Server.Serve] for TLS connections, and [Server.Config] for components in the same process,
// which reach the same handler without sockets, TLS or credentials.
//
// # Lifetimes
//
// A Server responds as soon as New returns. Run and Serve block until their context ends, and then end all watches.
// [Server.Close] ends a server on which neither was called. The caller owns the store, and closes it after the server
// has ended.
package apiserver

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/extension/webhook"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/aggregate/learn"
	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/authenticate"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/node"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/rbac"
	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/internal/apiserver/discovery"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/health"
	"github.com/mortise-dev/mortise/internal/apiserver/impersonate"
	"github.com/mortise-dev/mortise/internal/apiserver/kubelet"
	"github.com/mortise-dev/mortise/internal/apiserver/managedfields"
	"github.com/mortise-dev/mortise/internal/apiserver/meter"
	"github.com/mortise-dev/mortise/internal/apiserver/metricsapi"
	"github.com/mortise-dev/mortise/internal/apiserver/reconciler"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/apiserver/verbs"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// Options of [New]. Store is required; the other fields have useful zero values.
type Options struct {
	Store *store.Store
	Kinds []*resource.Descriptor
	// MoreKinds returns kinds that call the server itself, such as reviews. New calls it once, when s can authenticate,
	// authorize and read stored objects. Nil: there are none.
	MoreKinds func(s *Server) []*resource.Descriptor
	Admission admit.Chain
	// Material is the server's keys and certificates; nil: in-process clients only, and no tokens.
	Material *serving.Material
	// NodeCAs verify the serving certificates of nodes; nil: the cluster's CA does, or a key that the node published.
	NodeCAs *x509.CertPool
	Version apimachineryversion.Info
	Log     *slog.Logger
	Now     func() time.Time

	// Authentication configures authentication; the zero value accepts client certificates and service account tokens.
	Authentication authenticate.Settings
	// Authenticators come before anonymous access, Authorizers after the administrators and before roles.
	Authenticators []authenticate.Authenticator
	Authorizers    []authorize.Authorizer
	// Authorization comes after the administrators and Authorizers; nil: Roles.
	Authorization authorize.Authorizer
	// Nodes is the graph of objects related to nodes, which the server updates. Nil: it is not needed.
	Nodes *node.Graph
	// PodLabels find the pods that clients of metrics.k8s.io select; nil: the server does not serve that group.
	PodLabels *metricsapi.Labels
	// Collectors appear on /metrics beside the server's own.
	Collectors []prometheus.Collector
	// Roles is the index of roles and bindings, which the server updates. Kinds may hold it, to prevent users from granting
	// more rights than they have. Nil: the server makes one.
	Roles *rbac.Index
	// Ledger makes the calls to webhooks; nil: the server makes its own.
	Ledger *extension.Ledger
	// Egress selects the proxies of outgoing connections; nil: none.
	Egress *egress.Selector
	// Explain keeps traces of writes.
	Explain Explain
	// Audit records requests and responses; nil: there is no auditing.
	Audit *audit.Auditor
	// Paths are additional handlers by path. A path that ends in a slash includes all paths below it.
	Paths map[string]http.Handler
	// Checks are additional health checks. Bootstrapped is closed when the objects that every cluster has exist; nil:
	// they exist when New returns.
	Checks       []health.Check
	Bootstrapped <-chan struct{}
	// Pages are the contents of pages about the process.
	Pages Pages
	// Front returns the handler of connections, which passes on to api, the whole pipeline; nil: api is it. Serve calls it once.
	Front func(api http.Handler) http.Handler
	// Still is set if the server does nothing by itself, and so never changes what is stored.
	Still bool
	// Fields maintains managedFields; nil: the built-in manager.
	Fields verbs.FieldManager
	// FlowControl limits concurrent requests.
	FlowControl FlowControl
	// Aggregation configures the connections to aggregated API servers.
	Aggregation Aggregation
	// Features are off by default.
	Features Features
	// Shutdown bounds the time of a shutdown.
	Shutdown Shutdown
	// ViewBytes limits the memory of decoded objects and their encodings; 0: 64 MiB.
	ViewBytes int64
}

// Features are those of upstream's feature gates.
type Features struct {
	// CBOR enables CBOR for clients, as CBORServingAndStorage does. The stored encoding does not change.
	CBOR bool
	// StorageVersions delays writes until the server has reported the versions in which it stores objects, as StorageVersionAPI does;
	// nil: it reports none.
	StorageVersions StorageVersions
}

// Shutdown is how long a shutdown waits.
type Shutdown struct {
	Finish  time.Duration // for requests in flight, at most; 0: a minute
	Streams time.Duration // for connections after their streams have ended; 0: 5 seconds
}

// Pages return the contents of /flagz and /configz, for each request: the flags of the process, and the configuration by component. Nil:
// there are none.
type Pages struct {
	Flags  func() map[string]string
	Config func() map[string]any
}

// Server is an API server.
type Server struct {
	opts        Options
	registry    *registry.Registry
	kinds       kindCatalog
	api         *verbs.API
	handler     http.Handler
	access      accessControl
	trust       func() *x509.CertPool // CAs of client certificates
	explain     *explain.Recorder     // nil: writes are not traced
	limiter     flowcontrol.Limiter
	flow        *flowcontrol.Controller // nil: the limiter only
	turns       turns
	bounds      *bounds
	crds        *crd.Registry
	others      others // the other servers that serve groups
	learner     *learn.Learner
	documents   *discovery.Handler
	reconciler  *reconciler.Reconciler
	feed        *feed.Feed
	metrics     *meter.Meter
	health      *health.Handler
	started     time.Time
	initializes bool // whether objects may wait for initializers
	underway    *gate
	nodes       *kubelet.Transports // nil without certificates
	lifetime    *watchcache.Lifetime
	end         context.CancelFunc
	progress    progress

	background sync.Once
}

var definitions = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}

// New makes a server, and puts the custom resource definitions that the store holds to work. When it returns an error, nothing that
// it started is left. Each function of decorate wraps the parts that follow the store, so that a test can let them fail.
func New(o Options, decorate ...func(feed.Follower) feed.Follower) (_ *Server, err error) {
	if o.Store == nil {
		return nil, errors.New("make API server: no store")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Shutdown.Finish == 0 {
		o.Shutdown.Finish = time.Minute
	}
	if o.Fields == nil {
		o.Fields = managedfields.New(o.Log)
	}
	if o.Ledger == nil {
		o.Ledger = extension.NewLedger(clock.RealClock{})
	}
	if o.Roles == nil {
		o.Roles = &rbac.Index{}
	}
	s := &Server{opts: o, progress: progress{ready: make(chan struct{}), bootstrapped: o.Bootstrapped}, started: o.Now(), underway: newGate()}
	unread := newUnreadObjects(o.Log)
	s.newExplain()
	s.reconciler = reconciler.New(reconciler.Options{Log: o.Log})
	s.metrics = meter.New(s.started, s.sources())
	ctx, end := context.WithCancel(context.Background()) // the server's lifetime: until Run or Serve ends
	s.end, s.lifetime = end, &watchcache.Lifetime{Context: ctx}
	s.progress.ended = func() bool { return ctx.Err() != nil }
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := errors.Join(s.newFlow(), s.newAggregator(), s.newLearner()); err != nil {
		return nil, fmt.Errorf("make API server: %w", err)
	}
	s.newFeed(decorate)
	s.health = health.New(o.Log, s.checks()...)
	s.access.authz = append(append(authorize.Chain{authorize.Administrators{}}, o.Authorizers...), o.Authorization)
	if o.Authorization == nil {
		s.access.authz[len(s.access.authz)-1] = o.Roles
	}
	s.access.attempts = authorize.NewAttempts()
	if peers := o.Aggregation.Peers; peers != nil {
		o.Collectors = append(o.Collectors, peers)
		s.documents.Beside(peers.Servers)
	}
	for _, c := range append([]prometheus.Collector{&counted{s}, s.access.attempts, s.feed, unread}, o.Collectors...) {
		if err := s.metrics.Registry().Register(c); err != nil {
			return nil, fmt.Errorf("make API server: %w", err)
		}
	}
	if o.Authorization == nil && !slices.ContainsFunc(o.Kinds, func(d *resource.Descriptor) bool { return d.GroupResource() == rbac.Roles }) {
		s.access.authz = append(s.access.authz, authorize.Open{}) // without RBAC there are no roles that allow anonymous health checks
	}

	s.access.impersonator = impersonate.New(s.access.authz)
	if err := s.metrics.Registry().Register(s.access.impersonator); err != nil {
		return nil, fmt.Errorf("make API server: %w", err)
	}
	vo := verbs.Options{
		Admission: s.metrics.Admission(o.Admission), Fields: o.Fields, Authorize: s.access.authz, Initialization: initialization(o.Admission),
	}
	offered := &backendServices{objects: s.Backend}
	if s.initializes = vo.Initialization != nil; s.initializes {
		serving, leave := context.WithCancel(ctx)
		vo.Initialization.Leaving, s.progress.leave = serving.Done(), leave
	}
	if m := o.Material; m != nil {
		s.nodes = &kubelet.Transports{
			Client: m.KubeletClient.TLS(), Roots: cmp.Or(o.NodeCAs, m.CA.Pool()), Keys: o.NodeCAs == nil,
			Server: m.Server.Certificate, CA: m.CA.Certificate, Dial: o.Egress.Cluster(),
		}
		offered.connect = s.nodes.To
	}
	if err := s.newAuthentication(ctx); err != nil {
		return nil, fmt.Errorf("make API server: %w", err)
	}
	if a := s.access.authn.Accounts(); a != nil {
		offered.issue = a.Issue
	}
	s.registry = registry.New(s.lifetime, registry.Options{
		Store: o.Store, Fields: o.Fields, Log: o.Log, Now: o.Now, ViewBytes: o.ViewBytes,
		Applied: s.feed.Wait, Unread: unread.note, Initializers: s.initializes, Services: offered,
	})
	vo.Registry = s.registry
	s.kinds.registered, s.kinds.custom = s.registry.Kinds(), func() []*resource.Descriptor {
		if s.crds == nil {
			return nil // New is about to make them
		}
		return s.crds.Descriptors()
	}
	s.api = verbs.New(s.lifetime, vo)
	kinds := slices.Clone(o.Kinds)
	if o.MoreKinds != nil {
		kinds = append(kinds, o.MoreKinds(s)...)
	}
	if !slices.ContainsFunc(kinds, func(d *resource.Descriptor) bool { return d.GroupResource() == definitions }) {
		kinds = append(kinds, crd.Definitions())
	}
	builtIn := make(map[schema.GroupResource]bool, len(kinds))
	for _, d := range kinds {
		builtIn[d.GroupResource()] = true
	}
	s.AddKinds(kinds...)
	services := webhook.Endpoints{Context: ctx, Backend: func() resource.Backend { return s.registry.Backend() }}
	caller, err := webhook.New(o.Ledger, services)
	if err != nil {
		return nil, fmt.Errorf("make API server: %w", err)
	}
	caller.Dial(o.Egress.Cluster(), o.Egress.ControlPlane())
	s.crds = crd.NewRegistry(crd.Options{
		BuiltIn: func(r schema.GroupResource) bool { return builtIn[r] }, Logger: o.Log, Now: o.Now,
		Changed: func(added, removed []*resource.Descriptor) { s.ChangeKinds(added, removed) }, Caller: caller,
	})
	if err := s.joinAdmission(services); err != nil {
		return nil, fmt.Errorf("make admission: %w", err)
	}
	if err := s.feed.Start(ctx, &s.lifetime.Group); err != nil {
		return nil, fmt.Errorf("make API server: %w", err)
	}
	s.handler = s.pipeline(s.paths())
	close(s.progress.ready)
	return s, nil
}

// AddKinds serves additional kinds, or replaces those of the same resource.
func (s *Server) AddKinds(ds ...*resource.Descriptor) { s.kinds.change(ds, nil) }

// RemoveKinds stops serving resources.
func (s *Server) RemoveKinds(rs ...schema.GroupResource) { s.kinds.remove(rs) }

// ChangeKinds serves added kinds and stops serving removed ones; one that is in both is replaced.
func (s *Server) ChangeKinds(added, removed []*resource.Descriptor) { s.kinds.change(added, removed) }

// Kinds returns all served descriptors. The slice is shared, and the same until they change.
func (s *Server) Kinds() []*resource.Descriptor { return s.kinds.list() }

// Definitions returns the served custom resource definitions.
func (s *Server) Definitions() *crd.Registry { return s.crds }

// Handler returns the whole pipeline.
func (s *Server) Handler() http.Handler { return s.handler }

// Backend returns access to objects without the pipeline.
func (s *Server) Backend() resource.Backend { return s.registry.Backend() }

// CreateMissing creates the missing objects in one commit; see [registry.Backend.CreateMissing].
func (s *Server) CreateMissing(ctx context.Context, objects []registry.BootstrapObject) ([]resource.Object, error) {
	return s.registry.Backend().CreateMissing(ctx, objects)
}

// Repair sets the function that restores bootstrap objects some time after they were changed or deleted.
func (s *Server) Repair(f func(context.Context) error) { s.reconciler.Repair(f) }

// Keep makes the reconciler call sync for a config map of kube-system; see [reconciler.Reconciler.Keep]. The returned
// function requests a call.
func (s *Server) Keep(name string, after time.Duration, sync func(context.Context) (again time.Duration, err error)) (look func()) {
	s.reconciler.Keep(name, after, sync)
	return func() { s.reconciler.Look(name) }
}

// Authorizer returns the pipeline's authorizer.
func (s *Server) Authorizer() authorize.Authorizer { return s.access.authz }

// Ready returns a channel that is closed when the server is ready.
func (s *Server) Ready() <-chan struct{} { return s.progress.ready }

// Config returns a client configuration for a component in this process, with the user u.
func (s *Server) Config(u user.Info) *rest.Config {
	return &rest.Config{Host: inProcessHost, Transport: &inProcess{handler: s.handler, user: u}, QPS: -1}
}

// Leave makes /readyz fail from now on, so that load balancers stop sending requests. It is the first step of a
// shutdown.
func (s *Server) Leave() {
	s.progress.beginShutdown()
}

// Close ends what New started. Run and Serve call it before they return; further calls have no effect.
func (s *Server) Close() {
	s.end()
	s.lifetime.Group.Wait()
}

// Run runs the server's background work until ctx ends; then it ends all watches.
func (s *Server) Run(ctx context.Context) error {
	defer s.Close()
	if s.opts.Still {
		<-ctx.Done()
		return nil
	}
	var err error
	ran := false
	s.background.Do(func() {
		ran = true
		var g sync.WaitGroup
		g.Go(func() { sendBookmarks(ctx, s.opts.Store) })
		g.Go(func() { s.access.authn.Run(ctx) })
		g.Go(func() { s.reconciler.Run(ctx, s.registry.Backend()) })
		g.Go(func() { s.others.run(ctx) })
		g.Go(func() { s.learner.Run(ctx) })
		g.Go(func() { s.compact(ctx) })
		g.Go(func() {
			if e := s.runAdmission(ctx); e != nil && ctx.Err() == nil {
				s.opts.Log.ErrorContext(ctx, "Admission stopped", "error", e)
			}
		})
		if s.flow != nil {
			g.Go(func() { s.flow.Run(ctx) })
		}
		g.Go(func() {
			if e := s.crds.Run(ctx, s.registry.Backend()); e != nil && ctx.Err() == nil {
				err = fmt.Errorf("run custom resource definitions: %w", e)
			}
		})
		g.Wait()
	})
	if !ran {
		<-ctx.Done()
	}
	return err
}

// sendBookmarks makes the store send bookmarks periodically until ctx ends, so that idle watches learn its current revision.
func sendBookmarks(ctx context.Context, from *store.Store) {
	t := time.NewTicker(30 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			from.Bookmark()
		}
	}
}
