// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	appsapply "k8s.io/client-go/applyconfigurations/apps/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	clientfeatures "k8s.io/client-go/features"
	featuretesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/util/retry"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// media are the encodings that client-go speaks.
var media = []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf, runtime.ContentTypeCBOR}

// overheard notes the media types of requests and answers.
type overheard struct {
	next      http.RoundTripper
	mu        sync.Mutex
	requests  []string // METHOD URL
	sent, got map[string]int
}

// overhear wraps a configuration's transport.
func overhear(c *rest.Config) *overheard {
	o := &overheard{sent: map[string]int{}, got: map[string]int{}}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		o.next = next
		return o
	})
	return o
}

func (o *overheard) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := o.next.RoundTrip(r)
	if err != nil {
		return answer, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests = append(o.requests, r.Method+" "+r.URL.RequestURI())
	if r.Body != nil {
		o.sent[r.Header.Get("Content-Type")]++
	}
	o.got[answer.Header.Get("Content-Type")]++
	return answer, nil
}

// asked counts the requests whose method and URL hold all of the parts.
func (o *overheard) asked(parts ...string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, r := range o.requests {
		holds := true
		for _, p := range parts {
			holds = holds && strings.Contains(r, p)
		}
		if holds {
			n++
		}
	}
	return n
}

// allowCBOR turns client-go's CBOR on for one test.
func allowCBOR(t *testing.T) {
	featuretesting.SetFeatureDuringTest(t, clientfeatures.ClientsAllowCBOR, true)
	featuretesting.SetFeatureDuringTest(t, clientfeatures.ClientsPreferCBOR, true)
}

// speaksCBOR is a server with upstream's feature gate, which is off by default, as the clients' are.
func speaksCBOR() *embed.Server {
	return &embed.Server{Controllers: []string{"none"}, FeatureGates: map[string]bool{"CBORServingAndStorage": true}}
}

// everyObject creates, with the dynamic client, one object of every kind and returns them as the server has them.
func everyObject(t *testing.T, c *rest.Config) []unstructured.Unstructured {
	t.Helper()
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile("testdata/kubectl/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(file), 4096)
	var out []unstructured.Unstructured
	for {
		var o unstructured.Unstructured
		if err := documents.Decode(&o); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		gvk := o.GroupVersionKind()
		m, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			t.Fatal(err)
		}
		var api dynamic.ResourceInterface = objects.Resource(m.Resource)
		if m.Scope.Name() == meta.RESTScopeNameNamespace {
			api = objects.Resource(m.Resource).Namespace(o.GetNamespace())
		}
		made, err := api.Apply(t.Context(), o.GetName(), &o, metav1.ApplyOptions{FieldManager: "test"})
		if err != nil {
			t.Fatalf("apply %s %s: %v", gvk, o.GetName(), err)
		}
		made.SetSelfLink("/apis/" + gvk.GroupVersion().String())
		if gvk.Group == "" {
			made.SetSelfLink("/api/v1")
		}
		if o.GetNamespace() != "" {
			made.SetSelfLink(made.GetSelfLink() + "/namespaces/" + o.GetNamespace())
		}
		made.SetSelfLink(made.GetSelfLink() + "/" + m.Resource.Resource)
		out = append(out, *made)
	}
}

