// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

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

	"github.com/mortise-dev/mortise/internal/agent/environ"
)

// holding is a pod with one volume.
func holding(source corev1.VolumeSource) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u"}, Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: source}},
	}}
}

func configMap(name string, optional bool, items ...corev1.KeyToPath) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: items, Optional: &optional}}
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
		"no secret's key": {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", Items: []corev1.KeyToPath{{Key: "no", Path: "a"}}}}, nil,
			"references non-existent secret key: no"},
		"fields":        {corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: field("metadata.name")}}, nil, ""},
		"no field":      {corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: field("spec.no")}}, nil, "spec.no"},
		"no source":     {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{}}}}, nil, "does not support"},
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
		s.pv = c.pv
		err := m.SetUp(t.Context(), holding(c.source), nil)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), `MountVolume.SetUp failed for volume "v" : `) || !strings.Contains(err.Error(), c.want)):
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
		s.pv = c.pv
		pod := holding(c.source)
		got, err := m.Path(t.Context(), pod, &pod.Spec.Volumes[0])
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, want := m.ContainerDir("u", "c"), filepath.Join(m.Root, "pods/u/containers/c"); got != want {
		t.Errorf("the container's directory is %s", got)
	}
}

// Files have the mode of their item, or of their volume, or the usual one; the pod's group can read them.
func TestModes(t *testing.T) {
	gid := int64(os.Getgid())
	for name, c := range map[string]struct {
		item, volume *int32
		group        *int64
		want         fs.FileMode
	}{
		"usual":             {want: 0o644},
		"the volume's":      {volume: new(int32(0o600)), want: 0o600},
		"the item's":        {item: new(int32(0o400)), volume: new(int32(0o600)), want: 0o400},
		"the group's too":   {item: new(int32(0o600)), group: &gid, want: 0o640},
		"no more than that": {item: new(int32(0o7777)), want: 0o777},
	} {
		m, _, _, _ := newManager(t)
		source := configMap("cm", false, corev1.KeyToPath{Key: "k", Path: "k", Mode: c.item})
		source.ConfigMap.DefaultMode = c.volume
		pod := holding(source)
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: c.group}
		for range 2 {
			if err := m.SetUp(t.Context(), pod, nil); err != nil {
				t.Fatal(err)
			}
			path, err := m.Path(t.Context(), pod, &pod.Spec.Volumes[0])
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(filepath.Join(path, "k")); err != nil || info.Mode() != c.want {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
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
		"a part":             {empty, corev1.VolumeMount{Name: "v", MountPath: "m", SubPathExpr: "$(A)"}, nil, "/m ro=false PROPAGATION_PRIVATE"},
		"bidirectional":      {empty, corev1.VolumeMount{Name: "v", MountPath: "/m", MountPropagation: &both}, nil, "/m ro=false PROPAGATION_BIDIRECTIONAL"},
		"not recursive":      {empty, corev1.VolumeMount{Name: "v", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: &unset}, nil, "/m ro=true PROPAGATION_PRIVATE"},
		"recursive":          {empty, corev1.VolumeMount{Name: "v", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: &always}, nil, "not supported by the runtime"},
		"no volume":          {empty, corev1.VolumeMount{Name: "w", MountPath: "/m"}, nil, `cannot find volume "w" to mount into container "c"`},
		"no name":            {empty, corev1.VolumeMount{Name: "v", MountPath: "/m", SubPathExpr: "$(B)"}, nil, "has names that are not known"},
		"a part that leads":  {empty, corev1.VolumeMount{Name: "v", MountPath: "/m", SubPathExpr: "$(UP)"}, nil, "leaves the volume"},
		"image":              {image, corev1.VolumeMount{Name: "v", MountPath: "/m", SubPath: "a..b/c"}, images, "/m ro=true PROPAGATION_PRIVATE"},
		"no image":           {image, corev1.VolumeMount{Name: "v", MountPath: "/m"}, nil, `volume "v" has no image yet`},
		"a path of an image": {image, corev1.VolumeMount{Name: "v", MountPath: "/m", SubPath: "/a"}, images, "must not be an absolute path"},
		"up from an image":   {image, corev1.VolumeMount{Name: "v", MountPath: "/m", SubPath: "a/../../b"}, images, "must not contain '..'"},
	} {
		m, _, _, _ := newManager(t)
		pod := holding(c.source)
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

// A part of a volume that a container's earlier instance had is bound anew, and a file's is a file.
func TestSubPathsAgain(t *testing.T) {
	m, u, dir := emptied(t, t.TempDir())
	if err := os.WriteFile(filepath.Join(dir, "plain"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pod := holding(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	for sub, isDir := range map[string]bool{"a": true, "plain": false, "made/here": true} {
		c := &corev1.Container{Name: strings.ReplaceAll(sub, "/", "-"), VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: sub}}}
		u.asked = nil
		for range 2 {
			mounts, err := m.Mounts(t.Context(), pod, c, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(mounts[0].HostPath); err != nil || info.IsDir() != isDir {
				t.Errorf("%s: mount point %v, %v", sub, info, err)
			}
			if info, err := os.Stat(filepath.Join(dir, "made/here")); sub == "made/here" && (err != nil || info.Mode().Perm() != 0o777) {
				t.Errorf("made: %v, %v", info, err)
			}
		}
		if len(u.asked) != 1 {
			t.Errorf("%s: unmounted %q", sub, u.asked)
		}
	}
	u.stuck[filepath.Join(m.PodDir("u"), "volume-subpaths/v/plain/0")] = errors.New("stuck")
	c := &corev1.Container{Name: "plain", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: "plain"}}}
	if _, err := m.Mounts(t.Context(), pod, c, nil, nil); err == nil || !strings.Contains(err.Error(), "unmount old subPath") {
		t.Errorf("what cannot be unmounted: %v", err)
	}
}

func TestEmptyDirs(t *testing.T) {
	gid := int64(os.Getgid())
	for name, c := range map[string]struct {
		source  corev1.EmptyDirVolumeSource
		group   *int64
		mounted string
		mode    fs.FileMode
	}{
		"usual":      {corev1.EmptyDirVolumeSource{}, nil, "", 0o777},
		"of a group": {corev1.EmptyDirVolumeSource{}, &gid, "", 0o777 | fs.ModeSetgid},
		"memory":     {corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}, nil, "tmpfs 0", 0o777},
		"bounded":    {corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: new(resource.MustParse("1Mi"))}, nil, "tmpfs 1048576", 0o777},
	} {
		m, _, mounted, _ := newManager(t)
		m.Mounter = sized{mounted}
		pod := holding(corev1.VolumeSource{EmptyDir: &c.source})
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: c.group}
		if err := m.SetUp(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
		dir, err := m.Path(t.Context(), pod, &pod.Spec.Volumes[0])
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode() != c.mode|fs.ModeDir || mounted[dir] != c.mounted {
			t.Errorf("%s: %v, %v, mounted %q", name, info, err, mounted[dir])
		}
		// What the pod's containers changed stays.
		if err := errors.Join(os.Chmod(dir, 0o700), m.SetUp(t.Context(), pod, nil)); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s, again: %v, %v", name, info, err)
		}
	}
}

