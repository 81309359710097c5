// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestControllerRuntime runs an operator as people write them: for each Deployment it owns a ConfigMap that says how many
// replicas are ready, and puts it back when somebody deletes it.
func TestControllerRuntime(t *testing.T) {
	cluster := embedtest.New(t)
	ctrl.SetLogger(logr.Discard())
	manager, err := ctrl.NewManager(cluster.Config(), ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := ctrl.NewControllerManagedBy(manager).For(&appsv1.Deployment{}).Owns(&corev1.ConfigMap{}).Complete(
		&reporter{manager.GetClient()}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("manager: %v", err)
		}
	}()

	c := cluster.Client()
	labels := map[string]string{"app": "reported"}
	replicas := int32(2)
	if _, err := c.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "reported"},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "mortise.local/web:1"}}},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	reported := func() {
		t.Helper()
		await(t, cluster.Client(), "default", "report-reported", func(m *corev1.ConfigMap) bool { return m.Data["ready"] == "2" })
	}
	reported()
	if err := c.CoreV1().ConfigMaps("default").Delete(ctx, "report-reported", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	reported()

	// The owner goes, and the garbage collector takes what it owned.
	w, err := c.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=report-reported"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	background := metav1.DeletePropagationBackground
	if err := c.AppsV1().Deployments("default").Delete(ctx, "reported", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	late := time.After(30 * time.Second)
	for {
		select {
		case e := <-w.ResultChan():
			if e.Type == "DELETED" {
				return
			}
		case <-late:
			t.Fatal("the report is still there 30 s after its owner was deleted")
		}
	}
}

// reporter is the operator.
type reporter struct{ client.Client }

func (r *reporter) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var d appsv1.Deployment
	if err := r.Get(ctx, request.NamespacedName, &d); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if d.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	report := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: "report-" + d.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, report, func() error {
		report.Data = map[string]string{"ready": fmt.Sprint(d.Status.ReadyReplicas)}
		return controllerutil.SetControllerReference(&d, report, r.Scheme())
	})
	return ctrl.Result{}, err
}

// TestInformer runs a client-go informer over TLS while objects come, change and go, and wants its cache to be right.
func TestInformer(t *testing.T) {
	cluster := embedtest.New(t)
	c := cluster.Client()
	const n = 50
	for i := range n / 2 { // half before it starts, half after
		makeConfigMap(t, c.CoreV1().ConfigMaps("default").Create, i)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithNamespace("default"))
	informer := factory.Core().V1().ConfigMaps().Informer()
	var mu sync.Mutex
	seen := map[string]string{}
	done := make(chan struct{})
	var once sync.Once
	check := func() {
		right := 0
		for i := range n {
			want := fmt.Sprint(i)
			if i%2 == 1 {
				want = "changed"
			}
			if v, ok := seen[fmt.Sprintf("m%d", i)]; i%5 == 0 && !ok || i%5 != 0 && v == want {
				right++
			}
		}
		if right == n {
			once.Do(func() { close(done) })
		}
	}
	note := func(o any) {
		mu.Lock()
		defer mu.Unlock()
		m := o.(*corev1.ConfigMap)
		seen[m.Name] = m.Data["i"]
		check()
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: note, UpdateFunc: func(_, o any) { note(o) },
		DeleteFunc: func(o any) {
			mu.Lock()
			defer mu.Unlock()
			delete(seen, o.(*corev1.ConfigMap).Name)
			check()
		},
	}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	defer stop()
	for i := n / 2; i < n; i++ {
		makeConfigMap(t, c.CoreV1().ConfigMaps("default").Create, i)
	}
	for i := range n {
		name := fmt.Sprintf("m%d", i)
		switch {
		case i%5 == 0:
			if err := c.CoreV1().ConfigMaps("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		case i%2 == 1:
			m, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			m.Data["i"] = "changed"
			if _, err := c.CoreV1().ConfigMaps("default").Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		mu.Lock()
		defer mu.Unlock()
		t.Fatalf("the informer's cache is not right after 20 s: %v", seen)
	}
}

// makeConfigMap creates ConfigMap m<i>.
func makeConfigMap(t *testing.T, create func(context.Context, *corev1.ConfigMap, metav1.CreateOptions) (*corev1.ConfigMap, error), i int) {
	t.Helper()
	if _, err := create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%d", i)}, Data: map[string]string{"i": fmt.Sprint(i)},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
