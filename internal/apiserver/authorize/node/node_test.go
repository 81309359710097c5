// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/podrefs"
)

// fixture has a node n1 with one object of each kind, and a node n2 with a pod without references.
func fixture(t *testing.T) (*Authorizer, *objects) {
	t.Helper()
	o := &objects{}
	n1 := "n1"
	o.put(podKind, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{
		NodeName: n1, ServiceAccountName: "sa", ResourceClaims: []corev1.PodResourceClaim{{Name: "r", ResourceClaimName: new("claim")}},
		Volumes: []corev1.Volume{
			{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}},
			{Name: "c", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}}},
			{Name: "d", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
		},
	}})
	o.put(podKind, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"}, Spec: corev1.PodSpec{NodeName: "n2"}})
	o.put(volumeKind, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "data"}}})
	o.put(attachmentKind, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"},
		Spec: storagev1.VolumeAttachmentSpec{NodeName: n1}})
	o.put(schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"},
		&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "slice"}, Spec: resourcev1.ResourceSliceSpec{NodeName: &n1}})
	o.put(schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"},
		&certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pcr"},
			Spec: certificatesv1.PodCertificateRequestSpec{NodeName: "n1"}})
	g := NewGraph()
	if err := g.Load(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return &Authorizer{
		Graph: g,
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"services"}}},
	}, o
}

func ofNode(name string) user.Info {
	return &user.DefaultInfo{Name: userPrefix + name, Groups: []string{user.NodesGroup}}
}

// ask parses "VERB [GROUP:]RESOURCE[/SUB] [[NAMESPACE]/NAME] [FIELD=VALUE]" and authorizes the request.
func ask(s string) *authorize.Attributes {
	f := strings.Fields(s)
	a := &authorize.Attributes{Verb: f[0], ResourceRequest: true}
	res := f[1]
	if g, r, ok := strings.Cut(res, ":"); ok {
		a.Group, res = g, r
	}
	a.Resource, a.Subresource, _ = strings.Cut(res, "/")
	for _, rest := range f[2:] {
		if strings.Contains(rest, "=") {
			a.Fields = fields.ParseSelectorOrDie(rest).Requirements()
			continue
		}
		a.Namespace, a.Name, _ = strings.Cut(rest, "/")
	}
	return a
}

// TestNodesReadTheSecretsOfTheirPods requests one object of each kind as the node that it belongs to, and as another
// node.
func TestNodesReadTheSecretsOfTheirPods(t *testing.T) {
	z, _ := fixture(t)
	for _, c := range []string{
		"get secrets ns/s", "list secrets ns/s", "watch secrets ns/s", "get configmaps ns/c", "get persistentvolumeclaims ns/data",
		"update persistentvolumeclaims/status ns/data", "patch persistentvolumeclaims/status ns/data", "get persistentvolumes /pv",
		"get serviceaccounts ns/sa", "create serviceaccounts/token ns/sa", "get pods ns/p", "list pods ns/p", "watch pods ns/p",
		"get resource.k8s.io:resourceclaims ns/claim", "get resource.k8s.io:resourceslices /slice",
		"update resource.k8s.io:resourceslices /slice",
		"patch resource.k8s.io:resourceslices /slice", "delete resource.k8s.io:resourceslices /slice",
		"get storage.k8s.io:volumeattachments /va", "get certificates.k8s.io:podcertificaterequests ns/pcr",
	} {
		a := ask(c)
		a.User = ofNode("n1")
		if d, reason, err := z.Authorize(t.Context(), a); d != authorize.Allow || reason != "" || err != nil {
			t.Errorf("n1 %s: %v %q %v", c, d, reason, err)
		}
		for _, other := range []string{"n2", "n3"} {
			a.User = ofNode(other)
			want := "no relationship found between node '" + other + "' and this object"
			if d, reason, err := z.Authorize(t.Context(), a); d != authorize.NoOpinion || reason != want || err != nil {
				t.Errorf("%s %s: %v %q %v", other, c, d, reason, err)
			}
		}
	}
}

