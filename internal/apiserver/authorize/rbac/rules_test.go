// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rbac

import (
	"context"
	"errors"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/resource"
)

func TestAllow(t *testing.T) {
	rules := []rbacv1.PolicyRule{rule("get", "", "pods"), rule("create", "", "pods/exec")}
	for s, want := range map[string]bool{"x get pods a/p": true, "x get pods/exec a/p": false, "x create pods/exec a/p": true,
		"x create pods a/p": false} {
		if Allow(rules, ask(s)) != want {
			t.Errorf("%s: want %v", s, want)
		}
	}
}

// TestUnknownKinds checks that a subject of an unknown kind gets no permissions, and that a reference to a missing role
// is an error.
func TestUnknownKinds(t *testing.T) {
	if at, ok := subject(rbacv1.Subject{Kind: "Robot", Name: "zoe"}, "a"); ok {
		t.Errorf("a robot is %+v", at)
	}
	x, _ := load(t, fixture())
	if rules, err := x.RulesOf(ref("Robot", "view"), "a"); rules != nil || err == nil ||
		err.Error() != `unsupported role reference kind: "Robot"` {
		t.Errorf("%v, %v", rules, err)
	}
	if x.Name() != "rbac" {
		t.Error("the name")
	}
}

// broken is a lister that fails.
type broken struct{}

var errBroken = errors.New("broken")

func (broken) List(context.Context, schema.GroupResource, string) ([]resource.Object, error) {
	return nil, errBroken
}

// TestUnreadable checks that objects that cannot be read are an error, and remove nothing.
func TestUnreadable(t *testing.T) {
	x, _ := load(t, fixture())
	if err := x.Load(t.Context(), broken{}); !errors.Is(err, errBroken) {
		t.Errorf("load: %v", err)
	}
	if rules, err := x.RulesOf(ref("ClusterRole", "view"), ""); len(rules) != 1 || err != nil {
		t.Errorf("the role is gone: %v, %v", rules, err)
	}
}
