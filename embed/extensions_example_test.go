// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/extension/authenticator"
	"github.com/mortise-dev/mortise/extension/authorizer"
	"github.com/mortise-dev/mortise/extension/controller"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// byHeader authenticates by a header, for the example. A real one verifies a credential.
func byHeader(r *http.Request) (*authenticator.Response, bool, error) {
	name := r.Header.Get("X-Badge")
	if name == "" {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}}, true, nil
}

// readsConfigMaps allows users with a badge to read ConfigMaps.
func readsConfigMaps(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "visitor" && a.GetResource() == "configmaps" && a.IsReadOnly() {
		return authorizer.Allow, "", nil
	}
	return authorizer.NoOpinion, "", nil
}

// An authenticator and an authorizer in Go, on an engine that the program opens.
func ExampleExtensions_authenticators() {
	ctx := context.Background()
	s := &embed.Server{
		Controllers: []string{"none"}, Engine: memory.Open(memory.Options{}),
		Extensions: embed.Extensions{
			Authenticators: []authenticator.Authenticator{authenticator.Func(byHeader)},
			Authorizers:    []authorizer.Authorizer{authorizer.Func(readsConfigMaps)},
		},
	}
	if err := s.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	defer s.Stop()
	config := &rest.Config{Host: s.URL(), TLSClientConfig: rest.TLSClientConfig{CAData: s.Config().CAData}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return badge{next} })
	client := kubernetes.NewForConfigOrDie(config)
	_, err := client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	fmt.Println(err)
	_, err = client.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
	fmt.Println(err)
	// Output:
	// <nil>
	// secrets is forbidden: User "visitor" cannot list resource "secrets" in API group "" in the namespace "default"
}

// badge sends the header.
type badge struct{ next http.RoundTripper }

func (b badge) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Badge", "visitor")
	return b.next.RoundTrip(r)
}

// greeter greets each namespace once it is there.
func greeter(greeted chan<- string) controller.Controller {
	return controller.Controller{Name: "greeter", New: func(d *controller.Deps) (controller.Runner, error) {
		names := make(chan string, 100)
		err := d.Subscribe(d.Informers.Core().V1().Namespaces().Informer(), cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
			names <- obj.(*corev1.Namespace).Name
		}})
		return controller.RunnerFunc(func(ctx context.Context) error {
			for {
				select {
				case name := <-names:
					if name == "mine" {
						greeted <- "hello, " + name
					}
				case <-ctx.Done():
					return nil
				}
			}
		}), err
	}}
}

// A controller in Go runs beside the built-in ones.
func ExampleExtensions_controllers() {
	ctx := context.Background()
	greeted := make(chan string, 1)
	s := &embed.Server{Node: embed.NodeNone, Extensions: embed.Extensions{Controllers: []controller.Controller{greeter(greeted)}}}
	if err := s.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	defer s.Stop()
	mine := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
	if _, err := s.Client().CoreV1().Namespaces().Create(ctx, mine, metav1.CreateOptions{}); err != nil {
		fmt.Println(err)
	}
	fmt.Println(<-greeted)
	// Output: hello, mine
}

// journal is a store engine of one's own: it notes the keys of each commit, and leaves the storing to another engine.
type journal struct {
	store.Engine
	written chan string
}

// Commit implements [store.Engine].
func (j journal) Commit(ctx context.Context, ops ...store.Op) (int64, []*store.Record, error) {
	revision, records, err := j.Engine.Commit(ctx, ops...)
	if err == nil {
		for _, op := range ops {
			if strings.Contains(op.Key, "/configmaps/default/") {
				j.written <- op.Key
			}
		}
	}
	return revision, records, err
}

// A cluster on a store engine of one's own, which passes the suite of package store/storetest.
func ExampleServer_engine() {
	ctx := context.Background()
	engine := journal{memory.Open(memory.Options{}), make(chan string, 100)}
	s := &embed.Server{Controllers: []string{"none"}, Engine: engine}
	if err := s.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	defer s.Stop()
	mine := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
	if _, err := s.Client().CoreV1().ConfigMaps("default").Create(ctx, mine, metav1.CreateOptions{}); err != nil {
		fmt.Println(err)
	}
	fmt.Println(<-engine.written)
	// Output: /registry/configmaps/default/mine
}