// TestDecisions covers what a node may do without the graph, and rejections with kube-apiserver's reasons.
func TestDecisions(t *testing.T) {
	const (
		individually = "can only get individual resources of this type"
		reads        = "can only read resources of this type"
		related      = "no relationship found between node 'n1' and this object"
		selectorOf   = "can only list/watch pods with spec.nodeName field selector"
		slices       = "can only list/watch/deletecollection resourceslices with nodeName field selector"
		requests     = "can only list/watch podcertificaterequests with nodeName field selector"
		yes          = "yes"
	)
	z, _ := fixture(t)
	for _, c := range []struct{ ask, want string }{
		{"create secrets ns/s", reads}, {"get secrets/x ns/s", "cannot read subresource"}, {"get secrets ns/other", related},
		{"get secrets other/s", related},
		{"list secrets /", "can only read namespaced object of this type"}, {"list secrets ns", "No Object name found"},
		{"delete configmaps ns/c", reads},
		{"list persistentvolumeclaims ns/data", individually}, {"get persistentvolumeclaims/x ns/data", "cannot get subresource"},
		{"get persistentvolumeclaims/status ns/data", "can only get/update/patch this type"},
		{"update persistentvolumeclaims/status ns/x", related},
		{"list persistentvolumes /pv", individually}, {"get persistentvolumes ns/pv", related}, {"get persistentvolumes /x", related},
		{"list serviceaccounts ns/sa", "can only create tokens for individual service accounts"},
		{"create serviceaccounts/token ns", "can only create tokens for individual service accounts"},
		{"create serviceaccounts ns/sa", "can only create token subresource of serviceaccount"},
		{"get serviceaccounts/token ns/sa", "can only create tokens for individual service accounts"},
		{"create nodes", yes}, {"update nodes /n2", yes}, {"patch nodes /n1", yes}, {"get nodes /n1", yes}, {"watch nodes /n1", yes},
		{"delete nodes /n1", ""},
		{"list nodes", "node 'n1' cannot read all nodes, only its own Node object"},
		{"get nodes /n2", "node 'n1' cannot read 'n2', only its own Node object"},
		{"update nodes/status /n1", yes}, {"patch nodes/status /n1", yes}, {"get nodes/status /n1", ""}, {"get nodes/proxy /n1", ""},
		{"list pods spec.nodeName=n1", yes}, {"watch pods spec.nodeName=n1", yes}, {"list pods spec.nodeName=n2", selectorOf},
		{"list pods spec.nodeName!=n1", selectorOf},
		{"list pods spec.host=n1", selectorOf}, {"list pods", selectorOf}, {"list pods ns/q", related}, {"get pods ns/q", related},
		{"create pods ns/m", yes}, {"delete pods ns/q", yes},
		{"update pods ns/p", ""}, {"update pods/status ns/p", yes}, {"patch pods/status ns/p", yes}, {"get pods/status ns/p", ""},
		{"create pods/eviction ns/p", yes}, {"get pods/eviction ns/p", ""}, {"create pods/exec ns/p", ""},
		{"create resource.k8s.io:resourceslices", yes}, {"get resource.k8s.io:resourceslices/x /slice",
			"cannot authorize ResourceSlice subresources"},
		{"list resource.k8s.io:resourceslices", slices}, {"list resource.k8s.io:resourceslices spec.nodeName=n1", yes},
		{"deletecollection resource.k8s.io:resourceslices spec.nodeName=n2", slices},
		{"bind resource.k8s.io:resourceslices",
			"only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection"},
		{"create certificates.k8s.io:podcertificaterequests ns", yes}, {"list certificates.k8s.io:podcertificaterequests spec.nodeName=n1", yes},
		{"watch certificates.k8s.io:podcertificaterequests", requests},
		{"delete certificates.k8s.io:podcertificaterequests ns/pcr", "nodes may not delete podcertificaterequests"},
		{"get certificates.k8s.io:podcertificaterequests/status ns/pcr", "nodes may not access the status subresource of PodCertificateRequests"},
		{"get storage.k8s.io:csinodes /n1", yes}, {"create storage.k8s.io:csinodes", yes}, {"update storage.k8s.io:csinodes /n1", yes},
		{"patch storage.k8s.io:csinodes /n1", yes},
		{"delete storage.k8s.io:csinodes /n1", yes}, {"get storage.k8s.io:csinodes /n2",
			"can only access CSINode with the same name as the requesting node"},
		{"list storage.k8s.io:csinodes", "can only get, create, update, patch, or delete a CSINode"},
		{"get storage.k8s.io:csinodes/x /n1", "cannot authorize CSINode subresources"},
		{"get storage.k8s.io:csinodes/status /n1", "CSINode status access requires CSIVolumeHealth feature"},
		{"get coordination.k8s.io:leases kube-node-lease/n1", yes}, {"create coordination.k8s.io:leases kube-node-lease", yes},
		{"get coordination.k8s.io:leases kube-node-lease/n2", "can only access node lease with the same name as the requesting node"},
		{"get coordination.k8s.io:leases ns/n1", `can only access leases in the "kube-node-lease" system namespace`},
		{"list coordination.k8s.io:leases kube-node-lease", "can only get, create, update, patch, or delete a node lease"},
		{"list services ns", yes}, {"get services ns/x", ""}, {"get apps:secrets ns/s", ""},
	} {
		a := ask(c.ask)
		a.User = ofNode("n1")
		d, reason, err := z.Authorize(t.Context(), a)
		if d == authorize.Allow && reason == "" {
			reason = yes
		}
		if err != nil || reason != c.want || d == authorize.Deny {
			t.Errorf("%s: %v %q %v, want %q", c.ask, d, reason, err, c.want)
		}
	}
}

