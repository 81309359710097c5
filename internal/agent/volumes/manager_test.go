// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/environ"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/configmap"
	"github.com/mortise-dev/mortise/internal/agent/volumes/downwardapi"
	"github.com/mortise-dev/mortise/internal/agent/volumes/emptydir"
	"github.com/mortise-dev/mortise/internal/agent/volumes/hostpath"
	"github.com/mortise-dev/mortise/internal/agent/volumes/image"
	"github.com/mortise-dev/mortise/internal/agent/volumes/local"
	"github.com/mortise-dev/mortise/internal/agent/volumes/nfs"
	"github.com/mortise-dev/mortise/internal/agent/volumes/projected"
	"github.com/mortise-dev/mortise/internal/agent/volumes/secret"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// newManager makes a manager of all plug-ins.
func newManager(t *testing.T) (*volumes.Manager, *volumetest.Sources, volumetest.Kernel, *clocktesting.FakeClock) {
	return volumetest.New(t, configmap.New, downwardapi.New, emptydir.New, hostpath.New, image.New, local.New, nfs.New, projected.New,
		secret.New)
}

func configMap(name string, optional bool, items ...corev1.KeyToPath) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name},
		Items: items, Optional: &optional}}
}

func claimOf(pv corev1.PersistentVolumeSource) (corev1.VolumeSource, *corev1.PersistentVolume) {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: pv}}
}

// What cannot be had is said, with the volume's name; nothing else is.
func TestVolumesThatCannotBe(t *testing.T) {
	local, localPV := claimOf(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/tmp"}})
	lost, lostPV := claimOf(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/no/such"}})
	disk, diskPV := claimOf(corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{}})
	field := func(path string) []corev1.DownwardAPIVolumeFile {
		return []corev1.DownwardAPIVolumeFile{{Path: "f", FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	for name, c := range map[string]struct {
		source corev1.VolumeSource
		pv     *corev1.PersistentVolume
		want   string // of the error; empty: none
	}{
		"configMap":         {configMap("cm", false), nil, ""},
		"no configMap":      {configMap("no", false), nil, `configmap "no" not found`},
		"a key":             {configMap("cm", false, corev1.KeyToPath{Key: "k", Path: "a"}), nil, ""},
		"no key":            {configMap("cm", false, corev1.KeyToPath{Key: "no", Path: "a"}), nil, "references non-existent config key: no"},
		"an optional key":   {configMap("cm", true, corev1.KeyToPath{Key: "no", Path: "a"}), nil, ""},
		"an optional map":   {configMap("no", true), nil, ""},
		"a name that leads": {configMap("cm", false, corev1.KeyToPath{Key: "k", Path: "../a"}), nil, "leaves the volume"},
		"secret":            {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}, nil, ""},
		"no secret":         {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "no"}}, nil, `secret "no" not found`},
		"an optional one":   {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "no", Optional: new(true)}}, nil, ""},
		"no secret's key": {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s",
			Items: []corev1.KeyToPath{{Key: "no", Path: "a"}}}}, nil,
			"references non-existent secret key: no"},
		"fields":   {corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: field("metadata.name")}}, nil, ""},
		"no field": {corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: field("spec.no")}}, nil, "spec.no"},
		"no source": {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{}}}}, nil,
			"does not support"},
		"no kind":       {corev1.VolumeSource{}, nil, "does not support"},
		"other kind":    {corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{}}, nil, "does not support"},
		"image":         {corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}, nil, ""},
		"no medium":     {corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Tape"}}, nil, `unknown storage medium "Tape"`},
		"no huge pages": {corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "HugePages-no"}}, nil, "HugePages-no"},
		"local":         {local, localPV, ""},
		"lost":          {lost, lostPV, "look at local volume"},
		"other claim":   {disk, diskPV, "persistent volume pv is of a kind that this node does not support"},
	} {
		m, s, _, _ := newManager(t)
		s.PV = c.pv
		err := m.SetUp(t.Context(), volumetest.Pod(c.source), nil)
		volume := "v"
		if name == "lost" {
			volume = "pv" // as kubelet, which names the persistent volume
		}
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), `MountVolume.SetUp failed for volume "`+volume+`" : `) ||
			!strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

