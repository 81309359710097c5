// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

var (
	sliceKind   = schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}
	requestKind = schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}
)

// faulty is a lister that fails for one resource while its error is set.
type faulty struct {
	*objects
	err error
	of  schema.GroupResource // the resource that cannot be listed
}

func (f *faulty) List(ctx context.Context, r schema.GroupResource, namespace string) ([]resource.Object, error) {
	if f.err != nil && r == f.of {
		return nil, f.err
	}
	return f.objects.List(ctx, r, namespace)
}

// follower returns a graph that was loaded from an empty store.
type follower struct {
	*testing.T
	*Graph
}

func newFollower(t *testing.T) *follower {
	f := &follower{t, NewGraph()}
	if err := f.Load(t.Context(), &objects{}); err != nil {
		t.Fatal(err)
	}
	f.wants("n1", pods, "p", false)
	return f
}

// commit makes the graph apply an object's change, and checks whether that changes relations.
func (f *follower) commit(r schema.GroupResource, obj resource.Object, changes bool) {
	f.Helper()
	if f.same(followed[r], obj.GetNamespace(), obj.GetName(), obj) == changes {
		f.Errorf("%s %s changes relations: %v", r, obj.GetName(), !changes)
	}
	if err := f.Apply(f.Context(), &feed.Change{Resource: r, Namespace: obj.GetNamespace(), Name: obj.GetName(), Object: obj}); err != nil {
		f.Error(err)
	}
}

func (f *follower) wants(node string, k kind, name string, want bool) {
	f.Helper()
	namespace := "ns"
	if k == attachments || k == slicesOfNodes {
		namespace = ""
	}
	if got, err := f.Related(f.Context(), node, k, namespace, name); err != nil || got != want {
		f.Errorf("%s and %s %s are related: %v, %v", node, kindName(k), name, got, err)
	}
}

// TestPodsThatChange checks that a node may read new references of its pod, and no longer those of an earlier pod of
// the same name. Changes without new references block no reader.
func TestPodsThatChange(t *testing.T) {
	f := newFollower(t)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "1"}}
	change := func(how func(*corev1.Pod), changes bool) {
		t.Helper()
		p = p.DeepCopy()
		how(p)
		f.commit(podKind, p, changes)
	}
	change(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "sa" }, false) // it is not bound to a node
	f.wants("n1", accounts, "sa", false)
	change(func(p *corev1.Pod) { p.Spec.NodeName = "n1" }, true)
	f.wants("n1", accounts, "sa", true)
	f.wants("n2", accounts, "sa", false)
	change(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, false)

	change(func(p *corev1.Pod) {
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}},
		}}}
	}, true)
	f.wants("n1", secrets, "s", true)

	template := corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: new("t")}
	change(func(p *corev1.Pod) { p.UID, p.Spec.ResourceClaims = "2", []corev1.PodResourceClaim{template} }, true)
	change(func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu"}} }, true)
	f.wants("n1", resourceClaims, "p-gpu", false)
	change(func(p *corev1.Pod) { p.Status.ResourceClaimStatuses[0].ResourceClaimName = new("p-gpu") }, true)
	f.wants("n1", resourceClaims, "p-gpu", true)
	change(func(p *corev1.Pod) {
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"}
	}, true)
	f.wants("n1", resourceClaims, "extended", true)

	change(func(p *corev1.Pod) {
		p.UID, p.Spec, p.Status = "3", corev1.PodSpec{NodeName: "n1", ServiceAccountName: "other"}, corev1.PodStatus{}
	}, true)
	f.wants("n1", accounts, "other", true)
	for k, name := range map[kind]string{accounts: "sa", secrets: "s", resourceClaims: "extended"} {
		f.wants("n1", k, name, false)
	}
	change(func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, true) // a pod of this name on another node
	f.wants("n1", pods, "p", false)
	f.wants("n2", accounts, "other", true)
}

