// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package certificaterequests

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// Upstream's periods.
const (
	keepDone    = time.Hour      // issued, denied and failed requests
	keepPending = 24 * time.Hour // requests that wait for an approver
	keepPod     = 15 * time.Minute
)

// Cleaner describes the loop that deletes expired requests.
func Cleaner() controllers.Controller {
	return controllers.Controller{
		Name:    "certificatesigningrequest-cleaner-controller",
		Account: "certificate-controller",
		Inputs:  []schema.GroupVersionResource{requests},
		Outputs: []schema.GroupVersionResource{requests},
		New: func(d *controllers.Deps) (controllers.Runner, error) {
			informer := d.Informers.Certificates().V1().CertificateSigningRequests()
			queue := controllers.NewQueue[string](d, "csrcleaner", 1)
			err := controllers.Subscribe(d, informer.Informer(), controllers.Handler[*certificatesv1.CertificateSigningRequest]{
				Add:    func(c *certificatesv1.CertificateSigningRequest) { queue.Add(c.Name) },
				Update: func(_, c *certificatesv1.CertificateSigningRequest) { queue.Add(c.Name) },
			})
			lister := informer.Lister()
			return controllers.RunnerFunc(func(ctx context.Context) error {
				return queue.Run(ctx, func(ctx context.Context, name string) error {
					csr, err := get(lister, name)
					if csr == nil || err != nil {
						return err
					}
					if left := ends(csr).Sub(d.Clock.Now()); left >= 0 {
						queue.AddAfter(name, left+time.Millisecond)
						return nil
					}
					return gone(d.Client.CertificatesV1().CertificateSigningRequests().Delete(ctx, name, only(csr.UID)))
				})
			}), err
		},
	}
}

func only(uid types.UID) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
}

// gone treats an object that was already deleted as deleted.
func gone(err error) error {
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("delete request: %w", err)
}

// ends returns when a request is to be deleted.
func ends(csr *certificatesv1.CertificateSigningRequest) time.Time {
	end := time.Unix(1<<40, 0)
	sooner := func(t metav1.Time, keep time.Duration) {
		if at := t.Add(keep); !t.IsZero() && at.Before(end) {
			end = at
		}
	}
	if len(csr.Status.Conditions) == 0 {
		sooner(csr.CreationTimestamp, keepPending)
	}
	issued := len(csr.Status.Certificate) > 0
	for _, c := range csr.Status.Conditions {
		switch {
		case c.Type == certificatesv1.CertificateDenied, c.Type == certificatesv1.CertificateFailed:
			sooner(c.LastUpdateTime, keepDone)
		case c.Type == certificatesv1.CertificateApproved && issued:
			sooner(c.LastUpdateTime, keepDone)
			if t, ok := expiry(csr.Status.Certificate); ok {
				sooner(metav1.NewTime(t), 0)
			}
		case c.Type == certificatesv1.CertificateApproved:
			sooner(c.LastUpdateTime, keepPending)
		}
	}
	return end
}

// expiry returns when the certificate in data expires.
func expiry(data []byte) (time.Time, bool) {
	block, _ := pem.Decode(data)
	if block == nil {
		return time.Time{}, false
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, false
	}
	return c.NotAfter, true
}

// PodCleaner describes the loop that deletes old PodCertificateRequests: a request without an answer by then will never have one.
func PodCleaner() controllers.Controller {
	pods := certificatesv1.SchemeGroupVersion.WithResource("podcertificaterequests")
	return controllers.Controller{
		Name:    "podcertificaterequest-cleaner-controller",
		Account: "podcertificaterequestcleaner",
		Inputs:  []schema.GroupVersionResource{pods},
		Outputs: []schema.GroupVersionResource{pods},
		New: func(d *controllers.Deps) (controllers.Runner, error) {
			informer := d.Informers.Certificates().V1().PodCertificateRequests()
			queue := controllers.NewQueue[types.NamespacedName](d, "pcrcleaner", 1)
			err := controllers.Subscribe(d, informer.Informer(), controllers.Handler[*certificatesv1.PodCertificateRequest]{
				Add: func(r *certificatesv1.PodCertificateRequest) { queue.Add(controllers.Key(r)) },
			})
			lister := informer.Lister()
			return controllers.RunnerFunc(func(ctx context.Context) error {
				return queue.Run(ctx, func(ctx context.Context, key types.NamespacedName) error {
					r, err := lister.PodCertificateRequests(key.Namespace).Get(key.Name)
					if apierrors.IsNotFound(err) {
						return nil
					} else if err != nil {
						return err
					}
					if left := r.CreationTimestamp.Add(keepPod).Sub(d.Clock.Now()); left > 0 {
						queue.AddAfter(key, left)
						return nil
					}
					return gone(d.Client.CertificatesV1().PodCertificateRequests(key.Namespace).Delete(ctx, key.Name, only(r.UID)))
				})
			}), err
		},
	}
}