func TestPaths(t *testing.T) {
	m, s, _, _ := newManager(t)
	claim, hostPV := claimOf(corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/h"}})
	_, localPV := claimOf(corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/l"}})
	_, nfsPV := claimOf(corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "h", Path: "/"}})
	_, diskPV := claimOf(corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{}})
	below := func(name string) string { return filepath.Join(m.Root, "pods/u/volumes", name) }
	for name, c := range map[string]struct {
		source corev1.VolumeSource
		pv     *corev1.PersistentVolume
		want   string // empty: none
	}{
		"configMap":    {configMap("cm", false), nil, below("kubernetes.io~configmap/v")},
		"secret":       {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, nil, below("kubernetes.io~secret/v")},
		"downwardAPI":  {corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, nil, below("kubernetes.io~downward-api/v")},
		"projected":    {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}, nil, below("kubernetes.io~projected/v")},
		"emptyDir":     {corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, nil, below("kubernetes.io~empty-dir/v")},
		"hostPath":     {corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}, nil, "/x"},
		"nfs":          {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}, nil, below("kubernetes.io~nfs/v")},
		"image":        {corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}, nil, ""},
		"host's claim": {claim, hostPV, "/h"},
		"ephemeral":    {corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}, hostPV, "/h"},
		"local claim":  {claim, localPV, "/l"},
		"nfs claim":    {claim, nfsPV, below("kubernetes.io~nfs/pv")},
		"other claim":  {claim, diskPV, ""},
	} {
		s.PV = c.pv
		pod := volumetest.Pod(c.source)
		got, err := m.Path(t.Context(), pod, &pod.Spec.Volumes[0])
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, want := m.ContainerDir("u", "c"), filepath.Join(m.Root, "pods/u/containers/c"); got != want {
		t.Errorf("the container's directory is %s", got)
	}
}

// A container that is given what is not there is not made.
func TestMountsThatCannotBe(t *testing.T) {
	image := corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}
	empty := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	both, always, unset := corev1.MountPropagationBidirectional, corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyDisabled
	images := map[string]*runtimeapi.ImageSpec{"v": {Image: "sha256:1"}}
	for name, c := range map[string]struct {
		source corev1.VolumeSource
		mount  corev1.VolumeMount
		images map[string]*runtimeapi.ImageSpec
		want   string // the error's, or what is mounted
	}{
		"a part": {empty, corev1.VolumeMount{Name: "v", MountPath: "m", SubPathExpr: "$(A)"}, nil, "/m ro=false PROPAGATION_PRIVATE"},
		"bidirectional": {empty, corev1.VolumeMount{Name: "v", MountPath: "/m", MountPropagation: &both}, nil,
			"/m ro=false PROPAGATION_BIDIRECTIONAL"},
		"not recursive": {empty, corev1.VolumeMount{Name: "v", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: &unset}, nil,
			"/m ro=true PROPAGATION_PRIVATE"},
		"recursive": {empty, corev1.VolumeMount{Name: "v", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: &always}, nil,
			"not supported by the runtime"},
		"no volume":         {empty, corev1.VolumeMount{Name: "w", MountPath: "/m"}, nil, `cannot find volume "w" to mount into container "c"`},
		"no name":           {empty, corev1.VolumeMount{Name: "v", MountPath: "/m", SubPathExpr: "$(B)"}, nil, "has names that are not known"},
		"a part that leads": {empty, corev1.VolumeMount{Name: "v", MountPath: "/m", SubPathExpr: "$(UP)"}, nil, "leaves the volume"},
		"image": {image, corev1.VolumeMount{Name: "v", MountPath: "/m", SubPath: "a..b/c"}, images,
			"/m ro=true PROPAGATION_PRIVATE"},
		"no image":           {image, corev1.VolumeMount{Name: "v", MountPath: "/m"}, nil, `volume "v" has no image yet`},
		"a path of an image": {image, corev1.VolumeMount{Name: "v", MountPath: "/m", SubPath: "/a"}, images, "must not be an absolute path"},
		"up from an image":   {image, corev1.VolumeMount{Name: "v", MountPath: "/m", SubPath: "a/../../b"}, images, "must not contain '..'"},
	} {
		m, _, _, _ := newManager(t)
		pod := volumetest.Pod(c.source)
		if err := m.SetUp(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
		env := []environ.Var{{Name: "A", Value: "x"}, {Name: "UP", Value: "../.."}}
		mounts, err := m.Mounts(t.Context(), pod, &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{c.mount}}, env, c.images)
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprintf("%s ro=%v %s", mounts[0].ContainerPath, mounts[0].Readonly, mounts[0].Propagation)
		}
		if !strings.Contains(got, c.want) || strings.HasPrefix(c.want, "/") != (err == nil) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// refusing is a kernel that refuses to do some things.
