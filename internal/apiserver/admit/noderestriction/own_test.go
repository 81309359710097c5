// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

func kindOf(group, plural string) *resource.Descriptor {
	return &resource.Descriptor{Group: group, Resource: plural}
}

// asNode returns the plug-in's error for a request of node n1; empty: none.
func asNode(t *testing.T, a *admit.Attributes) string {
	t.Helper()
	a.User = &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes"}}
	return said(New().(*plugin).Mutate(t.Context(), fixture(), a))
}

func said(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// refusal returns the whole message of a rejection with a reason; empty: none.
func refusal(what, why string) string {
	if why == "" {
		return ""
	}
	return what + " is forbidden: " + why
}

// TestWho checks that requests of other users, and connects, are admitted, and that a user in the group of nodes
// without a node name is rejected.
func TestWho(t *testing.T) {
	for _, c := range []struct {
		user      string
		groups    []string
		operation admit.Operation
		want      string
	}{
		{"alice", []string{"system:masters"}, admit.Create, ""},
		{"system:node:n1", nil, admit.Create, ""},
		{"system:node:n1", []string{"system:nodes"}, admit.Connect, ""},
		{"system:node:n1", []string{"system:nodes"}, admit.Create, `nodes "n2" is forbidden: node "n1" is not allowed to modify node "n2"`},
		{"system:node:n2", []string{"system:nodes"}, admit.Create, ""},
		{"system:node:", []string{"system:nodes"}, admit.Create, `nodes "n2" is forbidden: could not determine node from user "system:node:"`},
	} {
		a := &admit.Attributes{Operation: c.operation, Descriptor: kindOf("", "nodes"), Name: "n2",
			Object: &corev1.Node{ObjectMeta: meta("", "n2", "n2")}}
		a.User = &user.DefaultInfo{Name: c.user, Groups: c.groups}
		if got := said(New().(*plugin).Mutate(t.Context(), fixture(), a)); got != c.want {
			t.Errorf("%s %v %s: got %q, want %q", c.user, c.groups, c.operation, got, c.want)
		}
	}
}

func mirrorPod() *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta("ns", "m", "m"),
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "uid-n1", Controller: &yes}}
	return p
}

// TestMirrorPods checks that a node creates only mirror pods, without references to API objects.
func TestMirrorPods(t *testing.T) {
	yes, no := true, false
	const notItself = `node "n1" can only create pods with an owner reference set to itself`
	for _, c := range []struct {
		name   string
		change func(*corev1.Pod)
		want   string
	}{
		{"as it should be", func(*corev1.Pod) {}, ""},
		{"no mirror", func(p *corev1.Pod) { p.Annotations = nil },
			`pod does not have "kubernetes.io/config.mirror" annotation, node "n1" can only create mirror pods`},
		{"of another node", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, `node "n1" can only create pods with spec.nodeName set to itself`},
		{"of no node", func(p *corev1.Pod) { p.Spec.NodeName = "" }, `node "n1" can only create pods with spec.nodeName set to itself`},
		{"no owner", func(p *corev1.Pod) { p.OwnerReferences = nil }, notItself},
		{"two owners", func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, p.OwnerReferences[0]) },
			`node "n1" can only create pods with a single owner reference set to itself`},
		{"an owner of another group", func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "v2" }, notItself},
		{"an owner of another kind", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Pod" }, notItself},
		{"an owner of another name", func(p *corev1.Pod) { p.OwnerReferences[0].Name = "n2" }, notItself},
		{"an owner of another UID", func(p *corev1.Pod) { p.OwnerReferences[0].UID = "x" }, "node n1 UID mismatch: expected x got uid-n1"},
		{"not controlled", func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil },
			`node "n1" can only create pods with a controller owner reference set to itself`},
		{"controlled by none", func(p *corev1.Pod) { p.OwnerReferences[0].Controller = &no },
			`node "n1" can only create pods with a controller owner reference set to itself`},
		{"blocks", func(p *corev1.Pod) { p.OwnerReferences[0].BlockOwnerDeletion = &yes },
			`node "n1" must not set blockOwnerDeletion on an owner reference`},
		{"does not block", func(p *corev1.Pod) { p.OwnerReferences[0].BlockOwnerDeletion = &no }, ""},
		{"a service account", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "sa" },
			`node "n1" can not create pods that reference serviceaccounts`},
		{"a resource claim", func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "r"}} },
			`node "n1" can not create pods that reference resourceclaims`},
		{"a secret in the environment", func(p *corev1.Pod) {
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}
		}, `node "n1" can not create pods that reference secrets`},
		{"a config map in the environment", func(p *corev1.Pod) {
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{
				{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}
		}, `node "n1" can not create pods that reference configmaps`},
	} {
		p := mirrorPod()
		c.change(p)
		a := &admit.Attributes{Operation: admit.Create, Descriptor: kindOf("", "pods"), Namespace: "ns", Name: "m", Object: p}
		if got, want := asNode(t, a), refusal(`pods "m"`, c.want); got != want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, want)
		}
	}
	gone := fixture()
	delete(gone.all, "nodes//n1")
	a := &admit.Attributes{Operation: admit.Create, Descriptor: kindOf("", "pods"), Namespace: "ns", Name: "m", Object: mirrorPod(),
		User: &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes"}}}
	if got := said(New().(*plugin).Mutate(t.Context(), gone, a)); got != `node "n1" not found` {
		t.Errorf("a node that is not there: %q", got)
	}
}

