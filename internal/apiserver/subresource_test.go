// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// controllers are replication controllers with all kinds of subresources; their default is to orphan dependents.
func controllers() *resource.Descriptor {
	empty := func() resource.Object { return &corev1.ReplicationController{} }
	rc := func(o resource.Object) *corev1.ReplicationController { return o.(*corev1.ReplicationController) }
	return &resource.Descriptor{
		Resource: "replicationcontrollers", Singular: "replicationcontroller", Kind: "ReplicationController",
		ListKind:   "ReplicationControllerList",
		Namespaced: true, Storage: "v1", Prefix: "controllers", Codec: typedCodec{empty},
		Versions: []resource.Version{{Name: "v1", New: empty, Protobuf: true, Strategic: true}},
		Strategy: resource.Strategy{
			PrepareCreate: func(_ context.Context, o resource.Object) {
				rc(o).Status = corev1.ReplicationControllerStatus{}
				o.SetGeneration(1)
			},
			PrepareUpdate: func(_ context.Context, o, old resource.Object) { rc(o).Status = rc(old).Status },
			ValidateUpdate: func(_ context.Context, o, _ resource.Object) (errs field.ErrorList) {
				if r := rc(o).Spec.Replicas; r != nil && *r < 0 {
					errs = append(errs, field.Invalid(field.NewPath("spec", "replicas"), *r, "must be 0 or more"))
				}
				return errs
			},
			GarbageCollection: metav1.DeletePropagationOrphan,
			WarnDelete:        func(*metav1.DeleteOptions) []string { return []string{"dependents stay"} },
		},
		Subresources: []resource.Subresource{
			{Name: "status", Verbs: []string{"get", "update", "patch"}, Strategy: &resource.Strategy{
				PrepareUpdate: func(_ context.Context, o, old resource.Object) { rc(o).Spec = *rc(old).Spec.DeepCopy() },
			}},
			{Name: "scale", Verbs: []string{"get", "update", "patch"},
				GroupVersionKind: schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}, View: &resource.View{
					New: func() resource.Object { return &autoscalingv1.Scale{} },
					Get: func(p resource.Object) (resource.Object, error) {
						s := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: p.GetName(), Namespace: p.GetNamespace(), UID: p.GetUID(),
							ResourceVersion: p.GetResourceVersion()}}
						if r := rc(p).Spec.Replicas; r != nil {
							s.Spec.Replicas = *r
						}
						return s, nil
					},
					Set: func(v, p resource.Object) error {
						n := v.(*autoscalingv1.Scale).Spec.Replicas
						rc(p).Spec.Replicas = &n
						return nil
					},
				}},
			{Name: "binding", Verbs: []string{"create"}, GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Binding"},
				Create: &resource.Create{
					New: func() resource.Object { return &corev1.Binding{} },
					Do: func(ctx context.Context, b resource.Backend, ns, name string, obj resource.Object, o *metav1.CreateOptions) (runtime.Object,
						error) {
						_, err := b.Update(ctx, schema.GroupResource{Resource: "replicationcontrollers"}, ns, name, len(o.DryRun) > 0,
							func(p resource.Object) error {
								p.SetAnnotations(map[string]string{"bound": obj.(*corev1.Binding).Target.Name})
								return nil
							})
						return &metav1.Status{Status: metav1.StatusSuccess}, err
					},
				}},
			{Name: "proxy", Verbs: []string{"get"}, Connect: &resource.Connect{
				TakesPath: true,
				Options:   func(q url.Values) (runtime.Object, error) { return &corev1.PodProxyOptions{Path: q.Get("path")}, nil },
				Handler: func(_ context.Context, _ resource.Backend, ns, name string, _ runtime.Object, path string) (http.Handler, error) {
					return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "%s/%s%s", ns, name, path) }), nil
				},
			}},
		},
	}
}

