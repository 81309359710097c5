// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/mortise-dev/mortise/internal/machine/images"
)

// standIn is an image that is served under a name of Kubernetes' test images, with the same programs.
type standIn struct {
	names      []string // repository:tag
	layers     []string
	entrypoint []string
	cmd        []string
	user       string
}

// table lists the images of test/utils/image of Kubernetes 1.37.1 that the tests of the runs use.
func table() []standIn {
	const e2e = "e2e-test-images/"
	agnhost, entry := []string{"debian", "agnhost"}, []string{"/agnhost"}
	return []standIn{
		{names: []string{e2e + "agnhost:2.66.1", e2e + "agnhost:2.55"}, layers: agnhost, entrypoint: entry, cmd: []string{"pause"}},
		{names: []string{e2e + "busybox:1.37.0-2", e2e + "busybox:1.36.1-1"}, layers: []string{"busybox"}, cmd: []string{"sh"}},
		{names: []string{e2e + "nginx:1.27.0-2", e2e + "nginx:1.28.0-2", "library/nginx:latest"}, layers: []string{"debian", "nginx"},
			cmd: []string{"nginx", "-g", "daemon off;"}},
		{names: []string{"pause:3.10.2", "pause:3.10"}, layers: []string{"pause"}, entrypoint: []string{"/pause"}},
		{names: []string{e2e + "kitten:1.8"}, layers: append(agnhost[:2:2], "kitten"), entrypoint: entry, cmd: []string{"test-webserver"}},
		{names: []string{e2e + "nautilus:1.8"}, layers: append(agnhost[:2:2], "nautilus"), entrypoint: entry,
			cmd: []string{"test-webserver"}},
		{names: []string{e2e + "nonroot:1.5"}, layers: agnhost, entrypoint: entry, cmd: []string{"pause"}, user: "1234"},
		{names: []string{e2e + "perl:5.26"}, layers: []string{"debian"}, cmd: []string{"perl"}},
		{names: []string{e2e + "glibc-dns-testing:2.1.1"}, layers: []string{"debian"}, cmd: []string{"sh"}},
		{names: []string{e2e + "nonewprivs:1.4"}, layers: []string{"debian", "nnp"}, cmd: []string{"nnp"}},
		{names: []string{e2e + "sample-apiserver:1.29.2"}, layers: []string{"sample-apiserver"}, entrypoint: []string{"/sample-apiserver"}},
		{names: []string{e2e + "resource-consumer:1.14"}, layers: []string{"debian", "consumer"}, entrypoint: []string{"/consumer"}},
		{names: []string{e2e + "sample-device-plugin:1.8.0", e2e + "sample-device-plugin:1.7"},
			layers: []string{"debian", "sample-device-plugin"}, entrypoint: []string{"/sampledeviceplugin"}},
		{names: []string{"sig-storage/hostpathplugin:v1.17.1"}, layers: []string{"debian", "proxy"},
			entrypoint: []string{"/" + proxyName}},
		{names: []string{"etcd:3.7.0-0"}, layers: []string{"debian", "etcd"}, cmd: []string{"etcd"}},
	}
}

// withStorage adds the images of CSI drivers and their sidecars.
func withStorage(all []standIn) []standIn {
	for _, name := range storagePrograms() {
		all = append(all, standIn{names: storageImages(name), layers: []string{"debian", name}, entrypoint: []string{"/" + name}})
	}
	return all
}

// standIns makes all images, by name, of the programs in peers. Their layers are files in dir.
func standIns(ctx context.Context, peers, dir string) (map[string]v1.Image, error) {
	made, err := layers(ctx, peers, dir)
	if err != nil {
		return nil, fmt.Errorf("make images: %w", err)
	}
	out, all := map[string]v1.Image{}, table()
	if _, err := os.Stat(filepath.Join(peers, "bin", "hostpathplugin")); err == nil {
		all = withStorage(all)
	}
	for _, s := range all {
		img, err := s.image(made)
		if err != nil {
			return nil, fmt.Errorf("make image %s: %w", s.names[0], err)
		}
		for _, n := range s.names {
			out[n] = img
		}
	}
	return out, nil
}