// TestEveryKindInEveryEncoding reads one object of each built-in kind, and its list, with client-go's codecs in JSON,
// protobuf and CBOR, and wants the same Go value from all; then it writes each back in each encoding, which changes nothing.
func TestEveryKindInEveryEncoding(t *testing.T) {
	allowCBOR(t)
	cluster := embedtest.Start(t, speaksCBOR())
	objects := everyObject(t, cluster.Config())
	kinds := map[string]bool{}
	for _, o := range objects {
		gvk := o.GroupVersionKind()
		if !scheme.Scheme.Recognizes(gvk) {
			continue // a CRD or an APIService, which the client has no types for
		}
		kinds[gvk.String()] = true
		collection := o.GetSelfLink()
		var first, firstList runtime.Object
		for _, m := range media {
			config := cluster.Config()
			heard := overhear(config)
			gv := gvk.GroupVersion()
			config.GroupVersion, config.ContentType, config.AcceptContentTypes = &gv, m, m
			config.NegotiatedSerializer, config.WarningHandler = codecs(), rest.NoWarnings{}
			client, err := rest.UnversionedRESTClientFor(config)
			if err != nil {
				t.Fatal(err)
			}
			got, err := client.Get().AbsPath(collection, o.GetName()).Do(t.Context()).Get()
			if err != nil {
				t.Errorf("get %s in %s: %v", gvk.Kind, m, err)
				continue
			}
			list, err := client.Get().AbsPath(collection).Do(t.Context()).Get()
			if err != nil {
				t.Errorf("list %s in %s: %v", gvk.Kind, m, err)
				continue
			}
			forgetKinds(got)
			forgetKinds(list)
			if heard.got[m] != 2 {
				t.Errorf("%s: asked for %s, got %v", gvk.Kind, m, heard.got)
			}
			if first == nil {
				first, firstList = got, list
			}
			if !apiequality.Semantic.DeepEqual(first, got) {
				t.Errorf("%s in %s (-JSON +this):\n%s", gvk.Kind, m, cmp.Diff(first, got))
			}
			if !apiequality.Semantic.DeepEqual(firstList, list) {
				t.Errorf("list of %s in %s (-JSON +this):\n%s", gvk.Kind, m, cmp.Diff(firstList, list))
			}
			back, err := client.Put().AbsPath(collection, o.GetName()).Body(got).Do(t.Context()).Get()
			if err != nil {
				t.Errorf("put %s in %s: %v", gvk.Kind, m, err)
				continue
			}
			forgetKinds(back)
			if !sameButManagers(t, got, back) {
				t.Errorf("put %s in %s changed it:\n%s", gvk.Kind, m, cmp.Diff(got, back))
			}
			// What the write changed of the managers is not there to be compared with.
			if now, err := client.Get().AbsPath(collection, o.GetName()).Do(t.Context()).Get(); err == nil {
				first = now
				forgetKinds(first)
				if l, err := client.Get().AbsPath(collection).Do(t.Context()).Get(); err == nil {
					firstList = l
					forgetKinds(firstList)
				}
			}
		}
	}
	if len(kinds) < 55 {
		t.Errorf("%d kinds were compared, want all that are built in", len(kinds))
	}
}

// forgetKinds takes out what protobuf has no place for: the kind of an object within an object.
func forgetKinds(o runtime.Object) {
	sets := []*appsv1.StatefulSet{}
	switch o := o.(type) {
	case *appsv1.StatefulSet:
		sets = append(sets, o)
	case *appsv1.StatefulSetList:
		for i := range o.Items {
			sets = append(sets, &o.Items[i])
		}
	}
	for _, s := range sets {
		for i := range s.Spec.VolumeClaimTemplates {
			s.Spec.VolumeClaimTemplates[i].TypeMeta = metav1.TypeMeta{}
		}
	}
}

// codecs are client-go's own, with CBOR.
func codecs() runtime.NegotiatedSerializer {
	return rest.CodecFactoryForGeneratedClient(scheme.Scheme, scheme.Codecs).WithoutConversion()
}

// sameButManagers compares two states of an object but for who wrote which field when, and the revision.
func sameButManagers(t *testing.T, a, b runtime.Object) bool {
	t.Helper()
	strip := func(o runtime.Object) runtime.Object {
		o = o.DeepCopyObject()
		m, err := meta.Accessor(o)
		if err != nil {
			t.Fatal(err)
		}
		m.SetManagedFields(nil)
		m.SetResourceVersion("")
		return o
	}
	return apiequality.Semantic.DeepEqual(strip(a), strip(b))
}