// TestMirrorPodVolumes checks that a mirror pod may only have volumes that need no API objects.
func TestMirrorPodVolumes(t *testing.T) {
	source := func(s corev1.VolumeProjection) corev1.VolumeSource {
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{}}, s}}}
	}
	with := func(v corev1.VolumeSource) string {
		what, err := apiObjects(&corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "e",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, {Name: "v", VolumeSource: v}}}})
		return what + said(err)
	}
	for _, c := range []struct {
		volume corev1.VolumeSource
		want   string
	}{
		{corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{}}, ""},
		{corev1.VolumeSource{AzureDisk: &corev1.AzureDiskVolumeSource{}}, ""},
		{corev1.VolumeSource{CephFS: &corev1.CephFSVolumeSource{}}, ""},
		{corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{}}, ""},
		{corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, ""},
		{corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, ""},
		{corev1.VolumeSource{FC: &corev1.FCVolumeSource{}}, ""},
		{corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{}}, ""},
		{corev1.VolumeSource{Flocker: &corev1.FlockerVolumeSource{}}, ""},
		{corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{}}, ""},
		{corev1.VolumeSource{GitRepo: &corev1.GitRepoVolumeSource{}}, ""},
		{corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}, ""},
		{corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}, ""},
		{corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{}}, ""},
		{corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}, ""},
		{corev1.VolumeSource{PhotonPersistentDisk: &corev1.PhotonPersistentDiskVolumeSource{}}, ""},
		{corev1.VolumeSource{PortworxVolume: &corev1.PortworxVolumeSource{}}, ""},
		{corev1.VolumeSource{Quobyte: &corev1.QuobyteVolumeSource{}}, ""},
		{corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{}}, ""},
		{corev1.VolumeSource{ScaleIO: &corev1.ScaleIOVolumeSource{}}, ""},
		{corev1.VolumeSource{StorageOS: &corev1.StorageOSVolumeSource{}}, ""},
		{corev1.VolumeSource{VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{}}, ""},
		{corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}, "configmaps (via configmap volumes)"},
		{corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, "secrets (via secret volumes)"},
		{corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}, "csidrivers (via CSI volumes)"},
		{corev1.VolumeSource{Glusterfs: &corev1.GlusterfsVolumeSource{}}, "endpoints (via glusterFS volumes)"},
		{corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}, "persistentvolumeclaims"},
		{corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}, "persistentvolumeclaims (via ephemeral volumes)"},
		{corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{}}, "secrets (via azureFile volumes)"},
		{corev1.VolumeSource{}, `unknown volume type for volume  "v"`},
		{source(corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{}}), ""},
		{source(corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{}}), "configmaps (via projected volumes)"},
		{source(corev1.VolumeProjection{Secret: &corev1.SecretProjection{}}), "secrets (via projected volumes)"},
		{source(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}),
			"serviceaccounts (via projected volumes)"},
		{source(corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}), "clustertrustbundles"},
		{source(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{}}), "podcertificates"},
		{source(corev1.VolumeProjection{}), `unknown source for projected volume "v"`},
	} {
		if got := with(c.volume); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.volume, got, c.want)
		}
	}
	for what, volume := range map[string]corev1.VolumeSource{
		"node \"n1\" can not create pods that reference csidrivers (via CSI volumes)": {CSI: &corev1.CSIVolumeSource{}},
		"error checking mirror pod for API references: unknown volume type":           {},
	} {
		p := mirrorPod()
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: volume}}
		a := &admit.Attributes{Operation: admit.Create, Descriptor: kindOf("", "pods"), Namespace: "ns", Name: "m", Object: p}
		if got := asNode(t, a); !strings.Contains(got, what) {
			t.Errorf("got %q, want %q", got, what)
		}
	}
}

