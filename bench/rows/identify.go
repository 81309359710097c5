// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/rbac"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// identifications is how often the stages are asked; the first tenth warms up.
const identifications = 20_000

// identify times who a service-account token belongs to, and whether its bearer may list pods by a role: those two stages alone,
// without HTTP around them.
func identify(ctx context.Context, _ *bench, add adder) error {
	s, bearer, err := identified(ctx)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/namespaces/default/pods", nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	var took []time.Duration
	for n := range identifications {
		r.Header["Authorization"] = []string{bearer} // authentication takes it off
		began := time.Now()
		who, err := s.Authenticators().Authenticate(r)
		if err != nil {
			return fmt.Errorf("authenticate: %w", err)
		}
		a := authorize.Attributes{User: who, Verb: "list", Version: "v1", Resource: "pods", Namespace: "default", ResourceRequest: true}
		d, reason, err := s.Authorizer().Authorize(ctx, &a)
		if d != authorize.Allow {
			return errors.Join(fmt.Errorf("authorize: %s", reason), err)
		}
		if n >= identifications/10 {
			took = append(took, time.Since(began))
		}
	}
	add("authenticate and authorize a service-account token, warm",
		report.Value{Name: "p50", Unit: "µs", Number: load.Quantile(took, 50) * 1000, Bound: report.AtMost(15)},
		report.Value{Name: "p99", Unit: "µs", Number: load.Quantile(took, 99) * 1000})
	return nil
}

// identified is a server with a service account that may read pods, and the account's token, bound to a pod.
func identified(ctx context.Context) (*apiserver.Server, string, error) {
	material, err := serving.LoadOrCreate("", []string{"127.0.0.1"}, serving.Options{})
	if err != nil {
		return nil, "", err
	}
	roles := &rbac.Index{}
	s, err := apiserver.New(apiserver.Options{
		Store: store.New(memory.Open(memory.Options{})), Roles: roles, Material: material,
		Kinds: builtin.Kinds([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, true, kinds.RuntimeConfig{}, builtin.Access{Roles: roles}),
	})
	if err != nil {
		return nil, "", err
	}
	make := func(group, r string, obj resource.Object) (resource.Object, error) {
		return s.Backend().Create(ctx, schema.GroupResource{Group: group, Resource: r}, obj, false)
	}
	account, err := make("", "serviceaccounts", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ci"}})
	if err != nil {
		return nil, "", fmt.Errorf("make account: %w", err)
	}
	pod, err := make("", "pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{
		ServiceAccountName: "ci", Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}})
	if err != nil {
		return nil, "", fmt.Errorf("make pod: %w", err)
	}
	if _, err := make(rbacv1.GroupName, "clusterroles", &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"},
			Verbs: []string{"list"}}},
	}); err != nil {
		return nil, "", fmt.Errorf("make role: %w", err)
	}
	if _, err := make(rbacv1.GroupName, "rolebindings", &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "ci"}},
	}); err != nil {
		return nil, "", fmt.Errorf("make role binding: %w", err)
	}
	issued, err := s.Backend().IssueToken(ctx, resource.TokenClaims{
		Namespace: "default", ServiceAccount: "ci", ServiceAccountUID: string(account.GetUID()), Seconds: 3600, PodName: "p",
		PodUID: string(pod.GetUID()),
	})
	return s, "Bearer " + issued.Token, err
}
