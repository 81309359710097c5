// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestManagerReplicas runs two replicas of an operator as it is deployed: with an elected leader, a cached client with a
// field index, watches of metadata alone, server-side apply and the status subresource. The leader dies, and the other
// goes on.
func TestManagerReplicas(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	ctrl.SetLogger(logr.Discard())
	replica := func(name string) (*mirror, context.CancelFunc, <-chan error) {
		t.Helper()
		lease, renew, retry := 2*time.Second, 1500*time.Millisecond, 200*time.Millisecond
		again := true
		m, err := ctrl.NewManager(cluster.Config(), ctrl.Options{
			Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0", Controller: config.Controller{SkipNameValidation: &again},
			LeaderElection: true, LeaderElectionID: "mirror.example.com", LeaderElectionNamespace: "default",
			LeaseDuration: &lease, RenewDeadline: &renew, RetryPeriod: &retry,
		})
		if err != nil {
			t.Fatal(err)
		}
		r := &mirror{Client: m.GetClient(), name: name, elected: m.Elected()}
		if err := m.GetFieldIndexer().IndexField(t.Context(), &appsv1.Deployment{}, "image", func(o client.Object) []string {
			var out []string
			for _, c := range o.(*appsv1.Deployment).Spec.Template.Spec.Containers {
				out = append(out, c.Image)
			}
			return out
		}); err != nil {
			t.Fatal(err)
		}
		if err := ctrl.NewControllerManagedBy(m).Named("mirror").For(&appsv1.Deployment{}).
			WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
				return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: o.GetNamespace(), Name: o.GetLabels()["for"]}}}
			})).Complete(r); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Start(ctx) }()
		return r, stop, ended
	}
	first, die, firstEnded := replica("first")
	<-first.elected
	second, leave, secondEnded := replica("second")

	c := cluster.Client()
	labels := map[string]string{"app": "mirrored"}
	if _, err := c.AppsV1().Deployments("default").Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "mirrored"},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "mortise.local/web:1"}}},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mirrored := func(by, same, secrets string) {
		t.Helper()
		await(t, c, "default", "mirrored", func(m *corev1.ConfigMap) bool {
			return m.Data["by"] == by && m.Data["same-image"] == same && m.Data["secrets"] == secrets
		})
	}
	mirrored("first", "1", "0")
	if _, err := c.CoreV1().Secrets("default").Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Labels: map[string]string{"for": "mirrored"}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mirrored("first", "1", "1")
	select {
	case <-second.elected:
		t.Error("two replicas lead")
	default:
	}
	die()
	if err := <-firstEnded; err != nil {
		t.Errorf("first: %v", err)
	}
	<-second.elected
	mirrored("second", "1", "1")
	d, err := c.AppsV1().Deployments("default").Get(t.Context(), "mirrored", metav1.GetOptions{})
	if err != nil || d.Status.ObservedGeneration != 1 || d.Generation != 1 || d.Labels["mirrored"] != "" {
		t.Errorf("the status: %v, %v", d, err)
	}
	leave()
	if err := <-secondEnded; err != nil {
		t.Errorf("second: %v", err)
	}
}

// mirror is the operator: for each Deployment it keeps a ConfigMap that says what its caches tell.
type mirror struct {
	client.Client
	name    string
	elected <-chan struct{}
}

func (r *mirror) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var d appsv1.Deployment
	if err := r.Get(ctx, request.NamespacedName, &d); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	var same appsv1.DeploymentList
	if err := r.List(ctx, &same, client.InNamespace(d.Namespace), client.MatchingFieldsSelector{
		Selector: fields.OneTermEqualSelector("image", d.Spec.Template.Spec.Containers[0].Image),
	}); err != nil {
		return ctrl.Result{}, err
	}
	secrets := &metav1.PartialObjectMetadataList{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := r.List(ctx, secrets, client.InNamespace(d.Namespace), client.MatchingLabels{"for": d.Name}); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.Apply(ctx, coreapply.ConfigMap(d.Name, d.Namespace).WithData(map[string]string{
		"by": r.name, "same-image": fmt.Sprint(len(same.Items)), "secrets": fmt.Sprint(len(secrets.Items)),
	}), client.FieldOwner("mirror"), client.ForceOwnership); err != nil {
		return ctrl.Result{}, err
	}
	if d.Status.ObservedGeneration == d.Generation {
		return ctrl.Result{}, nil
	}
	before := d.DeepCopy()
	d.Labels = map[string]string{"mirrored": "yes"} // not the status: it is not to be written
	d.Status.ObservedGeneration = d.Generation
	if err := r.Status().Patch(ctx, &d, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil &&
		!apierrors.IsConflict(err) {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, nil
}