// TestPods checks that a node may delete and evict its own pods, and update their status.
func TestPods(t *testing.T) {
	eviction := func(name string) *policyv1.Eviction {
		return &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	bad := &corev1.Secret{}
	for _, c := range []struct {
		name        string
		operation   admit.Operation
		subresource string
		object      resource.Object
		want        string
	}{
		{"mine", admit.Delete, "", nil, ""},
		{"other", admit.Delete, "", nil, `node "n1" can only delete pods with spec.nodeName set to itself`},
		{"gone", admit.Delete, "", nil, `!pod "gone" not found`},
		{"mine", admit.Update, "", mirrorPod(), `unexpected operation "UPDATE", node "n1" can only create and delete mirror pods`},
		{"mine", admit.Create, "", bad, "unexpected type *v1.Secret"},
		{"mine", admit.Create, "binding", mirrorPod(), `unexpected pod subresource "binding", only 'status' and 'eviction' are allowed`},
		{"mine", admit.Update, "ephemeralcontainers", mirrorPod(),
			`unexpected pod subresource "ephemeralcontainers", only 'status' and 'eviction' are allowed`},
		{"mine", admit.Create, "eviction", eviction("mine"), ""},
		{"other", admit.Create, "eviction", eviction("other"), "node n1 can only evict pods with spec.nodeName set to itself"},
		{"other", admit.Create, "eviction", eviction("mine"), "node n1 can only evict pods with spec.nodeName set to itself"}, // the path decides
		{"", admit.Create, "eviction", eviction("mine"), ""},
		{"", admit.Create, "eviction", eviction("other"), "node n1 can only evict pods with spec.nodeName set to itself"},
		{"", admit.Create, "eviction", eviction(""), "could not determine pod from request data"},
		{"gone", admit.Create, "eviction", eviction("gone"), `!pod "gone" not found`},
		{"mine", admit.Update, "eviction", eviction("mine"), "unexpected operation UPDATE"},
		{"mine", admit.Create, "eviction", bad, "unexpected type *v1.Secret"},
	} {
		a := &admit.Attributes{Operation: c.operation, Subresource: c.subresource, Descriptor: kindOf("", "pods"), Namespace: "ns", Name: c.name,
			Object: c.object}
		want := refusal(`pods "`+a.Name+`"`, c.want)
		if c.name == "" {
			want = strings.Replace(want, `pods ""`, `pods "`+displayed(c.object)+`"`, 1)
		}
		if strings.HasPrefix(c.want, "!") {
			want = c.want[1:]
		}
		if got := asNode(t, a); got != want {
			t.Errorf("%s %s %s:\n got %q\nwant %q", c.operation, c.name, c.subresource, got, want)
		}
	}
}

func displayed(obj resource.Object) string {
	if n := obj.GetName(); n != "" {
		return n
	}
	return "Unknown"
}

func TestPodStatus(t *testing.T) {
	claim, other := "c", "d"
	base := func() *corev1.Pod {
		p := fixture().all["pods/ns/mine"].(*corev1.Pod).DeepCopy()
		p.Labels = map[string]string{"a": "b"}
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "r", ResourceClaimName: &claim}}
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "e",
			RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "c"}}}
		p.Status.NodeAllocatableResourceClaimStatuses = []corev1.NodeAllocatableResourceClaimStatus{{ResourceClaimName: "n"}}
		return p
	}
	for _, c := range []struct {
		name   string
		change func(p *corev1.Pod)
		want   string
	}{
		{"its phase", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, ""},
		{"labels", func(p *corev1.Pod) { p.Labels["a"] = "c" }, `node "n1" cannot update labels through pod status`},
		{"other claims", func(p *corev1.Pod) { p.Status.ResourceClaimStatuses[0].ResourceClaimName = &other },
			`node "n1" cannot update resource claim statues`},
		{"fewer claims", func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = nil }, `node "n1" cannot update resource claim statues`},
		{"no extended claim", func(p *corev1.Pod) { p.Status.ExtendedResourceClaimStatus = nil },
			`node "n1" cannot update extended resource claim status`},
		{"another extended claim", func(p *corev1.Pod) { p.Status.ExtendedResourceClaimStatus.ResourceClaimName = "x" },
			`node "n1" cannot update extended resource claim status`},
		{"other mappings", func(p *corev1.Pod) { p.Status.ExtendedResourceClaimStatus.RequestMappings[0].ContainerName = "x" },
			`node "n1" cannot update extended resource claim status`},
		{"node allocatable", func(p *corev1.Pod) { p.Status.NodeAllocatableResourceClaimStatuses = nil },
			`node "n1" cannot update node allocatable resource claim statuses`},
		// the node name in the request does not count
		{"its node", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, ""},
	} {
		p := base()
		c.change(p)
		a := &admit.Attributes{Operation: admit.Update, Subresource: "status", Descriptor: kindOf("", "pods"), Namespace: "ns", Name: "mine",
			Object: p, Old: base()}
		if got, want := asNode(t, a), refusal(`pods "mine"`, c.want); got != want {
			t.Errorf("%s: got %q, want %q", c.name, got, want)
		}
	}
	elsewhere, mine := base(), base()
	elsewhere.Spec.NodeName = "n2"
	none := base()
	none.Status.ExtendedResourceClaimStatus = nil
	for _, c := range []struct {
		a    *admit.Attributes
		want string
	}{
		{&admit.Attributes{Operation: admit.Update, Object: mine, Old: elsewhere},
			`node "n1" can only update pod status for pods with spec.nodeName set to itself`},
		{&admit.Attributes{Operation: admit.Create, Object: mine}, `unexpected operation "CREATE"`},
		{&admit.Attributes{Operation: admit.Update, Object: mine}, "unexpected type <nil>"},
		{&admit.Attributes{Operation: admit.Update, Object: &corev1.Secret{}, Old: mine}, "unexpected type *v1.Secret"},
		{&admit.Attributes{Operation: admit.Update, Object: mine, Old: none}, `node "n1" cannot update extended resource claim status`},
		{&admit.Attributes{Operation: admit.Update, Object: none, Old: none}, ""},
	} {
		c.a.Subresource, c.a.Descriptor, c.a.Namespace, c.a.Name = "status", kindOf("", "pods"), "ns", "mine"
		if got, want := asNode(t, c.a), refusal(`pods "mine"`, c.want); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestNodeItself(t *testing.T) {
	base := func() *corev1.Node {
		n := &corev1.Node{ObjectMeta: meta("", "n1", "n1")}
		n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: "NoSchedule"}}
		return n
	}
	source := func(name string) *corev1.NodeConfigSource {
		return &corev1.NodeConfigSource{ConfigMap: &corev1.ConfigMapNodeConfigSource{Name: name}}
	}
	with := func(change func(*corev1.Node)) *corev1.Node {
		n := base()
		change(n)
		return n
	}
	sourced := with(func(n *corev1.Node) { n.Spec.ConfigSource = source("a") })
	for _, c := range []struct {
		what        string
		name        string
		operation   admit.Operation
		subresource string
		object, old resource.Object
		want        string
	}{
		{"registers", "", admit.Create, "", base(), nil, ""},
		{"registers another", "", admit.Create, "", &corev1.Node{ObjectMeta: meta("", "n2", "")}, nil,
			`node "n1" is not allowed to modify node "n2"`},
		{"registers with a source", "n1", admit.Create, "", sourced, nil, `node "n1" is not allowed to create pods with a non-nil configSource`},
		{"no node", "n1", admit.Create, "", &corev1.Secret{}, nil, "unexpected type *v1.Secret"},
		{"deletes itself", "n1", admit.Delete, "", nil, nil, ""},
		{"deletes another", "n2", admit.Delete, "", nil, nil, `node "n1" is not allowed to modify node "n2"`},
		{"deletes all", "", admit.Delete, "", nil, nil, `node "n1" is not allowed to modify node ""`},
		{"updates another", "n2", admit.Update, "", base(), base(), `node "n1" is not allowed to modify node "n2"`},
		{"status of another", "n2", admit.Update, "status", base(), base(), `node "n1" is not allowed to modify node "n2"`},
		{"changes nothing", "n1", admit.Update, "", base(), base(), ""},
		{"no old one", "n1", admit.Update, "", base(), nil, "unexpected type *v1.Node"},
		{"a source", "n1", admit.Update, "", sourced, base(), `node "n1" is not allowed to update configSource to a new non-nil configSource`},
		{"the same source", "n1", admit.Update, "", sourced, sourced, ""},
		{"no more source", "n1", admit.Update, "", base(), sourced, ""},
		{"taints", "n1", admit.Update, "", with(func(n *corev1.Node) { n.Spec.Taints = nil }), base(),
			`node "n1" is not allowed to modify taints`},
		{"taints by its status", "n1", admit.Update, "status", with(func(n *corev1.Node) { n.Spec.Taints = nil }), base(),
			`node "n1" is not allowed to modify taints`},
		{"owners", "n1", admit.Update, "", with(func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} }), base(),
			`node "n1" is not allowed to modify ownerReferences`},
	} {
		a := &admit.Attributes{Operation: c.operation, Subresource: c.subresource, Descriptor: kindOf("", "nodes"), Name: c.name,
			Object: c.object, Old: c.old}
		shown := c.name
		if shown == "" && c.object != nil {
			shown = c.object.GetName()
		}
		if shown == "" {
			shown = "Unknown"
		}
		if got, want := asNode(t, a), refusal(`nodes "`+shown+`"`, c.want); got != want {
			t.Errorf("%s:\n got %q\nwant %q", c.what, got, want)
		}
	}
}

