// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/kubernetesservice"
	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
)

// TestAccounts: each controller acts as somebody whom the roles of a new cluster know.
func TestAccounts(t *testing.T) {
	bound := map[string]bool{}
	bind := func(subjects []rbacv1.Subject) {
		for _, s := range subjects {
			if s.Kind == rbacv1.ServiceAccountKind && s.Namespace == "kube-system" {
				bound[s.Name] = true
			}
		}
	}
	var own []bootstrap.Account
	for _, c := range Controllers() {
		if len(c.Rules) > 0 {
			own = append(own, bootstrap.Account{Name: c.Account, Rules: c.Rules})
		}
	}
	for _, o := range bootstrap.Objects(bootstrap.Options{Accounts: own}) {
		switch b := o.Object.(type) {
		case *rbacv1.ClusterRoleBinding:
			bind(b.Subjects)
		case *rbacv1.RoleBinding:
			bind(b.Subjects)
		}
	}
	for _, c := range Controllers() {
		if c.Name == kubernetesservice.Name { // it is the server itself
			continue
		}
		switch {
		case c.Account == "":
			t.Errorf("%s: no account", c.Name)
		case c.Account != controllers.Manager && !bound[c.Account]:
			t.Errorf("%s: no role is bound to %s", c.Name, c.Account)
		}
	}
}
