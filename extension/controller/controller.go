// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package controller is the contract of controllers in Go that run in the server's process, beside the built-in ones and on the same
// caches. embed.Extensions takes controllers; the setting that selects the built-in ones selects them too.
//
// A [Controller] is a value: a name, the resources that it reads and writes, and a function that builds its [Runner] from [Deps]. New
// subscribes to informers with Deps.Subscribe; the handlers add keys to a queue, such as one of k8s.io/client-go/util/workqueue, and
// Run works on the keys. A controller that returns an error or panics starts again after a back-off, alone.
//
// # Stability
//
// What this package exports only grows: a committed list of it is compared in a test, and a change that breaks a controller is announced in
// a release before.
package controller

import (
	"context"
	"log/slog"

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

// Controller describes one control loop.
type Controller struct {
	// Name is the name in --controllers.
	Name string
	// Account is the service account in kube-system that the controller acts as. Without an Account, the controller is an administrator.
	Account string
	// Rules are the role of Account. They allow what the controller does beyond reading through the shared informers.
	Rules []rbacv1.PolicyRule
	// Inputs are the resources that the controller reads through the shared informers, Outputs those that it writes.
	Inputs, Outputs []schema.GroupVersionResource
	// Settings are the controller's settings: flags of the server. They are set before New is called. A Controller with settings belongs to
	// one cluster.
	Settings []Setting
	// New builds one incarnation of the controller. It subscribes to informers and must neither block nor send requests.
	New func(*Deps) (Runner, error)
}

// Runner is an incarnation of a controller.
type Runner interface {
	// Run works until ctx ends, then returns nil. It is called once all subscriptions made by New have delivered their initial lists. An
	// error makes the controller start again.
	Run(ctx context.Context) error
}

// RunnerFunc makes a function a Runner.
type RunnerFunc func(ctx context.Context) error

// Run calls f.
func (f RunnerFunc) Run(ctx context.Context) error { return f(ctx) }

// Deps are what an incarnation of a controller works with. Objects that informers return are shared: copy them before changing them.
type Deps struct {
	// The clients act as the controller's account.
	Client     kubernetes.Interface
	Dynamic    dynamic.Interface
	Metadata   metadata.Interface
	Discovery  discovery.DiscoveryInterface
	RESTMapper meta.ResettableRESTMapper

	// Informers and MetadataInformers are shared by all controllers. Objects come without managed fields.
	Informers         informers.SharedInformerFactory
	MetadataInformers metadatainformer.SharedInformerFactory
	// Subscribe delivers an informer's events to a handler until the incarnation ends. A panic of the handler ends the incarnation.
	Subscribe func(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) error
	// Await makes the incarnation wait for the informer's initial list although it does not subscribe to its events.
	Await func(informer cache.SharedIndexInformer)

	Clock    clock.WithTicker
	Logger   *slog.Logger
	Recorder record.EventRecorder
}
