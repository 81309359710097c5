// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package tokensecrets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/podrefs"
)

// Labels of token secrets: the day of the token's last use, which the API server writes, and the day since which the API server rejects the
// token.
const (
	lastUsed     = "kubernetes.io/legacy-token-last-used"
	invalidSince = "kubernetes.io/legacy-token-invalid-since"
)

// The ConfigMap in kube-system with the day since which the API server has recorded uses.
const (
	tracking      = "kube-apiserver-legacy-service-account-token-tracking"
	trackingSince = "since"
)

const (
	unusedFor = 365 * 24 * time.Hour // before a secret is marked, and again before it is deleted
	every     = 24 * time.Hour

	cleanUpPeriod = "legacy-service-account-token-clean-up-period"
)

// Cleaner describes the loop that deletes unused secrets that were generated automatically.
func Cleaner() controllers.Controller {
	unused := unusedFor
	return controllers.Controller{
		Name:    "legacy-serviceaccount-token-cleaner-controller",
		Account: "legacy-service-account-token-cleaner",
		Inputs:  []schema.GroupVersionResource{accounts, corev1.SchemeGroupVersion.WithResource("pods")},
		Outputs: []schema.GroupVersionResource{secrets},
		Settings: []controllers.Setting{{
			Flag: cleanUpPeriod, Field: "controllers.legacyServiceAccountTokenCleaner.cleanUpPeriod", Value: controllers.Value(&unused),
			Usage: "Time since the last use after which an auto-generated service-account token Secret is deleted.",
		}},
		Check: func(*controllers.Cluster) error {
			return controllers.AboveZero(map[string]time.Duration{cleanUpPeriod: unused})
		},
		New: func(d *controllers.Deps) (controllers.Runner, error) {
			own := ofType(d)
			found, all, pods := own.Core().V1().Secrets(), d.Informers.Core().V1().ServiceAccounts(), d.Informers.Core().V1().Pods()
			d.Await(all.Informer())
			d.Await(pods.Informer())
			c := &cleaner{
				client: d.Client, secrets: found.Lister(), accounts: all.Lister(), pods: pods.Informer().GetIndexer(),
				unused: unused,
			}
			informer := found.Informer()
			return controllers.RunnerFunc(func(ctx context.Context) error {
				return run(ctx, own, informer, func(ctx context.Context) error {
					ticker := d.Clock.NewTicker(every)
					defer ticker.Stop()
					for now := d.Clock.Now(); ; {
						if err := c.clean(ctx, now); err != nil && ctx.Err() == nil {
							d.Logger.Warn("Could not look for unused legacy tokens", "error", err)
						}
						select {
						case now = <-ticker.C():
						case <-ctx.Done():
							return nil
						}
					}
				})
			}), nil
		},
	}
}

type cleaner struct {
	client   kubernetes.Interface
	secrets  listers.SecretLister
	accounts listers.ServiceAccountLister
	pods     cache.Indexer
	unused   time.Duration
}

// clean handles all secrets once.
func (c *cleaner) clean(ctx context.Context, now time.Time) error {
	now = now.UTC()
	m, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, tracking, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read since when uses are noted: %w", err)
	}
	since, err := time.Parse(time.DateOnly, m.Data[trackingSince])
	if err != nil {
		return fmt.Errorf("read since when uses are noted: %w", err)
	}
	if now.Before(since.AddDate(0, 0, 1).Add(c.unused)) { // the API server may have recorded only part of that day
		return nil
	}
	all, err := c.secrets.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list secrets: %w", err)
	}
	mounted := map[string]map[string]bool{}
	var errs []error
	for _, s := range all {
		verdict := judge(s, now, c.unused)
		if verdict == keep || !c.generated(s) {
			continue
		}
		if mounted[s.Namespace] == nil {
			if mounted[s.Namespace], err = c.mounts(s.Namespace); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		if mounted[s.Namespace][s.Name] {
			continue
		}
		if verdict == mark {
			err = c.mark(ctx, s, now)
		} else {
			err = c.client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name,
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &s.ResourceVersion}})
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("secret %s/%s: %w", s.Namespace, s.Name, err))
		}
	}
	return errors.Join(errs...)
}

// verdict is what to do with a secret.
type verdict int

const (
	keep verdict = iota
	mark
	remove
)

// judge decides by a secret's dates alone.
func judge(s *corev1.Secret, now time.Time, unused time.Duration) verdict {
	before := now.Add(-unused)
	day := before.Format(time.DateOnly) // dates in this form sort as strings
	if s.Type != corev1.SecretTypeServiceAccountToken || s.DeletionTimestamp != nil || !s.CreationTimestamp.Time.Before(before) {
		return keep
	}
	if used, ok := s.Labels[lastUsed]; ok {
		if _, err := time.Parse(time.DateOnly, used); err != nil || used >= day {
			return keep
		}
	}
	invalid := s.Labels[invalidSince]
	if _, err := time.Parse(time.DateOnly, invalid); err != nil {
		return mark
	}
	if invalid >= day {
		return keep
	}
	return remove
}

// generated reports whether a secret was generated automatically: its account lists it.
func (c *cleaner) generated(s *corev1.Secret) bool {
	a, err := c.accounts.ServiceAccounts(s.Namespace).Get(s.Annotations[corev1.ServiceAccountNameKey])
	if err != nil {
		return false // the controller decides only about secrets with an account
	}
	if uid := s.Annotations[corev1.ServiceAccountUIDKey]; uid != "" && uid != string(a.UID) {
		return false
	}
	return slices.ContainsFunc(a.Secrets, func(r corev1.ObjectReference) bool { return r.Name == s.Name })
}

func (c *cleaner) mark(ctx context.Context, s *corev1.Secret, now time.Time) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": s.UID, "labels": map[string]string{invalidSince: now.Format(time.DateOnly)},
	}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = c.client.CoreV1().Secrets(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// mounts returns the secrets that a namespace's pods refer to.
func (c *cleaner) mounts(namespace string) (map[string]bool, error) {
	pods, err := c.pods.ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	out := map[string]bool{}
	for _, p := range pods {
		if p, ok := p.(*corev1.Pod); ok {
			podrefs.Visit(p, func(kind podrefs.Kind, name string) {
				if kind == podrefs.Secret {
					out[name] = true
				}
			})
		}
	}
	return out, nil
}
