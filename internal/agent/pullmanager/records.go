// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pullmanager

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/durable"
)

const (
	kindIntent = "ImagePullIntent"
	kindPulled = "ImagePulledRecord"
	group      = "kubelet.config.k8s.io"
	prefix     = "sha256-"
)

// fileName returns kubelet's file name: no character of an image's name gets into a path.
func fileName(name string) string { return fmt.Sprintf("%s%x", prefix, sha256.Sum256([]byte(name))) }

func writeIntent(dir, image string) error {
	return write(dir, image, configv1beta1.ImagePullIntent{TypeMeta: typeOf(kindIntent), Image: image})
}

func writePulled(dir string, record *configv1beta1.ImagePulledRecord) error {
	record.TypeMeta = typeOf(kindPulled)
	return write(dir, record.ImageRef, record)
}

func typeOf(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: group + "/v1beta1", Kind: kind}
}

func write(dir, name string, record any) error {
	text, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode record of image %q: %w", name, err)
	}
	return durable.Write(filepath.Join(dir, fileName(name)), 0o600, append(text, '\n'))
}

// readIntent returns nil if there is none.
func readIntent(dir, image string) (*configv1beta1.ImagePullIntent, error) {
	text, err := os.ReadFile(filepath.Join(dir, fileName(image)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodeIntent(text, image)
}

// readPulled returns nil if there is none.
func readPulled(dir, ref string) (*configv1beta1.ImagePulledRecord, error) {
	text, err := os.ReadFile(filepath.Join(dir, fileName(ref)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodePulled(text, ref)
}

// decodeIntent decodes an intent; if image is not empty, it must match.
func decodeIntent(text []byte, image string) (*configv1beta1.ImagePullIntent, error) {
	out := &configv1beta1.ImagePullIntent{}
	if err := decode(text, out, kindIntent, &out.TypeMeta); err != nil {
		return nil, err
	}
	if image != "" && out.Image != image {
		return nil, fmt.Errorf("the record of image %q is that of %q", image, out.Image)
	}
	return out, nil
}

// decodePulled decodes a record; if ref is not empty, it must match.
func decodePulled(text []byte, ref string) (*configv1beta1.ImagePulledRecord, error) {
	out := &configv1beta1.ImagePulledRecord{}
	if err := decode(text, out, kindPulled, &out.TypeMeta); err != nil {
		return nil, err
	}
	if ref != "" && out.ImageRef != ref {
		return nil, fmt.Errorf("the record of image %q is that of %q", ref, out.ImageRef)
	}
	return out, nil
}

// decode decodes one object of the current or the previous version strictly, because an unknown field may forbid access.
func decode(text []byte, out any, kind string, read *metav1.TypeMeta) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(out); err != nil {
		return fmt.Errorf("read %s: %w", kind, err)
	}
	if d.More() {
		return fmt.Errorf("read %s: there is something behind it", kind)
	}
	if read.Kind != kind || read.APIVersion != group+"/v1beta1" && read.APIVersion != group+"/v1alpha1" {
		return fmt.Errorf("read %s: it is a %s of %s", kind, read.Kind, read.APIVersion)
	}
	return nil
}

// each calls do with every record in the directory, and with the name of its file. It joins the errors of single files.
func each(dir string, do func(path string, text []byte) error) error {
	names, err := recordsIn(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		if err == nil {
			err = do(path, text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("record %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// recordsIn returns the names of the files that are records.
func recordsIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() && strings.HasPrefix(e.Name(), prefix) && !strings.HasSuffix(e.Name(), ".tmp") { // kubelet's own
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func remove(dir, name string) error {
	if err := os.Remove(filepath.Join(dir, fileName(name))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record of image %q: %w", name, err)
	}
	return nil
}