func TestClaims(t *testing.T) {
	base := func() *corev1.PersistentVolumeClaim {
		return fixture().all["persistentvolumeclaims/ns/claim"].(*corev1.PersistentVolumeClaim).DeepCopy()
	}
	size := corev1.ResourceList{"storage": quantity.MustParse("1Gi")}
	for _, c := range []struct {
		name   string
		change func(*corev1.PersistentVolumeClaim)
		want   string
	}{
		{"its size", func(c *corev1.PersistentVolumeClaim) { c.Status.Capacity = size }, ""},
		{"its conditions", func(c *corev1.PersistentVolumeClaim) {
			c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: "Resizing"}}
		}, ""},
		{"what is allocated", func(c *corev1.PersistentVolumeClaim) {
			c.Status.AllocatedResources = size
			c.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{"storage": "NodeResizeInProgress"}
		}, ""},
		{"its version and managers", func(c *corev1.PersistentVolumeClaim) {
			c.ResourceVersion, c.ManagedFields = "7", []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
		}, ""},
		{"its phase", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }, "x"},
		{"its volume", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "other" }, "x"},
		{"its labels", func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"a": "b"} }, "x"},
	} {
		claim, old := base(), base()
		c.change(claim)
		kept := claim.DeepCopy()
		a := &admit.Attributes{Operation: admit.Update, Subresource: "status", Descriptor: kindOf("", "persistentvolumeclaims"), Namespace: "ns",
			Name: "claim", Object: claim, Old: old}
		got := asNode(t, a)
		const refused = `persistentvolumeclaims "claim" is forbidden: node "n1" is not allowed to update fields other than status.quantity and status.conditions: `
		if c.want == "" && got != "" || !strings.HasPrefix(got, map[bool]string{true: refused}[c.want != ""]) {
			t.Errorf("%s: got %q", c.name, got)
		}
		if claim.ResourceVersion != kept.ResourceVersion || len(claim.Status.Capacity) != len(kept.Status.Capacity) {
			t.Errorf("%s: the plug-in changed the claim", c.name)
		}
	}
	for _, c := range []struct {
		operation   admit.Operation
		subresource string
		object, old resource.Object
		want        string
	}{
		{admit.Update, "", base(), base(), "may only update PVC status"},
		{admit.Create, "", base(), nil, "may only update PVC status"},
		{admit.Create, "status", base(), nil, `unexpected operation "CREATE"`},
		{admit.Update, "status", base(), nil, "unexpected type <nil>"},
		{admit.Update, "status", &corev1.Secret{}, base(), "unexpected type *v1.Secret"},
	} {
		a := &admit.Attributes{Operation: c.operation, Subresource: c.subresource, Descriptor: kindOf("", "persistentvolumeclaims"),
			Namespace: "ns", Name: "claim", Object: c.object, Old: c.old}
		if got, want := asNode(t, a), refusal(`persistentvolumeclaims "claim"`, c.want); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestNamedAfterNodes checks that leases, CSINodes and resource slices belong to the node that they name.
func TestNamedAfterNodes(t *testing.T) {
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	csi := func(name string) *storagev1.CSINode {
		return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	slice := func(node string) *resourcev1.ResourceSlice {
		s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
		if node != "" {
			s.Spec.NodeName = &node
		}
		return s
	}
	const (
		leases, csis, slices = "coordination.k8s.io/leases", "storage.k8s.io/csinodes", "resource.k8s.io/resourceslices"
		otherLease           = "can only access node lease with the same name as the requesting node"
		otherCSI             = "can only access CSINode with the same name as the requesting node"
	)
	for _, c := range []struct {
		kind, namespace, name string
		operation             admit.Operation
		subresource           string
		object, old           resource.Object
		want                  string
	}{
		{leases, "kube-node-lease", "n1", admit.Create, "", lease("n1"), nil, ""},
		{leases, "kube-node-lease", "n1", admit.Create, "", lease("n2"), nil, otherLease}, // the object's name decides
		{leases, "kube-node-lease", "n1", admit.Create, "", csi("n1"), nil, "unexpected type *v1.CSINode"},
		{leases, "kube-node-lease", "n1", admit.Update, "", lease("n1"), lease("n1"), ""},
		{leases, "kube-node-lease", "n2", admit.Update, "", lease("n2"), lease("n2"), otherLease},
		{leases, "kube-node-lease", "n1", admit.Delete, "", nil, lease("n1"), ""},
		{leases, "kube-node-lease", "n2", admit.Delete, "", nil, lease("n2"), otherLease},
		{leases, "kube-system", "n1", admit.Update, "", lease("n1"), lease("n1"),
			`can only access leases in the "kube-node-lease" system namespace`},
		{csis, "", "n1", admit.Create, "", csi("n1"), nil, ""},
		{csis, "", "n1", admit.Create, "", csi("n2"), nil, otherCSI},
		{csis, "", "n1", admit.Update, "", csi("n1"), csi("n1"), ""},
		{csis, "", "n2", admit.Update, "", csi("n2"), csi("n2"), otherCSI},
		{csis, "", "n2", admit.Delete, "", nil, csi("n2"), otherCSI},
		{csis, "", "n1", admit.Update, "status", csi("n1"), csi("n1"), "CSIVolumeHealth feature gate is disabled"},
		{slices, "", "s", admit.Create, "", slice("n1"), nil, ""},
		{slices, "", "s", admit.Create, "", slice("n2"), nil, "can only create ResourceSlice with the same NodeName as the requesting node"},
		{slices, "", "s", admit.Create, "", slice(""), nil, "can only create ResourceSlice with the same NodeName as the requesting node"},
		{slices, "", "s", admit.Create, "", csi("n1"), nil, "unexpected type *v1.CSINode"},
		{slices, "", "s", admit.Update, "", slice("n2"), slice("n2"), ""}, // the authorizer and the kind's validation check it
		{slices, "", "s", admit.Delete, "", nil, slice("n1"), ""},
		{slices, "", "s", admit.Delete, "", nil, slice("n2"), "can only delete ResourceSlice with the same NodeName as the requesting node"},
		{slices, "", "s", admit.Delete, "", nil, nil, ""},
	} {
		group, plural, _ := strings.Cut(c.kind, "/")
		a := &admit.Attributes{Operation: c.operation, Subresource: c.subresource, Descriptor: kindOf(group, plural), Namespace: c.namespace,
			Name: c.name, Object: c.object, Old: c.old}
		if got, want := asNode(t, a), refusal(plural+"."+group+` "`+c.name+`"`, c.want); got != want {
			t.Errorf("%s %s %s: got %q, want %q", c.operation, c.kind, c.name, got, want)
		}
	}
}