type refusing struct {
	volumetest.Kernel
	what string
}

var errRefused = errors.New("refused")

func (r refusing) refuse(what string) error {
	if r.what == what {
		return errRefused
	}
	return nil
}

func (r refusing) Tmpfs(dir string, size int64) error {
	return errors.Join(r.refuse("tmpfs"), r.Kernel.Tmpfs(dir, size))
}

func (r refusing) Huge(dir string, page int64) error {
	return errors.Join(r.refuse("huge"), r.Kernel.Huge(dir, page))
}

func (r refusing) Bind(source, target string) error {
	return errors.Join(r.refuse("bind"), r.Kernel.Bind(source, target))
}

func (r refusing) IsMountPoint(dir string) (bool, error) {
	mounted, err := r.Kernel.IsMountPoint(dir)
	return mounted, errors.Join(r.refuse("look"), err)
}

func (r refusing) Below(dir string) ([]string, error) {
	list, err := r.Kernel.Below(dir)
	return list, errors.Join(r.refuse("list"), err)
}

// A pod does not start with a volume that the kernel refused to mount.
func TestVolumesThatTheKernelRefuses(t *testing.T) {
	memory := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}
	pages := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "HugePages"}}
	secret := corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}
	requests := corev1.ResourceList{"hugepages-2Mi": resource.MustParse("2Mi")}
	for _, c := range []struct {
		source corev1.VolumeSource
		what   string
		want   string
	}{
		{memory, "tmpfs", "mount memory at"}, {memory, "look", "refused"}, {secret, "tmpfs", "mount memory at"}, {secret, "look", "refused"},
		{pages, "huge", "mount huge pages at"}, {pages, "look", "refused"},
		{corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "h", Path: "/a"}}, "list", "look for mounts"},
	} {
		m, _, mounted, _ := newManager(t)
		m.Mounter = refusing{mounted, c.what}
		pod := volumetest.Pod(c.source)
		pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}
		if err := m.SetUp(t.Context(), pod, nil); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.what, err, c.want)
		}
		if c.what == "list" {
			if err := m.TearDown(t.Context(), "u"); !errors.Is(err, errRefused) {
				t.Errorf("what cannot be listed is removed: %v", err)
			}
		}
	}
}

// A pod does not start with a directory that cannot be made.
func TestDirectoriesThatCannotBe(t *testing.T) {
	for at, source := range map[string]corev1.VolumeSource{
		"":                                   {},
		"volumes/kubernetes.io~configmap":    configMap("cm", false),
		"volumes/kubernetes.io~secret":       {Secret: &corev1.SecretVolumeSource{SecretName: "s"}},
		"volumes/kubernetes.io~downward-api": {DownwardAPI: &corev1.DownwardAPIVolumeSource{}},
		"volumes/kubernetes.io~projected":    {Projected: &corev1.ProjectedVolumeSource{}},
		"volumes/kubernetes.io~empty-dir":    {EmptyDir: &corev1.EmptyDirVolumeSource{}},
		"volumes/kubernetes.io~nfs":          {NFS: &corev1.NFSVolumeSource{Server: "h", Path: "/a"}},
	} {
		m, _, _, _ := newManager(t)
		file := filepath.Join(m.PodDir("u"), at)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if err := m.SetUp(t.Context(), volumetest.Pod(source), nil); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s is a file: %v", at, err)
		}
	}
	for _, kind := range []corev1.HostPathType{corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathFileOrCreate} {
		path := corev1.HostPathVolumeSource{Path: "/proc/self/none/at/all", Type: &kind}
		m, _, _, _ := newManager(t)
		if err := m.SetUp(t.Context(), volumetest.Pod(corev1.VolumeSource{HostPath: &path}), nil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a hostPath %q where nothing can be made: %v", kind, err)
		}
	}
}

func TestMissingSourcesAreNamed(t *testing.T) {
	m, _, _, _ := newManager(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "no"}}}}}
	if err := m.SetUp(t.Context(), pod, nil); err == nil ||
		err.Error() != `MountVolume.SetUp failed for volume "v" : configmap "no" not found` {
		t.Errorf("error %v", err)
	}
	pod.Spec.Volumes[0].ConfigMap.Optional = new(true)
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Error(err)
	}
}
