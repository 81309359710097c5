// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/version"
)

// releasesDir has what releases leave behind, which all later ones take over: VERSION-objects.tar.gz is a cluster without nodes that has an
// object of each kind, VERSION-node.tar.gz one with a node and its pods. Both were killed, not stopped. scripts/release/data makes them.
const releasesDir = "testdata/releases"

// makeRelease is a folder for the archives of this version's program; empty: none are made.
const makeRelease = "MORTISE_TEST_MAKE_RELEASE"

// release is the file release.json of an archive: what has to be there after an upgrade.
type release struct {
	Version   string
	Objects   map[string]*unstructured.Unstructured `json:",omitempty"`
	Authority []byte                                `json:",omitempty"` // the CA, in PEM
	Token     string                                `json:",omitempty"` // of the service account default of the namespace transcript
	Pods      map[string]corev1.Pod                 `json:",omitempty"` // by name, of the namespace default
}

const (
	releaseEncryption = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, samples.sample.example.com]
  providers: [{aesgcm: {keys: [{name: first, secret: QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU=}]}}]
`
	// releaseSample is an object of the definition in transcripts/kinds.yaml.
	releaseSample = `{"apiVersion": "sample.example.com/v1", "kind": "Sample", "metadata": {"name": "sample"}, "spec": {"size": 3}}`
)

// objectFlags are those of a cluster in which nothing changes by itself.
func objectFlags(dir string) []string {
	return []string{"--node", "none", "--controllers", "none", "--encryption-provider-config", filepath.Join(dir, "encryption.yaml")}
}

// TestReleases opens the data directory of each release with this version: all objects are there to the letter, with their revisions, those
// that are encrypted too; tokens and certificates of before are good; and the cluster works on.
func TestReleases(t *testing.T) {
	for _, archive := range archives(t, "objects") {
		t.Run(filepath.Base(archive), func(t *testing.T) {
			dir := t.TempDir()
			was := unpack(t, archive, dir)
			p := up(t, filepath.Join(dir, "data"), objectFlags(dir)...)
			is := everything(t, p)
			if len(was.Objects) < 200 {
				t.Errorf("the release has %d objects", len(was.Objects))
			}
			for _, name := range slices.Sorted(maps.Keys(was.Objects)) {
				before, now := was.Objects[name], is[name]
				switch {
				case now == nil:
					t.Errorf("%s is lost", name)
				case serversOwn(before): // may be another with each release
				case text(before.Object) != text(now.Object):
					t.Errorf("%s was\n%s\nand is\n%s", name, text(before.Object), text(now.Object))
				}
			}
			if !bytes.Equal(authority(t, p), was.Authority) {
				t.Error("the cluster has another certificate authority")
			}
			review, err := p.client().AuthenticationV1().TokenReviews().Create(t.Context(),
				&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: was.Token}}, metav1.CreateOptions{})
			if err != nil || review.Status.User.Username != "system:serviceaccount:transcript:default" {
				t.Errorf("a token of before: %+v, %v", review.Status, err)
			}
			p.stop()
			if out, err := p.mortise("store", "check", "--data-dir", filepath.Join(dir, "data")); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			p = up(t, filepath.Join(dir, "data"), append(objectFlags(dir), "--node", "simulated", "--controllers", "*")...)
			p.kubectl("run", "new", "--image=mortise.local/web:1")
			p.kubectl("wait", "pod/new", "--for=condition=Ready", "--timeout=100s")
			p.stop()
		})
	}
}

// serversOwn reports whether a server writes an object by itself when it starts: the roles and flow schemas of Kubernetes, and what tells
// of this server.
func serversOwn(o *unstructured.Unstructured) bool {
	return o.GetLabels()["kubernetes.io/bootstrapping"] != "" || o.GetAnnotations()["apf.kubernetes.io/autoupdate-spec"] == "true" ||
		o.GetKind() == "Lease" && o.GetNamespace() == metav1.NamespaceSystem || o.GetKind() == "APIService" ||
		o.GetNamespace() == "default" && o.GetName() == "kubernetes"
}

// everything returns all objects that a server has but events, which it forgets, by resource, namespace and name.
func everything(t *testing.T, p *program) map[string]*unstructured.Unstructured {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(p.config)
	try(t, err)
	lists, err := d.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) { // the sample of an API service has no server
		t.Fatal(err)
	}
	c, out := dynamic.NewForConfigOrDie(p.config), map[string]*unstructured.Unstructured{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		try(t, err)
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "create") || r.Kind == "Event" {
				continue
			}
			all, err := c.Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatalf("list %s: %v", r.Name, err)
			}
			for i := range all.Items {
				o := &all.Items[i]
				out[fmt.Sprintf("%s.%s %s/%s", r.Name, gv.Group, o.GetNamespace(), o.GetName())] = o
			}
		}
	}
	return out
}

// authority returns the cluster's CA.
func authority(t *testing.T, p *program) []byte {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig)
	try(t, err)
	return config.CAData
}

// TestMakeRelease makes the archive of objects.
func TestMakeRelease(t *testing.T) {
	to := os.Getenv(makeRelease)
	if to == "" {
		t.Log("scripts/release/data makes the archives")
		return
	}
	dir := t.TempDir()
	writeGuideFile(t, filepath.Join(dir, "encryption.yaml"), releaseEncryption)
	p := up(t, filepath.Join(dir, "data"), objectFlags(dir)...)
	c := p.client()
	const namespace = "transcript" // transcripts/kinds.yaml names it
	_, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	try(t, err)
	_, err = c.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		metav1.CreateOptions{})
	try(t, err)
	create := func(object string) {
		d, err := discovery.NewDiscoveryClientForConfig(p.config)
		try(t, err)
		groups, err := restmapper.GetAPIGroupResources(d)
		try(t, err)
		var o unstructured.Unstructured
		try(t, yaml.Unmarshal([]byte(object), &o.Object))
		m, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version)
		try(t, err)
		var r dynamic.ResourceInterface = dynamic.NewForConfigOrDie(p.config).Resource(m.Resource)
		if m.Scope.Name() == "namespace" {
			r = dynamic.NewForConfigOrDie(p.config).Resource(m.Resource).Namespace(namespace)
		}
		if _, err := r.Create(t.Context(), &o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("create %s: %v", object, err)
		}
	}
	kinds, err := os.ReadFile("transcripts/kinds.yaml")
	try(t, err)
	for _, object := range strings.Split(string(kinds), "\n---\n") {
		create(object)
	}
	create(releaseSample)
	const years = 10 * 365 * 24 * 60 * 60
	token, err := c.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), "default",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(years))}}, metav1.CreateOptions{})
	try(t, err)
	r := release{Version: version.Mortise, Objects: everything(t, p), Authority: authority(t, p), Token: token.Status.Token}
	p.kill()
	pack(t, filepath.Join(to, version.Mortise+"-objects.tar.gz"), dir, r)
}

// archives returns the archives of a sort.
func archives(t *testing.T, sort string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(releasesDir, "*-"+sort+".tar.gz"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no release: %v; scripts/release/data makes them", err)
	}
	return found
}

// pack writes a folder and its release.json as an archive. What is mounted in the folder, sockets, and a containerd's own are left out.
func pack(t *testing.T, archive, dir string, r release) {
	t.Helper()
	record, err := json.Marshal(r)
	try(t, err)
	try(t, os.WriteFile(filepath.Join(dir, "release.json"), record, 0o600))
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	try(t, err)
	w := tar.NewWriter(z)
	device := func(info fs.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Dev }
	top, err := os.Lstat(dir)
	try(t, err)
	try(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if name == "data/containerd" {
			return fs.SkipDir
		}
		if !d.IsDir() && !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0 {
			return nil
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		h.Name, h.Uname, h.Gname = name, "", ""
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if d.IsDir() && device(info) != device(top) {
			return fs.SkipDir
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}))
	try(t, errors.Join(w.Close(), z.Close(), os.MkdirAll(filepath.Dir(archive), 0o755), os.WriteFile(archive, out.Bytes(), 0o644)))
	t.Logf("%s has %d KB", archive, out.Len()>>10)
}

// unpack unpacks an archive into a folder, and returns its release.json.
func unpack(t *testing.T, archive, dir string) (r release) {
	t.Helper()
	f, err := os.Open(archive)
	try(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	try(t, err)
	for all := tar.NewReader(z); ; {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		try(t, err)
		if !filepath.IsLocal(h.Name) {
			t.Fatalf("%s has %s", archive, h.Name)
		}
		name := filepath.Join(dir, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			try(t, errors.Join(os.MkdirAll(name, 0o700), os.Chmod(name, h.FileInfo().Mode())))
		case tar.TypeSymlink:
			try(t, os.Symlink(h.Linkname, name))
		case tar.TypeReg:
			data, err := io.ReadAll(all)
			try(t, errors.Join(err, os.WriteFile(name, data, 0o600), os.Chmod(name, h.FileInfo().Mode())))
		default:
			t.Fatalf("%s has %s, of type %c", archive, h.Name, h.Typeflag)
		}
		if os.Geteuid() == 0 {
			try(t, os.Lchown(name, h.Uid, h.Gid))
		}
	}
	record, err := os.ReadFile(filepath.Join(dir, "release.json"))
	try(t, err)
	try(t, json.Unmarshal(record, &r))
	return r
}
