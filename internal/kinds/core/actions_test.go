// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/mortise-dev/mortise/resource"
)

// shelf is a backend in memory.
type shelf struct {
	resource.Backend
	mu      sync.Mutex
	objects map[string]resource.Object
}

func shelfOf(objs map[string]resource.Object) *shelf { return &shelf{objects: objs} }

func at(r schema.GroupResource, namespace, name string) string {
	return r.String() + "/" + namespace + "/" + name
}

func (s *shelf) Get(_ context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if obj, ok := s.objects[at(r, namespace, name)]; ok {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(r, name)
}

func (s *shelf) List(_ context.Context, r schema.GroupResource, namespace string) ([]resource.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []resource.Object
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if strings.HasPrefix(key, r.String()+"/"+namespace) {
			out = append(out, s.objects[key])
		}
	}
	return out, nil
}

func (s *shelf) Update(_ context.Context, r schema.GroupResource, namespace, name string, dry bool,
	change func(resource.Object) error) (resource.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.objects[at(r, namespace, name)]
	if !ok {
		return nil, apierrors.NewNotFound(r, name)
	}
	obj := old.DeepCopyObject().(resource.Object)
	if err := change(obj); err != nil {
		return nil, err
	}
	if !dry {
		s.objects[at(r, namespace, name)] = obj
	}
	return obj, nil
}

func (s *shelf) Replace(_ context.Context, r schema.GroupResource, namespace, name string, dry bool,
	with func(resource.Object) (resource.Object, error)) (resource.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.objects[at(r, namespace, name)]
	if !ok {
		return nil, apierrors.NewNotFound(r, name)
	}
	obj, err := with(old)
	if err == nil && !dry {
		s.objects[at(r, namespace, name)] = obj
	}
	return obj, err
}

func (s *shelf) Create(_ context.Context, r schema.GroupResource, obj resource.Object, dry bool) (resource.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := at(r, obj.GetNamespace(), obj.GetName())
	if _, ok := s.objects[key]; ok {
		return nil, apierrors.NewAlreadyExists(r, obj.GetName())
	}
	if !dry {
		s.objects[key] = obj
	}
	return obj, nil
}

func (s *shelf) Delete(_ context.Context, r schema.GroupResource, namespace, name string, _ *metav1.DeleteOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, at(r, namespace, name))
	return nil
}

func (s *shelf) IssueToken(_ context.Context, c resource.TokenClaims) (resource.IssuedToken, error) {
	if len(c.Audiences) == 0 {
		c.Audiences = []string{apiAudience}
	}
	return resource.IssuedToken{
		Token:   fmt.Sprintf("%s/%s for %v on %s", c.Namespace, c.ServiceAccount, c.Audiences, c.PodName),
		Expires: metav1.Unix(c.Seconds, 0), Audiences: c.Audiences, Seconds: c.Seconds,
	}, nil
}

func pod(name string, change func(p *corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-1", ResourceVersion: "5",
		Labels: map[string]string{"app": "a"}}}
	p.Status.Phase = corev1.PodRunning
	if change != nil {
		change(p)
	}
	return p
}

// TestBinding binds a pod once, and says why it does not otherwise.
func TestBinding(t *testing.T) {
	binding := func(name string) *corev1.Binding {
		return &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"k": "v"}},
			Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
	}
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		binding *corev1.Binding
		want    string
	}{
		"free": {pod("p", nil), binding("p"), ""},
		"bound": {pod("p", func(p *corev1.Pod) { p.Spec.NodeName = "n0" }), binding("p"),
			`Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n0"`},
		"going": {pod("p", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), binding("p"),
			`Operation cannot be fulfilled on pods/binding "p": pod p is being deleted, cannot be assigned to a host`},
		"gated": {pod("p", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }), binding("p"),
			`Operation cannot be fulfilled on pods/binding "p": pod p has non-empty .spec.schedulingGates`},
		"absent":       {nil, binding("p"), `pods "p" not found`},
		"another name": {pod("p", nil), binding("q"), "name in URL does not match name in Binding object"},
		"no target":    {pod("p", nil), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, "target.name: Required value"},
	} {
		t.Run(name, func(t *testing.T) {
			b := shelfOf(map[string]resource.Object{})
			if c.pod != nil {
				b.objects[at(podsResource, "ns", "p")] = c.pod
			}
			_, err := bindPod(context.Background(), b, "ns", "p", c.binding, &metav1.CreateOptions{})
			if got := fmt.Sprint(err); c.want != "" && got != c.want {
				t.Fatalf("got %s, want %s", got, c.want)
			}
			if c.want != "" {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			p := b.objects[at(podsResource, "ns", "p")].(*corev1.Pod)
			if p.Spec.NodeName != "n1" || p.Annotations["k"] != "v" || len(p.Status.Conditions) != 1 ||
				p.Status.Conditions[0].Type != corev1.PodScheduled {
				t.Errorf("bound pod is %+v", p)
			}
		})
	}
}

