// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package projected

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes/atomicwriter"
)

const (
	// givenUp is the time after which a request that the watch does not show must have been deleted.
	givenUp = 10 * time.Minute
	// overdue is the time after which a pending renewal causes an event.
	overdue = 10 * time.Minute
	// askAgain is the delay after a renewal could not be requested.
	askAgain = time.Minute
	// maxJitter is the maximum delay of renewals, so that they do not coincide.
	maxJitter = 5 * time.Minute
)

var errNotIssued = errors.New("credential bundle is not issued yet")

// credentialKey identifies a source in a pod. Keys and certificates are in memory only: a node that restarts requests new ones.
type credentialKey struct {
	volume string
	source int
}

// credential is the state of one source. At first it is empty. It then makes a request; the response provides a key and a certificate for
// use. When a renewal is due, it makes the next request, and keeps the current certificate until the response. A denial is final.
type credential struct {
	inUse   *issued
	asked   *asked
	refusal error
	retryAt time.Time // of a failed request for a renewal
}

type issued struct {
	key, chain            []byte // PEM
	renewAt, ends         time.Time
	toldLate, toldExpired bool
}

type asked struct {
	key       []byte // PEM
	name      string
	abandonAt time.Time
}

// next returns when the credential needs a check that no event triggers; zero: never.
func (c *credential) next() time.Time {
	if c.inUse == nil || c.refusal != nil {
		return time.Time{} // the volume fails, and is set up again in any case
	}
	var first time.Time
	switch {
	case c.asked != nil:
		first = c.asked.abandonAt
	case c.retryAt.After(c.inUse.renewAt):
		first = c.retryAt
	default:
		first = c.inUse.renewAt
	}
	if !c.inUse.toldLate {
		first = sooner(first, c.inUse.renewAt.Add(overdue))
	}
	if !c.inUse.toldExpired {
		first = sooner(first, c.inUse.ends)
	}
	return first
}

// certificateFiles returns the key and the certificates of a source, in one file or in two.
func (p *plugin) certificateFiles(
	ctx context.Context, pod *corev1.Pod, key credentialKey, source *corev1.PodCertificateProjection, mode *int32,
) (map[string]atomicwriter.File, error) {
	c, ok := p.credentials.get(pod.UID, key)
	if !ok {
		c = &credential{}
		p.credentials.set(pod.UID, key, c)
	}
	var err error
	if c.refusal == nil {
		err = p.advance(ctx, pod, source, c)
	}
	switch {
	case c.refusal != nil:
		return nil, c.refusal
	case c.inUse != nil:
		// A failed renewal does not remove the current certificate.
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errNotIssued, err)
	default:
		return nil, errNotIssued
	}
	out := map[string]atomicwriter.File{}
	for name, data := range map[string][]byte{
		source.CredentialBundlePath: bytes.Join([][]byte{c.inUse.key, c.inUse.chain}, nil),
		source.KeyPath:              c.inUse.key,
		source.CertificateChainPath: c.inUse.chain,
	} {
		if name != "" {
			out[path.Clean(name)] = credentialFile(pod, data, mode)
		}
	}
	return out, nil
}

// advance makes the next step of a credential that was not denied, if one is due.
func (p *plugin) advance(ctx context.Context, pod *corev1.Pod, source *corev1.PodCertificateProjection, c *credential) error {
	now := p.Host.Clock.Now()
	if c.asked != nil {
		if err := p.answered(ctx, pod, c, now); err != nil {
			return err
		}
	}
	defer p.tellLate(pod, c, now)
	switch {
	case c.asked != nil:
		return nil
	case c.inUse != nil && (now.Before(c.inUse.renewAt) || now.Before(c.retryAt)):
		return nil
	}
	key, request, err := newRequest(pod, source)
	if err != nil {
		return err
	}
	made, err := p.Host.Sources.RequestCertificate(ctx, request)
	if err != nil {
		c.retryAt = now.Add(askAgain)
		return err
	}
	c.asked = &asked{key: key, name: made.Name, abandonAt: now.Add(givenUp + p.jitter())}
	return nil
}

