// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"runtime/debug"

	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/extension/controller"
)

// Extension returns a controller of an extension.
func Extension(c controller.Controller) Controller {
	return Controller{
		Name: c.Name, Account: c.Account, Rules: c.Rules, Inputs: c.Inputs, Outputs: c.Outputs, Settings: c.Settings,
		New: func(d *Deps) (Runner, error) {
			return c.New(&controller.Deps{
				Client: d.Client, Dynamic: d.Dynamic, Metadata: d.Metadata, Discovery: d.Discovery, RESTMapper: d.RESTMapper,
				Informers: d.Informers, MetadataInformers: d.MetadataInformers, Subscribe: d.subscribeForeign, Await: d.Await,
				Clock: d.Clock, Logger: d.Logger, Recorder: d.Recorder,
			})
		},
	}
}

// subscribeForeign delivers the informer's events to a handler until this incarnation ends. A panic in the handler ends the incarnation.
func (d *Deps) subscribeForeign(informer cache.SharedIndexInformer, h cache.ResourceEventHandler) error {
	guard := func() {
		if v := recover(); v != nil {
			d.scope.fail(panicError("handle event", v, debug.Stack()))
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, initial bool) { defer guard(); h.OnAdd(obj, initial) },
		UpdateFunc: func(before, now any) { defer guard(); h.OnUpdate(before, now) },
		DeleteFunc: func(obj any) { defer guard(); h.OnDelete(obj) },
	})
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	d.scope.mu.Lock()
	defer d.scope.mu.Unlock()
	d.scope.subscriptions = append(d.scope.subscriptions, subscription{informer, registration})
	return nil
}