func TestIdentity(t *testing.T) {
	for _, c := range []struct {
		is   user.Info
		name string
		ok   bool
	}{
		{nil, "", false}, {ofNode("n1"), "n1", true}, {ofNode(""), "", true},
		{&user.DefaultInfo{Name: "system:node:n1"}, "", false},
		{&user.DefaultInfo{Name: "n1", Groups: []string{user.NodesGroup}}, "", false},
	} {
		name, ok := Identity(c.is)
		if name != c.name || ok != c.ok {
			t.Errorf("%v is %q, %v", c.is, name, ok)
		}
		resources, paths, incomplete, err := (&Authorizer{}).Review(t.Context(), c.is, "ns")
		if resources != nil || paths != nil || incomplete != c.ok || (err != nil) != c.ok {
			t.Errorf("the rules of %v: %v %v", c.is, incomplete, err)
		}
	}
	z, _ := fixture(t)
	a := ask("get secrets ns/s")
	for who, want := range map[user.Info]string{ofNode(""): `unknown node for user "system:node:"`, &user.DefaultInfo{Name: "jane"}: ""} {
		a.User = who
		if d, reason, err := z.Authorize(t.Context(), a); d != authorize.NoOpinion || reason != want || err != nil {
			t.Errorf("%v: %v %q %v", who, d, reason, err)
		}
	}
}