// sized writes down the size of memory.
type sized struct{ mounts }

func (s sized) Tmpfs(dir string, size int64) error {
	s.mounts[dir] = fmt.Sprintf("tmpfs %d", size)
	return nil
}

func TestHostPathsOfAllSorts(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Mkdir(at("dir"), 0o755), os.WriteFile(at("file"), nil, 0o600), unix.Mknod(at("socket"), unix.S_IFSOCK|0o600, 0)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind corev1.HostPathType
		path string
		want string // of the error; empty: none
		left fs.FileMode
	}{
		{corev1.HostPathUnset, at("made1"), "", fs.ModeDir | 0o755},
		{corev1.HostPathUnset, at("file"), "", 0o600},
		{corev1.HostPathDirectoryOrCreate, at("made2"), "", fs.ModeDir | 0o755},
		{corev1.HostPathDirectoryOrCreate, at("file"), "is not a directory", 0o600},
		{corev1.HostPathFileOrCreate, at("made3"), "", 0o644},
		{corev1.HostPathFileOrCreate, at("file"), "", 0o600},
		{corev1.HostPathFileOrCreate, at("dir"), "is not a file", fs.ModeDir | 0o755},
		{corev1.HostPathFileOrCreate, at("none/file"), "make hostPath file", 0},
		{corev1.HostPathSocket, at("socket"), "", fs.ModeSocket | 0o600},
		{corev1.HostPathFile, at("none"), "is not a file", 0},
		{corev1.HostPathSocket, at("none"), "is not a socket file", 0},
		{corev1.HostPathCharDev, at("none"), "is not a character device", 0},
		{corev1.HostPathCharDev, at("file"), "is not a character device", 0o600},
		{corev1.HostPathBlockDev, at("none"), "is not a block device", 0},
		{corev1.HostPathBlockDev, at("file"), "is not a block device", 0o600},
		{corev1.HostPathUnset, at("file/below"), "look at hostPath", 0},
	} {
		err := checkHostPath(&corev1.HostPathVolumeSource{Path: c.path, Type: &c.kind})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s as %q: %v, want %q", c.path, c.kind, err, c.want)
		}
		info, err := os.Stat(c.path)
		if (err == nil) != (c.left != 0) || err == nil && info.Mode() != c.left {
			t.Errorf("%s as %q: left %v, %v", c.path, c.kind, info, err)
		}
	}
}

