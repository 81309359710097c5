// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// Epoch is the first time of New's clock.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Kernel simulates the kernel's mounts, by directory.
type Kernel map[string]string

func (m Kernel) Tmpfs(dir string, _ int64) error { m[dir] = "tmpfs"; return nil }

func (m Kernel) Huge(dir string, page int64) error {
	m[dir] = fmt.Sprintf("huge %d", page)
	return nil
}

func (m Kernel) Mount(_ context.Context, source, dir, kind string, options []string) error {
	if strings.Contains(source, "gone") {
		return errors.New("mount failed: no such server")
	}
	m[dir] = fmt.Sprint(kind, " ", source, " ", options)
	return nil
}

func (m Kernel) Unmount(dir string) error { delete(m, dir); return nil }

func (m Kernel) Bind(source, target string) error {
	real, err := os.Readlink(source)
	m[target] = real
	return err
}

func (m Kernel) IsMountPoint(dir string) (bool, error) { _, ok := m[dir]; return ok, nil }

func (m Kernel) Below(dir string) ([]string, error) {
	var out []string
	for path := range m {
		if strings.HasPrefix(path, dir+"/") {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Sources simulates an API server with a ConfigMap cm (keys k and b), a Secret of any name except no (key s), and one claim.
type Sources struct {
	PV      *corev1.PersistentVolume // of the claim; nil: a hostPath
	Tokens  int                      // number of issued tokens
	Fail    bool                     // there are neither tokens nor trust bundles
	Bundles []*certificatesv1.ClusterTrustBundle
}

func (s *Sources) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	if name != "cm" {
		return nil, apierrors.NewNotFound(corev1.Resource("configmap"), name)
	}
	return &corev1.ConfigMap{Data: map[string]string{"k": "text"}, BinaryData: map[string][]byte{"b": {1}}}, nil
}

func (s *Sources) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	if name == "no" {
		return nil, apierrors.NewNotFound(corev1.Resource("secret"), name)
	}
	return &corev1.Secret{Data: map[string][]byte{"s": []byte("secret")}}, nil
}

func (s *Sources) Token(_ context.Context, _, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	if s.Fail {
		return nil, fmt.Errorf("no token today")
	}
	s.Tokens++
	r.Status = authenticationv1.TokenRequestStatus{
		Token: fmt.Sprintf("token-%s-%d", account, s.Tokens), ExpirationTimestamp: metav1.NewTime(Epoch.Add(time.Duration(s.Tokens) * time.Hour)),
	}
	return r, nil
}

func (s *Sources) Claim(context.Context, string, string) (*corev1.PersistentVolumeClaim, error) {
	return &corev1.PersistentVolumeClaim{
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}, nil
}

func (s *Sources) Volume(context.Context, string) (*corev1.PersistentVolume, error) {
	if s.PV != nil {
		return s.PV, nil
	}
	return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}},
	}}, nil
}

func (s *Sources) TrustBundle(_ context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	for _, b := range s.Bundles {
		if b.Name == name {
			return b, nil
		}
	}
	return nil, apierrors.NewNotFound(certificatesv1.Resource("clustertrustbundle"), name)
}

func (s *Sources) TrustBundles(context.Context, string) ([]*certificatesv1.ClusterTrustBundle, error) {
	if s.Fail {
		return nil, errors.New("no list today")
	}
	return s.Bundles, nil
}

// RequestCertificate fails, because there is no signer.
func (s *Sources) RequestCertificate(
	context.Context, *certificatesv1.PodCertificateRequest,
) (*certificatesv1.PodCertificateRequest, error) {
	return nil, errors.New("no signer")
}

// CertificateRequest returns none.
func (s *Sources) CertificateRequest(_ context.Context, _, name string) (*certificatesv1.PodCertificateRequest, error) {
	return nil, apierrors.NewNotFound(certificatesv1.Resource("podcertificaterequest"), name)
}

// New makes a manager of plug-ins, with a fake API server, kernel and clock.
func New(t *testing.T, factories ...volumes.Factory) (*volumes.Manager, *Sources, Kernel, *clocktesting.FakeClock) {
	s, k, c := &Sources{}, Kernel{}, clocktesting.NewFakeClock(Epoch)
	return volumes.NewManager(&volumes.Host{Root: t.TempDir(), Sources: s, Mounter: k, Clock: c}, factories), s, k, c
}

// Pod returns a pod with one volume.
func Pod(source corev1.VolumeSource) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u"}, Spec: corev1.PodSpec{
		Volumes:    []corev1.Volume{{Name: "v", VolumeSource: source}},
		Containers: []corev1.Container{{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
	}}
}
