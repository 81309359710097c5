// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/mortise-dev/mortise/extension/controller"
)

// welcome gives each namespace a ConfigMap with the name welcome.
func welcome(done chan<- string) controller.Controller {
	return controller.Controller{
		Name:    "welcome",
		Inputs:  []schema.GroupVersionResource{corev1.SchemeGroupVersion.WithResource("namespaces")},
		Outputs: []schema.GroupVersionResource{corev1.SchemeGroupVersion.WithResource("configmaps")},
		New: func(d *controller.Deps) (controller.Runner, error) {
			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
			err := d.Subscribe(d.Informers.Core().V1().Namespaces().Informer(), cache.ResourceEventHandlerFuncs{
				AddFunc: func(obj any) { queue.Add(obj.(*corev1.Namespace).Name) },
			})
			sync := func(ctx context.Context, namespace string) error {
				made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "welcome"}}
				_, err := d.Client.CoreV1().ConfigMaps(namespace).Create(ctx, made, metav1.CreateOptions{})
				return err
			}
			return controller.RunnerFunc(func(ctx context.Context) error {
				defer context.AfterFunc(ctx, queue.ShutDown)()
				for {
					namespace, shutdown := queue.Get()
					if shutdown {
						return nil
					}
					if err := sync(ctx, namespace); err != nil {
						queue.AddRateLimited(namespace)
					} else {
						queue.Forget(namespace)
						done <- namespace
					}
					queue.Done(namespace)
				}
			}), err
		},
	}
}

// A controller adds keys to a queue in its informers' handlers, and works on them in Run. Here it runs with a fake client, as in a test
// of the controller alone. ExampleExtensions_controllers of package embed runs one in a cluster.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mine"}})
	shared := informers.NewSharedInformerFactory(client, 0)
	done := make(chan string, 1)
	runner, err := welcome(done).New(&controller.Deps{
		Client: client, Informers: shared,
		Subscribe: func(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) error {
			_, err := informer.AddEventHandler(handler)
			return err
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	shared.Start(ctx.Done())
	shared.WaitForCacheSync(ctx.Done())
	ended := make(chan error)
	go func() { ended <- runner.Run(ctx) }()
	fmt.Println("done:", <-done)
	made, err := client.CoreV1().ConfigMaps("mine").Get(ctx, "welcome", metav1.GetOptions{})
	fmt.Println(made.Name, err)
	cancel()
	fmt.Println("ended:", <-ended)
	shared.Shutdown()
	// Output:
	// done: mine
	// welcome <nil>
	// ended: <nil>
}