// TestBoundIsAsStored: what a binding makes of a pod is kept as it is for readers, so that it has to be what they would read.
func TestBoundIsAsStored(t *testing.T) {
	codec := Pod(nil).Codec
	again := func(p resource.Object) *corev1.Pod {
		data, err := codec.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		obj, err := codec.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		return obj.(*corev1.Pod)
	}
	rapid.Check(t, func(r *rapid.T) {
		words := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "pod.beta.kubernetes.io/init-containers"}),
			rapid.SampledFrom([]string{"", "v"}), 0, 3)
		p := pod("p", func(p *corev1.Pod) {
			p.Annotations, p.Labels = words.Draw(r, "annotations"), words.Draw(r, "labels")
			p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i", Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}
			p.Status.NominatedNodeName = rapid.SampledFrom([]string{"", "n2"}).Draw(r, "nominated")
			for _, kind := range rapid.SliceOfNDistinct(rapid.SampledFrom([]corev1.PodConditionType{corev1.PodScheduled, corev1.PodReady}), 0, 2,
				rapid.ID).Draw(r, "conditions") {
				p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
					Type: kind, Status: corev1.ConditionStatus(rapid.SampledFrom([]string{"True", "False"}).Draw(r, "status")),
					LastTransitionTime: metav1.Unix(7, 0),
				})
			}
		})
		newest := again(p)
		before := newest.DeepCopy()
		binding := &corev1.Binding{Target: corev1.ObjectReference{Name: "n1"}}
		binding.Annotations, binding.Labels = words.Draw(r, "annotations of the binding"), words.Draw(r, "labels of the binding")
		now := bound(newest, binding)
		if want := again(now); !reflect.DeepEqual(now, want) {
			r.Errorf("the bound pod is not what is read back: %s", cmp.Diff(want, now))
		}
		if !reflect.DeepEqual(newest, before) {
			r.Errorf("the pod that was there changed: %s", cmp.Diff(before, newest))
		}
	})
}

// TestEviction spends a budget, and keeps a pod whose budget has nothing left.
func TestEviction(t *testing.T) {
	ready := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	budget := func(allowed int32) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, CurrentHealthy: 1, DesiredHealthy: 1},
		}
	}
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		budget *policyv1.PodDisruptionBudget
		want   string
	}{
		"no budget": {pod("p", ready), nil, ""},
		"room":      {pod("p", ready), budget(1), ""},
		"no room":   {pod("p", ready), budget(0), "Cannot evict pod as it would violate the pod's disruption budget."},
		"not begun": {pod("p", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }), budget(0), ""},
		"not ready": {pod("p", nil), budget(0), ""},
		"still counting": {pod("p", ready), func() *policyv1.PodDisruptionBudget { b := budget(1); b.Generation = 2; return b }(),
			"Cannot evict pod as it would violate the pod's disruption budget."},
	} {
		t.Run(name, func(t *testing.T) {
			b := shelfOf(map[string]resource.Object{at(podsResource, "ns", "p"): c.pod})
			if c.budget != nil {
				b.objects[at(budgetsResource, "ns", "b")] = c.budget
			}
			_, err := evictPod(context.Background(), b, "ns", "p", &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}},
				&metav1.CreateOptions{})
			_, kept := b.objects[at(podsResource, "ns", "p")]
			if c.want != "" {
				if !kept || !apierrors.IsTooManyRequests(err) || err.Error() != c.want {
					t.Fatalf("kept %v, error %v, want %s", kept, err, c.want)
				}
				return
			}
			if err != nil || kept {
				t.Fatalf("kept %v, error %v", kept, err)
			}
		})
	}
}