// refusing is a kernel that refuses to do some things.
type refusing struct {
	mounts
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
	return errors.Join(r.refuse("tmpfs"), r.mounts.Tmpfs(dir, size))
}

func (r refusing) Huge(dir string, page int64) error {
	return errors.Join(r.refuse("huge"), r.mounts.Huge(dir, page))
}

func (r refusing) Bind(source, target string) error {
	return errors.Join(r.refuse("bind"), r.mounts.Bind(source, target))
}

func (r refusing) IsMountPoint(dir string) (bool, error) {
	mounted, err := r.mounts.IsMountPoint(dir)
	return mounted, errors.Join(r.refuse("look"), err)
}

func (r refusing) Below(dir string) ([]string, error) {
	list, err := r.mounts.Below(dir)
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
		pod := holding(c.source)
		pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}
		if err := m.SetUp(t.Context(), pod, nil); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.what, err, c.want)
		}
		if c.what == "list" {
			if err := m.TearDown("u"); !errors.Is(err, errRefused) {
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
		if err := m.SetUp(t.Context(), holding(source), nil); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s is a file: %v", at, err)
		}
	}
	for _, kind := range []corev1.HostPathType{corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathFileOrCreate} {
		path := corev1.HostPathVolumeSource{Path: "/proc/self/none/at/all", Type: &kind}
		if err := checkHostPath(&path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a hostPath %q where nothing can be made: %v", kind, err)
		}
	}
}

func TestBlockDevices(t *testing.T) {
	device, block := filepath.Join(t.TempDir(), "device"), corev1.HostPathBlockDev
	onThread(t, func() error {
		if err := unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(240, 0))); err != nil {
			return err
		}
		return checkHostPath(&corev1.HostPathVolumeSource{Path: device, Type: &block})
	})
}

// A group that the node may not give files to is an error, not a volume without the group.
func TestEmptyDirThatCannotBeGivenAway(t *testing.T) {
	m, _, _, _ := newManager(t)
	pod := holding(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(1234))}
	onThread(t, func() error {
		if err := drop(unix.CAP_CHOWN); err != nil {
			return err
		}
		if err := m.SetUp(t.Context(), pod, nil); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "give emptyDir to group") {
			return fmt.Errorf("error %w", err)
		}
		return nil
	})
}

func TestGroupOfAnEmptyDir(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: giving files away needs root")
	}
	m, _, _, _ := newManager(t)
	pod := holding(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(1234))}
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(m.volumeDir("u", "empty-dir", "v"), &stat); err != nil || stat.Uid != 0 || stat.Gid != 1234 {
		t.Errorf("owned by %d:%d, %v", stat.Uid, stat.Gid, err)
	}
}