// image makes the image of layers.
func (s standIn) image(made map[string]v1.Layer) (v1.Image, error) {
	img := v1.Image(empty.Image)
	for _, l := range s.layers {
		var err error
		if img, err = mutate.AppendLayers(img, made[l]); err != nil {
			return nil, err
		}
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cf = cf.DeepCopy()
	cf.Architecture, cf.OS = runtime.GOARCH, "linux"
	cf.Config = v1.Config{Entrypoint: s.entrypoint, Cmd: s.cmd, User: s.user,
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}
	return mutate.ConfigFile(img, cf)
}

// layers makes the layers of the table.
func layers(ctx context.Context, peers, dir string) (map[string]v1.Layer, error) {
	root := filepath.Join(peers, "rootfs")
	debian := filepath.Join(dir, "debian.tar")
	pack := exec.CommandContext(ctx, "tar", "--numeric-owner", "--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./var/cache/apt/*",
		"--exclude=./var/lib/apt/lists/*", "-C", root, "-cf", debian, ".")
	if out, err := pack.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pack %s: %w: %s", root, err, out)
	}
	l, err := openLayer(debian)
	if err != nil {
		return nil, err
	}
	all := map[string]v1.Layer{"debian": l}
	program := func(name string) string { return filepath.Join(peers, "bin", name) }
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	writers := map[string]func(archive) error{
		"proxy":                func(a archive) error { return a.program(proxyName, self, 0o755) },
		"sample-device-plugin": func(a archive) error { return a.program("sampledeviceplugin", program("sample-device-plugin"), 0o755) },
		"agnhost":              func(a archive) error { return writeAgnhost(a, program("agnhost"), root) },
		"busybox":              func(a archive) error { return writeBusybox(ctx, a, filepath.Join(root, "bin", "bash-static")) },
		"kitten":               func(a archive) error { return a.text("data.json", `{"image": "kitten.jpg"}`+"\n") },
		"nautilus": func(a archive) error {
			return a.text("data.json", `{"image": "nautilus.jpg"}`+"\n")
		},
		"nginx": func(a archive) error {
			return a.text("etc/nginx/conf.d/log.conf", "access_log /dev/stdout;\nerror_log /dev/stderr;\n")
		},
		"nnp":              func(a archive) error { return a.program("usr/local/bin/nnp", program("nnp"), 0o6755) },
		"sample-apiserver": func(a archive) error { return a.alone("sample-apiserver", program("sample-apiserver")) },
		"etcd":             func(a archive) error { return a.program("usr/local/bin/etcd", program("etcd"), 0o755) },
		"consumer": func(a archive) error { // its stress is the Debian tree's
			if err := a.program("consumer", program("resource-consumer"), 0o755); err != nil {
				return err
			}
			return a.program("consume-cpu/consume-cpu", program("consume-cpu"), 0o755)
		},
	}
	for _, name := range storagePrograms() {
		if _, err := os.Stat(program(name)); err == nil {
			writers[name] = func(a archive) error { return a.program(name, program(name), 0o755) }
		}
	}
	for name, write := range writers {
		if all[name], err = writeLayer(filepath.Join(dir, name+".tar"), write); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	all["pause"], err = images.PauseLayer()
	return all, err
}

// wget stands in for busybox's as far as tests call it, wget [-T SECONDS] -qO- URL: Debian's busybox crashes beside another libc.
const wget = `#!/bin/sh
while getopts T:qO: option; do
	case $option in T) seconds=$OPTARG ;; esac
done
shift $((OPTIND - 1))
exec curl -sSf -m "${seconds:-900}" "$1"
`

// writeAgnhost writes what upstream's image has beside the program: wget, a certificate, a directory for uploads, and users.
func writeAgnhost(a archive, program, root string) error {
	if err := a.program("agnhost", program, 0o755); err != nil {
		return err
	}
	if err := a.link("agnhost-2", "agnhost"); err != nil {
		return err
	}
	if err := a.folder("uploads", 0o777); err != nil {
		return err
	}
	if err := a.script("usr/local/bin/wget", wget); err != nil {
		return err
	}
	for name, more := range map[string]string{
		"etc/passwd": "user-defined-in-image:x:1000:1000::/home/u:/bin/sh\n",
		"etc/group":  "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n",
	} {
		had, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		if err := a.text(name, string(had)+more); err != nil {
			return err
		}
	}
	cert, key, err := selfSigned()
	if err != nil {
		return err
	}
	if err := a.text("localhost.crt", cert); err != nil {
		return err
	}
	if err := a.text("localhost.key", key); err != nil {
		return err
	}
	return a.registry("var/registry/pause/", "testing")
}

// registry writes the directory of agnhost's fake-registry-server: the image of pause under a tag.
func (a archive) registry(dir, tag string) error {
	layer, err := images.PauseLayer()
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	if img, err = mutate.Config(img, v1.Config{Entrypoint: []string{"/pause"}}); err != nil {
		return err
	}
	stored := func(folder string, h v1.Hash) string {
		return dir + folder + "/" + h.Algorithm + "/" + h.Hex[:2] + "/" + h.Hex + "/data"
	}
	manifest, err := img.Manifest()
	if err != nil {
		return err
	}
	text, err := img.RawManifest()
	if err != nil {
		return err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	r, err := layer.Compressed()
	if err != nil {
		return err
	}
	content, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		return err
	}
	return errors.Join(
		a.text(dir+"manifests/"+tag, digest.String()),
		a.text(stored("manifests", digest), string(text)),
		a.text(stored("blobs", manifest.Config.Digest), string(config)),
		a.text(stored("blobs", manifest.Layers[0].Digest), string(content)),
	)
}

// selfSigned makes a certificate for localhost.
func selfSigned() (cert, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return "", "", err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})), nil
}