// TestToken issues tokens, bound to pods of the account only.
func TestToken(t *testing.T) {
	b := shelfOf(map[string]resource.Object{
		at(schema.GroupResource{Resource: "serviceaccounts"}, "ns",
			"a"): &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u"}},
		at(podsResource, "ns", "p"): pod("p", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "a" }),
		at(podsResource, "ns", "q"): pod("q", nil),
	})
	issue := func(change func(r *authenticationv1.TokenRequest)) (*authenticationv1.TokenRequest, error) {
		seconds := int64(3600)
		r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
		change(r)
		out, err := issueToken(context.Background(), b, "ns", "a", r, nil)
		if err != nil {
			return nil, err
		}
		return out.(*authenticationv1.TokenRequest), nil
	}
	bound := func(name string) func(*authenticationv1.TokenRequest) {
		return func(r *authenticationv1.TokenRequest) {
			r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: name}
		}
	}
	r, err := issue(bound("p"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "ns/a for [https://kubernetes.default.svc.cluster.local] on p"; r.Status.Token != want ||
		r.Status.ExpirationTimestamp.Unix() != 3600 {
		t.Errorf("token %q until %v, want %q", r.Status.Token, r.Status.ExpirationTimestamp, want)
	}
	if _, err := issue(bound("q")); !apierrors.IsBadRequest(err) {
		t.Errorf("a token for another account's pod: %v", err)
	}
	if _, err := issue(func(r *authenticationv1.TokenRequest) { *r.Spec.ExpirationSeconds = 5 }); !apierrors.IsInvalid(err) {
		t.Errorf("a token for 5 seconds: %v", err)
	}
}

func service(name string, change func(s *corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	s.Spec.Type = corev1.ServiceTypeClusterIP
	s.Spec.Ports = []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

// TestAllocation gives addresses and ports out once each, takes them back, and learns them anew from the store.
func TestAllocation(t *testing.T) {
	ctx := context.Background()
	ranges := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/29")} // .1 to .6
	b := shelfOf(map[string]resource.Object{})
	a := newAllocator(ranges)
	var all []*corev1.Service
	for i := range 6 {
		s := service(fmt.Sprint("s", i), func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort })
		done, err := a.allocate(ctx, b, s, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		done(true)
		b.objects[at(schema.GroupResource{Resource: "services"}, "ns", s.Name)] = s
		all = append(all, s)
	}
	ips, ports := map[string]bool{}, map[int32]bool{}
	for _, s := range all {
		ips[s.Spec.ClusterIP], ports[s.Spec.Ports[0].NodePort] = true, true
	}
	if len(ips) != 6 || len(ports) != 6 {
		t.Fatalf("six services share: %v %v", ips, ports)
	}
	again := newAllocator(ranges) // as after a restart
	if _, err := again.allocate(ctx, b, service("more", nil), nil, false); err == nil {
		t.Error("a seventh address was found in a full range")
	}
	taken := service("taken", func(s *corev1.ServiceSpec) { s.ClusterIP = all[0].Spec.ClusterIP })
	if _, err := again.allocate(ctx, b, taken, nil, false); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "provided IP is already allocated") {
		t.Errorf("a taken address: %v", err)
	}
	if _, err := again.allocate(ctx, b, service("dry", nil), nil, true); err != nil {
		t.Errorf("a dry run in a full range: %v", err)
	}
	done, err := again.allocate(ctx, b, nil, all[0], false)
	if err != nil {
		t.Fatal(err)
	}
	done(true)
	next := service("next", nil)
	if done, err = again.allocate(ctx, b, next, nil, false); err != nil || next.Spec.ClusterIP != all[0].Spec.ClusterIP {
		t.Fatalf("the address given back: %v, got %s", err, next.Spec.ClusterIP)
	}
	done(false)
	if _, ok := b.objects[at(addressesResource, "", next.Spec.ClusterIP)]; ok {
		t.Error("an address of a write that failed is kept")
	}
}

// TestServiceUpdate keeps what was allocated when a client leaves it out, and frees what a new type has no use for.
func TestServiceUpdate(t *testing.T) {
	ctx := context.Background()
	b := shelfOf(map[string]resource.Object{})
	d := Service([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, nil)
	old := service("s", func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort })
	done, err := d.Strategy.Allocate(ctx, b, old, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	done(true)
	obj := service("s", func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort })
	if done, err = d.Strategy.Allocate(ctx, b, obj, old, false); err != nil {
		t.Fatal(err)
	}
	done(true)
	if obj.Spec.ClusterIP != old.Spec.ClusterIP || obj.Spec.Ports[0].NodePort != old.Spec.Ports[0].NodePort {
		t.Errorf("kept %+v of %+v", obj.Spec, old.Spec)
	}
	external := old.DeepCopy()
	external.Spec.Type, external.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	if done, err = d.Strategy.Allocate(ctx, b, external, old, false); err != nil {
		t.Fatal(err)
	}
	d.Strategy.PrepareUpdate(ctx, external, old)
	done(true)
	if external.Spec.ClusterIP != "" || external.Spec.Ports[0].NodePort != 0 || external.Spec.IPFamilies != nil {
		t.Errorf("an external name keeps %+v", external.Spec)
	}
	if _, ok := b.objects[at(addressesResource, "", old.Spec.ClusterIP)]; ok {
		t.Error("the address is still in use")
	}
}

// TestGrace gives pods on nodes their time, others none.
func TestGrace(t *testing.T) {
	thirty, zero := int64(30), int64(0)
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		asks *int64
		want int64
	}{
		"on a node":      {pod("p", func(p *corev1.Pod) { p.Spec.NodeName = "n"; p.Spec.TerminationGracePeriodSeconds = &thirty }), nil, 30},
		"asked for none": {pod("p", func(p *corev1.Pod) { p.Spec.NodeName = "n"; p.Spec.TerminationGracePeriodSeconds = &thirty }), &zero, 0},
		"without a node": {pod("p", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &thirty }), nil, 0},
		"that has ended": {pod("p", func(p *corev1.Pod) { p.Spec.NodeName = "n"; p.Status.Phase = corev1.PodFailed }), &thirty, 0},
		"negative is soon": {pod("p", func(p *corev1.Pod) { p.Spec.NodeName = "n"; n := int64(-5); p.Spec.TerminationGracePeriodSeconds = &n }),
			nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := &metav1.DeleteOptions{GracePeriodSeconds: c.asks}
			if !gracePod(context.Background(), c.pod, o) || *o.GracePeriodSeconds != c.want {
				t.Errorf("got %d seconds, want %d", *o.GracePeriodSeconds, c.want)
			}
		})
	}
}