// TestTypedClients takes a typed client through every verb in each encoding.
func TestTypedClients(t *testing.T) {
	allowCBOR(t)
	cluster := embedtest.Start(t, speaksCBOR())
	for i, m := range media {
		t.Run(m, func(t *testing.T) {
			config := cluster.Config()
			heard := overhear(config)
			config.ContentType, config.AcceptContentTypes = m, m
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			ctx, name := t.Context(), fmt.Sprintf("typed-%d", i)
			deployments := client.AppsV1().Deployments("default")
			events, err := deployments.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
			if err != nil {
				t.Fatal(err)
			}
			defer events.Stop()

			labels := map[string]string{"app": name}
			two := int32(2)
			made, err := deployments.Create(ctx, &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
				Spec: appsv1.DeploymentSpec{Replicas: &two, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "mortise.local/c:1"}}},
				}},
			}, metav1.CreateOptions{})
			if err != nil || made.UID == "" || made.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
				t.Fatalf("created %v, %v", made, err)
			}
			if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
				stale := made.DeepCopy() // the first try is refused: somebody else was faster
				if made.Labels["faster"] == "" {
					faster := made.DeepCopy()
					faster.Labels["faster"] = "yes"
					if made, err = deployments.Update(ctx, faster, metav1.UpdateOptions{}); err != nil {
						return err
					}
				}
				stale.Labels["slower"] = "yes"
				_, err := deployments.Update(ctx, stale, metav1.UpdateOptions{})
				return err
			}); err != nil {
				t.Errorf("update with retries: %v", err)
			}
			made.Status.Replicas = 7
			if _, err := deployments.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err == nil {
				t.Error("an update with an old resourceVersion was taken")
			}
			if made, err = deployments.Patch(ctx, name, types.StrategicMergePatchType, []byte(`{"status":{"replicas":7}}`), metav1.PatchOptions{},
				"status"); err != nil || made.Status.Replicas != 7 || made.Labels["slower"] != "yes" {
				t.Errorf("patch of the status: %v, %v", made, err)
			}
			applied, err := deployments.Apply(ctx, appsapply.Deployment(name, "default").WithSpec(appsapply.DeploymentSpec().WithReplicas(3).
				WithTemplate(coreapply.PodTemplateSpec().WithSpec(
					coreapply.PodSpec().WithContainers(coreapply.Container().WithName("c").WithEnv(coreapply.EnvVar().WithName("A").WithValue("b")))))),
				metav1.ApplyOptions{FieldManager: "applier", Force: true})
			if err != nil || *applied.Spec.Replicas != 3 || len(applied.Spec.Template.Spec.Containers[0].Env) != 1 {
				t.Fatalf("apply: %v, %v", applied, err)
			}
			extracted, err := appsapply.ExtractDeployment(applied, "applier")
			if err != nil || *extracted.Spec.Replicas != 3 || extracted.Spec.Selector != nil ||
				*extracted.Spec.Template.Spec.Containers[0].Env[0].Name != "A" {
				t.Errorf("extracted %v, %v", extracted, err)
			}
			extracted.Spec.Replicas = nil // what is given up goes to nobody: another manager's value stays
			if applied, err = deployments.Apply(ctx, extracted.WithLabels(map[string]string{"by": "applier"}),
				metav1.ApplyOptions{FieldManager: "applier"}); err != nil || applied.Labels["by"] != "applier" {
				t.Errorf("apply of what was extracted: %v, %v", applied, err)
			}
			if _, err := deployments.Apply(ctx, appsapply.Deployment(name, "default").WithLabels(map[string]string{"by": "other"}),
				metav1.ApplyOptions{FieldManager: "other"}); err == nil || !strings.Contains(err.Error(), `conflict with "applier"`) {
				t.Errorf("a conflict says %v", err)
			}
			scale, err := deployments.GetScale(ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			scale.Spec.Replicas = 5
			if scale, err = deployments.UpdateScale(ctx, name, scale, metav1.UpdateOptions{}); err != nil || scale.Spec.Replicas != 5 ||
				scale.Status.Selector != "app="+name {
				t.Errorf("scale %v, %v", scale, err)
			}
			if list, err := deployments.List(ctx, metav1.ListOptions{LabelSelector: "app=" + name}); err != nil || len(list.Items) != 1 ||
				*list.Items[0].Spec.Replicas != 5 {
				t.Errorf("list %v, %v", list, err)
			}
			if err := deployments.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=" + name}); err != nil {
				t.Error(err)
			}
			seen := map[watch.EventType]int{}
			for e := range events.ResultChan() {
				d, ok := e.Object.(*appsv1.Deployment)
				if !ok || d.Name != name {
					t.Fatalf("watched %#v", e)
				}
				if seen[e.Type]++; e.Type == watch.Deleted {
					break
				}
			}
			if seen[watch.Added] != 1 || seen[watch.Modified] != 6 || seen[watch.Deleted] != 1 {
				t.Errorf("watched %v", seen)
			}
			if _, err := client.CoreV1().Secrets("default").Apply(ctx, coreapply.Secret(name, "default").WithStringData(map[string]string{"a": "b"}).
				WithOwnerReferences(metaapply.OwnerReference().WithAPIVersion("v1").WithKind("ConfigMap").WithName("x").WithUID("y")),
				metav1.ApplyOptions{FieldManager: "applier"}); err != nil {
				t.Error(err)
			}
			for got := range heard.got {
				if !strings.HasPrefix(got, m) {
					t.Errorf("answers came as %v, want %s only", heard.got, m)
					break
				}
			}
		})
	}
}

// unstructuredOf is an object of a kind that has no Go type.
func unstructuredOf(apiVersion, kind, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}}}
}