func startControllers(t *testing.T) (*Server, *rest.Config) {
	t.Helper()
	m, err := serving.LoadOrCreate("", nil, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	engine := store.New(memory.Open(memory.Options{}))
	s, err := New(Options{Store: engine, Kinds: []*resource.Descriptor{controllers(), nodes()}, Material: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.end()
		s.lifetime.Group.Wait()
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, s.Config(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
}

func nodes() *resource.Descriptor {
	empty := func() resource.Object { return &corev1.Node{} }
	return &resource.Descriptor{Resource: "nodes", Kind: "Node", ListKind: "NodeList", Storage: "v1", Prefix: "minions",
		Codec:    typedCodec{empty},
		Versions: []resource.Version{{Name: "v1", New: empty}}}
}

func TestSubresources(t *testing.T) {
	s, config := startControllers(t)
	ctx := t.Context()
	client := kubernetes.NewForConfigOrDie(config).CoreV1()
	c := client.ReplicationControllers("ns")
	one := int32(1)
	made, err := c.Create(ctx, &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "rc"},
		Spec: corev1.ReplicationControllerSpec{Replicas: &one}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Replicas, made.Spec.Replicas = 3, nil
	with, err := c.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	if err != nil || with.Status.Replicas != 3 || *with.Spec.Replicas != 1 {
		t.Errorf("status: %+v, %v", with, err)
	}
	scale, err := c.GetScale(ctx, "rc", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 1 {
		t.Fatalf("scale: %v, %v", scale, err)
	}
	scale.Spec.Replicas = 5
	if scale, err = c.UpdateScale(ctx, "rc", scale, metav1.UpdateOptions{}); err != nil || scale.Spec.Replicas != 5 {
		t.Errorf("scaled: %v, %v", scale, err)
	}
	direct, core := NewDirect(s), corev1.SchemeGroupVersion
	if d := cmp.Diff(scale, direct.Scale(ctx, core.WithResource("replicationcontrollers"), "ns", "rc")); d != "" {
		t.Errorf("the scale without a request: %s", d)
	}
	for _, none := range []string{"replicationcontrollers", "nodes", "unknown"} {
		if got := direct.Scale(ctx, core.WithResource(none), "ns", "other"); got != nil {
			t.Errorf("the scale of something in %s: %v", none, got)
		}
	}
	if _, err = c.Patch(ctx, "rc", types.MergePatchType, []byte(`{"spec":{"replicas":-1}}`), metav1.PatchOptions{},
		"scale"); !apierrors.IsInvalid(err) {
		t.Errorf("bad scale: %v", err)
	}
	bind := client.RESTClient().Post().Namespace("ns").Resource("replicationcontrollers").Name("rc").SubResource("binding").
		Body(&corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "rc"}, Target: corev1.ObjectReference{Name: "n1"}})
	if err := bind.Do(ctx).Error(); err != nil {
		t.Errorf("bind: %v", err)
	}
	got, err := c.Get(ctx, "rc", metav1.GetOptions{})
	if err != nil || got.Annotations["bound"] != "n1" || *got.Spec.Replicas != 5 || got.Status.Replicas != 3 {
		t.Errorf("after all: %+v, %v", got, err)
	}
	stream, err := client.RESTClient().Get().Namespace("ns").Resource("replicationcontrollers").Name("rc").SubResource("proxy").Suffix(
		"a/b").Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if b, err := io.ReadAll(stream); err != nil || string(b) != "ns/rc/a/b" {
		t.Errorf("proxied %q, %v", b, err)
	}
	if err := client.RESTClient().Get().Namespace("ns").Resource("replicationcontrollers").Name("rc").SubResource("binding").Do(
		ctx).Error(); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("get of a binding: %v", err)
	}
}

func TestDeletions(t *testing.T) {
	_, config := startControllers(t)
	ctx := t.Context()
	c := kubernetes.NewForConfigOrDie(config).CoreV1().ReplicationControllers("ns")
	policy := func(p metav1.DeletionPropagation) metav1.DeleteOptions {
		return metav1.DeleteOptions{PropagationPolicy: &p}
	}
	for name, want := range map[string]struct {
		opts metav1.DeleteOptions
		has  []string // finalizers afterwards; nil: deleted
	}{
		"silent":     {metav1.DeleteOptions{}, []string{"orphan"}},
		"background": {policy(metav1.DeletePropagationBackground), nil},
		"foreground": {policy(metav1.DeletePropagationForeground), []string{"foregroundDeletion"}},
		"dry":        {metav1.DeleteOptions{DryRun: []string{"All"}}, []string{}},
	} {
		if _, err := c.Create(ctx, &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := c.Delete(ctx, name, want.opts); err != nil {
			t.Fatal(err)
		}
		got, err := c.Get(ctx, name, metav1.GetOptions{})
		if want.has == nil {
			if !apierrors.IsNotFound(err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || !cmp.Equal(append([]string{}, got.Finalizers...), want.has) {
			t.Errorf("%s: finalizers %v, error %v", name, got.Finalizers, err)
		}
		if marked := got.DeletionTimestamp != nil; marked != (name != "dry") || marked && got.Generation != 2 {
			t.Errorf("%s: deletion %v, generation %d", name, got.DeletionTimestamp, got.Generation)
		}
	}
	if err := c.DeleteCollection(ctx, policy(metav1.DeletePropagationBackground), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	left, err := c.List(ctx, metav1.ListOptions{})
	if err != nil || len(left.Items) != 0 {
		t.Errorf("left after deletecollection: %v, %v", left, err)
	}
}

func TestBackend(t *testing.T) {
	s, _ := startControllers(t)
	ctx := t.Context()
	b, rs := s.Backend(), schema.GroupResource{Resource: "nodes"}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n.example"},
			{Type: corev1.NodeInternalIP, Address: "192.0.2.7"}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 1234}},
	}}
	if _, err := b.Create(ctx, rs, n, false); err != nil {
		t.Fatal(err)
	}
	at, tr, err := b.Node(ctx, "n")
	if err != nil || at.String() != "https://192.0.2.7:1234" || tr == nil {
		t.Errorf("node is at %v, %v", at, err)
	}
	if _, _, err := b.Node(ctx, "m"); !apierrors.IsNotFound(err) {
		t.Errorf("no node: %v", err)
	}
	changed, err := b.Update(ctx, rs, "", "n", false, func(o resource.Object) error { o.SetLabels(map[string]string{"a": "b"}); return nil })
	if err != nil || changed.GetLabels()["a"] != "b" {
		t.Errorf("update: %v, %v", changed, err)
	}
	if all, err := b.List(ctx, rs, ""); err != nil || len(all) != 1 {
		t.Errorf("list: %v, %v", all, err)
	}
	if err := b.Delete(ctx, rs, "", "n", nil); err != nil {
		t.Error(err)
	}
	if _, err := b.Get(ctx, rs, "", "n"); !apierrors.IsNotFound(err) {
		t.Errorf("get after delete: %v", err)
	}
}

func TestLongListsAreStreamed(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	for i := range 300 {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i), Namespace: "ns"},
			Data: map[string]string{"k": strings.Repeat("x", 900)}}
		if _, err := f.Backend().Create(ctx, schema.GroupResource{Resource: "configmaps"}, cm, false); err != nil {
			t.Fatal(err)
		}
	}
	for name, config := range clients(t, f) {
		l, err := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{})
		if err != nil || len(l.Items) != 300 || len(l.Items[299].Data["k"]) != 900 {
			t.Errorf("%s: %d items, %v", name, len(l.Items), err)
		}
	}
}