// TestBoundObjectsThatChange checks that an object that names its node belongs to the node that it currently names.
func TestBoundObjectsThatChange(t *testing.T) {
	f := newFollower(t)
	for _, c := range []struct {
		kind   kind
		of     schema.GroupResource
		naming func(node string) resource.Object
	}{
		{attachments, attachmentKind, func(node string) resource.Object {
			return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: node}}
		}},
		{slicesOfNodes, sliceKind, func(node string) resource.Object {
			return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: resourcev1.ResourceSliceSpec{NodeName: &node}}
		}},
		{certificateRequests, requestKind, func(node string) resource.Object {
			out := &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x"}}
			out.Spec.NodeName = types.NodeName(node)
			return out
		}},
	} {
		for _, node := range []string{"n1", "n2"} {
			f.commit(c.of, c.naming(node), true)
			f.commit(c.of, c.naming(node), false)
			f.wants("n1", c.kind, "x", node == "n1")
			f.wants("n2", c.kind, "x", node == "n2")
		}
		f.commit(c.of, c.naming(""), true)
		f.wants("n2", c.kind, "x", false)
	}
}

// TestGraphThatCannotBeLoaded checks that the graph allows nothing and returns the error while the store cannot be
// read.
func TestGraphThatCannotBeLoaded(t *testing.T) {
	z, o := fixture(t)
	b := &faulty{objects: o, err: errors.New("no quorum"), of: attachmentKind}
	decide := func() (authorize.Decision, error) {
		a := ask("get secrets ns/s")
		a.User = ofNode("n1")
		d, _, err := z.Authorize(t.Context(), a)
		return d, err
	}
	for range 2 {
		if err := z.Graph.Load(t.Context(), b); !errors.Is(err, b.err) {
			t.Errorf("loaded: %v", err)
		}
		gone := &feed.Change{Resource: podKind, Namespace: "ns", Name: "p"} // contained in the next snapshot
		if err := z.Graph.Apply(t.Context(), gone); err != nil {
			t.Error(err)
		}
		if d, err := decide(); d != authorize.NoOpinion || err == nil || !strings.Contains(err.Error(), "no quorum") {
			t.Errorf("decided %v, %v", d, err)
		}
	}
	b.err = nil
	if err := z.Graph.Load(t.Context(), b); err != nil {
		t.Error(err)
	}
	if d, err := decide(); d != authorize.Allow || err != nil {
		t.Errorf("when it is loaded: %v, %v", d, err)
	}
}

// TestFirstQuestion checks that the first use loads the graph, and waits for that as long as its client does.
func TestFirstQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGraph()
		ctx, leave := context.WithCancel(t.Context())
		answers := make(chan error, 2)
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() {
				related, err := g.Related(ctx, "n1", attachments, "", "va")
				if err == nil && !related {
					err = errors.New("they are not related")
				}
				answers <- err
			}()
		}
		synctest.Wait()
		select {
		case <-g.Wanted():
		default:
			t.Error("nobody wants the graph")
		}
		leave()
		if err := <-answers; !errors.Is(err, context.Canceled) {
			t.Errorf("a client that left: %v", err)
		}
		_, o := fixture(t)
		if err := g.Load(t.Context(), o); err != nil {
			t.Error(err)
		}
		if err := <-answers; err != nil {
			t.Errorf("a client that waited: %v", err)
		}
	})
}

// TestVolumesOfSecrets checks that a secret of two volumes stays readable while one of them is left.
func TestVolumesOfSecrets(t *testing.T) {
	f := newFollower(t)
	for _, name := range []string{"a", "b", "c"} {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}}
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: name}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{NodePublishSecretRef: &corev1.SecretReference{Namespace: "ns", Name: "s"}}
		f.commit(volumeKind, pv, true)
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n1", Volumes: []corev1.Volume{
		{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "b"}}},
	}}}
	f.commit(podKind, p, true)
	f.wants("n1", secrets, "s", true)
	for i, name := range []string{"a", "b"} {
		if err := f.Apply(t.Context(), &feed.Change{Resource: volumeKind, Name: "pv-" + name}); err != nil {
			t.Fatal(err)
		}
		f.wants("n1", secrets, "s", i == 0)
	}
}

// TestFollowed checks that the graph supports all resources that it follows.
func TestFollowed(t *testing.T) {
	for _, r := range Kinds() {
		if _, ok := followed[r]; !ok {
			t.Errorf("%s is followed and not known", r)
		}
	}
	if len(Kinds()) != len(followed) {
		t.Errorf("%d resources are followed, and %d known", len(Kinds()), len(followed))
	}
	if z, _ := fixture(t); z.Name() != "node" {
		t.Errorf("the authorizer's name is %s", z.Name())
	}
}