// TestReferences puts a separate reference into every field of a pod that can have one.
func TestReferences(t *testing.T) {
	local := func(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }
	from := func(name string) ([]corev1.EnvFromSource, []corev1.EnvVar) {
		return []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: *local(name + "-from")}},
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: *local(name + "-from")}}},
			[]corev1.EnvVar{{Name: "plain"}, {ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: *local(
				name)}}},
				{ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: *local(name)}}}}
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	p.Spec.ServiceAccountName = "sa"
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{*local("pull"), {}}
	p.Spec.InitContainers, p.Spec.Containers, p.Spec.EphemeralContainers = make([]corev1.Container, 1), make([]corev1.Container, 1),
		make([]corev1.EphemeralContainer, 1)
	p.Spec.InitContainers[0].EnvFrom, p.Spec.InitContainers[0].Env = from("init")
	p.Spec.Containers[0].EnvFrom, p.Spec.Containers[0].Env = from("main")
	p.Spec.EphemeralContainers[0].EnvFrom, p.Spec.EphemeralContainers[0].Env = from("debug")
	for _, s := range []corev1.VolumeSource{
		{Ephemeral: &corev1.EphemeralVolumeSource{}}, {PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}},
		{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim2"}, Ephemeral: &corev1.EphemeralVolumeSource{}},
		{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "azure"}}, {CephFS: &corev1.CephFSVolumeSource{SecretRef: local("ceph")}},
		{CephFS: &corev1.CephFSVolumeSource{}},
		{Cinder: &corev1.CinderVolumeSource{SecretRef: local("cinder")}}, {FlexVolume: &corev1.FlexVolumeSource{SecretRef: local("flex")}},
		{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: *local("projected")}},
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: *local("projected")}}}}},
		{RBD: &corev1.RBDVolumeSource{SecretRef: local("rbd")}}, {Secret: &corev1.SecretVolumeSource{SecretName: "secret"}},
		{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: *local("map")}},
		{ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: local("scaleio")}},
		{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: local("iscsi")}}, {StorageOS: &corev1.StorageOSVolumeSource{SecretRef: local("storageos")}},
		{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: local("csi")}}, {EmptyDir: &corev1.EmptyDirVolumeSource{}},
	} {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: s})
	}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: new("named")},
		{Name: "b", ResourceClaimTemplateName: new("t")}, {Name: "c", ResourceClaimTemplateName: new("t")}}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x", ResourceClaimName: new("not-this")},
		{Name: "b", ResourceClaimName: new("made")}}
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"}
	got := map[kind][]string{}
	podrefs.Visit(p, func(k podrefs.Kind, name string) { got[kindOf(k)] = append(got[kindOf(k)], name) })
	for k, want := range map[kind]string{
		accounts:       "sa",
		secrets:        "pull init-from init main-from main debug-from debug azure ceph cinder flex projected rbd secret scaleio iscsi storageos csi",
		configMaps:     "init-from init main-from main debug-from debug projected map",
		claims:         "p-v claim claim2",
		resourceClaims: "named made extended",
	} {
		if !slices.Equal(got[k], strings.Fields(want)) {
			t.Errorf("kind %d: %v, want %s", k, got[k], want)
		}
	}
}

// TestSecretsOfVolumes puts a separate secret into every volume source whose secrets nodes read.
func TestSecretsOfVolumes(t *testing.T) {
	bare, full := &corev1.SecretReference{Name: "s"}, &corev1.SecretReference{Name: "s", Namespace: "other"}
	for _, c := range []struct {
		source corev1.PersistentVolumeSource
		want   string
	}{
		{corev1.PersistentVolumeSource{AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "s"}}, "ns/s"},
		{corev1.PersistentVolumeSource{AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "s", SecretNamespace: new("other")}},
			"other/s"},
		{corev1.PersistentVolumeSource{CephFS: &corev1.CephFSPersistentVolumeSource{SecretRef: bare}}, "ns/s"},
		{corev1.PersistentVolumeSource{CephFS: &corev1.CephFSPersistentVolumeSource{SecretRef: full}}, "other/s"},
		{corev1.PersistentVolumeSource{CephFS: &corev1.CephFSPersistentVolumeSource{}}, ""},
		{corev1.PersistentVolumeSource{Cinder: &corev1.CinderPersistentVolumeSource{SecretRef: bare}}, "/s"},
		{corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{SecretRef: bare}}, "ns/s"},
		{corev1.PersistentVolumeSource{RBD: &corev1.RBDPersistentVolumeSource{SecretRef: bare}}, "ns/s"},
		{corev1.PersistentVolumeSource{ScaleIO: &corev1.ScaleIOPersistentVolumeSource{SecretRef: bare}}, "ns/s"},
		{corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{SecretRef: bare}}, "ns/s"},
		{corev1.PersistentVolumeSource{StorageOS: &corev1.StorageOSPersistentVolumeSource{SecretRef: &corev1.ObjectReference{Namespace: "other",
			Name: "s"}}}, "other/s"},
		{corev1.PersistentVolumeSource{StorageOS: &corev1.StorageOSPersistentVolumeSource{}}, ""},
		{corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{NodePublishSecretRef: full,
			NodeStageSecretRef:        &corev1.SecretReference{Namespace: "other", Name: "stage"},
			NodeExpandSecretRef:       &corev1.SecretReference{Namespace: "other", Name: "expand"},
			ControllerExpandSecretRef: &corev1.SecretReference{Namespace: "other", Name: "controller"}}}, "other/s other/stage other/expand"},
	} {
		v := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: c.source,
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "claim"}}}
		var got []string
		volumeSecrets(v, func(namespace, name string) { got = append(got, namespace+"/"+name) })
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v, want %s", c.source, got, c.want)
		}
	}
}