// TestAllocationTogether has many services ask at once: none gets another's address or port.
func TestAllocationTogether(t *testing.T) {
	b := shelfOf(map[string]resource.Object{})
	a := newAllocator([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/25")})
	services := make([]*corev1.Service, 100)
	var all sync.WaitGroup
	for i := range services {
		services[i] = service(fmt.Sprint("s", i), func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort })
		all.Go(func() {
			done, err := a.allocate(context.Background(), b, services[i], nil, false)
			if err != nil {
				t.Error(err)
				return
			}
			done(true)
		})
	}
	all.Wait()
	ips, ports := map[string]bool{}, map[int32]bool{}
	for _, s := range services {
		ips[s.Spec.ClusterIP], ports[s.Spec.Ports[0].NodePort] = true, true
	}
	if len(ips) != len(services) || len(ports) != len(services) {
		t.Errorf("%d services have %d addresses and %d ports", len(services), len(ips), len(ports))
	}
}

// TestBindingRefusals are what a binding and an eviction answer beside their success.
func TestBindingRefusals(t *testing.T) {
	ctx := context.Background()
	b := shelfOf(map[string]resource.Object{at(podsResource, "ns", "p"): pod("p", nil)})
	binding := func(name string, change func(*corev1.Binding)) *corev1.Binding {
		o := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
		if change != nil {
			change(o)
		}
		return o
	}
	const stale = "StorageError: invalid object, Code: 4, Key: /registry/pods/ns/p, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: "
	for _, c := range []struct {
		obj  *corev1.Binding
		want string
	}{
		{binding("", nil), "Name parameter required."},
		{binding("p", func(o *corev1.Binding) { o.UID = "u" }), stale + "UID in precondition: u, UID in object meta: uid-1"},
		{binding("p", func(o *corev1.Binding) { o.ResourceVersion = "4" }),
			stale + "ResourceVersion in precondition: 4, ResourceVersion in object meta: 5"},
	} {
		if _, err := Binding().Create(ctx, b, c.obj, &metav1.CreateOptions{}); err == nil || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s: %v", c.want, err)
		}
	}
	if out, err := Binding().Create(ctx, b, binding("p", nil), &metav1.CreateOptions{}); out != nil || err != nil {
		t.Errorf("a binding is answered as success alone: %v, %v", out, err)
	}
	policy := metav1.DeletionPropagation("Nope")
	evict := podEviction().Create.Do
	_, err := evict(ctx, b, "ns", "p", &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		DeleteOptions: &metav1.DeleteOptions{PropagationPolicy: &policy}}, &metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(),
		`DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Nope"`) {
		t.Errorf("an eviction with a bad policy: %v", err)
	}
}

// booking is a shelf that notes what is written in the server's own name.
type booking struct {
	*shelf
	booked []string
}

func (b *booking) UpdateAsServer(ctx context.Context, r schema.GroupResource, namespace, name, sub string, dryRun bool,
	change func(resource.Object) error) (resource.Object, error) {
	b.booked = append(b.booked, fmt.Sprintf("%s/%s %s/%s %v", r.Resource, sub, namespace, name, dryRun))
	return b.Update(ctx, r, namespace, name, dryRun, change)
}

// TestEvictionIsBooked has an eviction written down in its budget's status as the server's.
func TestEvictionIsBooked(t *testing.T) {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"},
		Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1}}
	b := &booking{shelf: shelfOf(map[string]resource.Object{at(podsResource, "ns", "p"): pod("p", nil),
		at(budgetsResource, "ns", "b"): budget})}
	if _, err := spendBudget(context.Background(), b, pod("p", nil), false); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(b.booked); got != "[poddisruptionbudgets/status ns/b false]" {
		t.Errorf("booked %s", got)
	}
	left, err := b.Get(context.Background(), budgetsResource, "ns", "b")
	if err != nil || left.(*policyv1.PodDisruptionBudget).Status.DisruptionsAllowed != 0 {
		t.Errorf("left %+v, %v", left, err)
	}
}