// answered checks the response to the request.
func (p *plugin) answered(ctx context.Context, pod *corev1.Pod, c *credential, now time.Time) error {
	name := pod.Namespace + "/" + c.asked.name
	request, err := p.Host.Sources.CertificateRequest(ctx, pod.Namespace, c.asked.name)
	switch {
	case apierrors.IsNotFound(err):
		// Not shown yet, or deleted; time will tell.
		if !now.Before(c.asked.abandonAt) {
			c.asked = nil
		}
		return nil
	case err != nil:
		return fmt.Errorf("while getting PodCertificateRequest %q: %w", name, err)
	}
	for _, condition := range request.Status.Conditions {
		switch condition.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied:
			return p.refuse(pod, c, &condition, "was permanently denied", fmt.Sprintf("PodCertificateRequest %s was denied", name))
		case certificatesv1.PodCertificateRequestConditionTypeFailed:
			return p.refuse(pod, c, &condition, "was permanently failed", fmt.Sprintf("PodCertificateRequest %s failed", name)) // upstream's words
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			status := &request.Status
			if status.BeginRefreshAt == nil || status.NotAfter == nil {
				return fmt.Errorf("PodCertificateRequest %q is issued and does not say until when", name)
			}
			c.inUse = &issued{
				key: c.asked.key, chain: certificateBlocks(blocks(status.CertificateChain)),
				renewAt: status.BeginRefreshAt.Add(p.jitter()), ends: status.NotAfter.Time,
			}
			c.asked, c.retryAt = nil, time.Time{}
			return nil
		}
	}
	return nil
}

// refuse makes a denial final, records an event and returns the error.
func (p *plugin) refuse(pod *corev1.Pod, c *credential, condition *metav1.Condition, how, event string) error {
	c.refusal = fmt.Errorf("PodCertificateRequest %s: reason=%q message=%q", how, condition.Reason, condition.Message)
	c.asked = nil
	p.tell(pod, condition.Type, fmt.Sprintf("%s, reason=%q, message=%q", event, condition.Reason, condition.Message))
	return c.refusal
}

// tellLate records an event once for each certificate when its renewal is overdue, and when it has expired.
func (p *plugin) tellLate(pod *corev1.Pod, c *credential, now time.Time) {
	if c.inUse == nil {
		return
	}
	if !now.Before(c.inUse.renewAt.Add(overdue)) && !c.inUse.toldLate {
		c.inUse.toldLate = true
		p.tell(pod, "CertificateOverdueForRefresh", "PodCertificate refresh overdue")
	}
	if !now.Before(c.inUse.ends) && !c.inUse.toldExpired {
		c.inUse.toldExpired = true
		p.tell(pod, "CertificateExpired", "PodCertificate expired")
	}
}

func (p *plugin) tell(pod *corev1.Pod, reason, message string) {
	if p.Host.Warn != nil {
		p.Host.Warn(pod, reason, message)
	}
}

func (p *plugin) jitter() time.Duration {
	if p.Host.Jitter != nil {
		return p.Host.Jitter()
	}
	return rand.N(maxJitter)
}

// newRequest makes a key and a request for its certificate. The source of certificates adds the requester's identity.
func newRequest(pod *corev1.Pod, source *corev1.PodCertificateProjection) (key []byte, request *certificatesv1.PodCertificateRequest,
	err error) {
	private, err := generate(source.KeyType)
	if err != nil {
		return nil, nil, fmt.Errorf("while generating keypair: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("encode private key: %w", err)
	}
	// Its signature proves that the node has the key; the rest is not used.
	proof, err := x509.CreateCertificateRequest(cryptorand.Reader, &x509.CertificateRequest{}, private)
	if err != nil {
		return nil, nil, fmt.Errorf("sign request for a certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: source.SignerName, PodName: pod.Name, PodUID: pod.UID, ServiceAccountName: pod.Spec.ServiceAccountName,
			MaxExpirationSeconds: source.MaxExpirationSeconds, StubPKCS10Request: proof, UnverifiedUserAnnotations: source.UserAnnotations,
		},
	}, nil
}

func generate(keyType string) (crypto.Signer, error) {
	switch keyType {
	case "RSA3072":
		return rsa.GenerateKey(cryptorand.Reader, 3072)
	case "RSA4096":
		return rsa.GenerateKey(cryptorand.Reader, 4096)
	case "ECDSAP256":
		return ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	case "ECDSAP384":
		return ecdsa.GenerateKey(elliptic.P384(), cryptorand.Reader)
	case "ECDSAP521":
		return ecdsa.GenerateKey(elliptic.P521(), cryptorand.Reader)
	case "ED25519":
		_, key, err := ed25519.GenerateKey(cryptorand.Reader)
		return key, err
	}
	return nil, fmt.Errorf("unknown key type %q", keyType)
}