// writeBusybox writes busybox under all its names, but for the shell. The shell of Debian's busybox drops environment variables whose names
// cannot be those of shell variables, which upstream's does not; bash passes them on.
func writeBusybox(ctx context.Context, a archive, bash string) error {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	list, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("list busybox's programs: %w", err)
	}
	for _, d := range []string{"bin", "dev", "etc", "home", "proc", "root", "sys", "usr", "var"} {
		if err := a.folder(d, 0o755); err != nil {
			return err
		}
	}
	if err := a.folder("tmp", 0o1777); err != nil {
		return err
	}
	if err := a.program("bin/busybox", busybox, 0o755); err != nil {
		return err
	}
	if err := a.program("bin/sh", bash, 0o755); err != nil {
		return err
	}
	for _, applet := range strings.Fields(string(list)) {
		if applet == "busybox" || applet == "sh" || strings.Contains(applet, "/") {
			continue
		}
		if err := a.link("bin/"+applet, "busybox"); err != nil {
			return err
		}
	}
	for _, d := range []string{"usr/bin", "usr/sbin", "sbin"} {
		if err := a.link(d, "/bin"); err != nil {
			return err
		}
	}
	if err := a.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n"); err != nil {
		return err
	}
	return a.text("etc/group", "root:x:0:\nnobody:x:65534:\n")
}

// archive writes a layer.
type archive struct{ *tar.Writer }

func (a archive) text(name, content string) error { return a.file(name, content, 0o644) }

func (a archive) script(name, content string) error { return a.file(name, content, 0o755) }

func (a archive) file(name, content string, mode int64) error {
	if err := a.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err := io.WriteString(a, content)
	return err
}

func (a archive) folder(name string, mode int64) error {
	return a.WriteHeader(&tar.Header{Name: name + "/", Mode: mode, Typeflag: tar.TypeDir})
}

func (a archive) link(name, to string) error {
	return a.WriteHeader(&tar.Header{Name: name, Linkname: to, Mode: 0o777, Typeflag: tar.TypeSymlink})
}

func (a archive) program(name, file string, mode int64) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := a.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = a.Write(content)
	return err
}

// alone writes a static program that is all there is in an image.
func (a archive) alone(name, file string) error {
	if err := a.folder("tmp", 0o1777); err != nil {
		return err
	}
	return a.program(name, file, 0o755)
}

// writeLayer makes a layer in a file.
func writeLayer(path string, write func(archive) error) (v1.Layer, error) {
	var b bytes.Buffer
	a := archive{tar.NewWriter(&b)}
	if err := write(a); err != nil {
		return nil, err
	}
	if err := a.Close(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return nil, err
	}
	return openLayer(path)
}

// fileLayer is a layer that is served as it is: to compress it would take longer than to unpack it.
type fileLayer struct {
	path string
	size int64
	hash v1.Hash
}

func openLayer(path string) (v1.Layer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return nil, err
	}
	return fileLayer{path, n, v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}}, nil
}

func (l fileLayer) Digest() (v1.Hash, error)             { return l.hash, nil }
func (l fileLayer) DiffID() (v1.Hash, error)             { return l.hash, nil }
func (l fileLayer) Compressed() (io.ReadCloser, error)   { return os.Open(l.path) }
func (l fileLayer) Uncompressed() (io.ReadCloser, error) { return os.Open(l.path) }
func (l fileLayer) Size() (int64, error)                 { return l.size, nil }
func (l fileLayer) MediaType() (types.MediaType, error)  { return types.DockerUncompressedLayer, nil }
