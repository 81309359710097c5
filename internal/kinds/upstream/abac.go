// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/abac"
	_ "k8s.io/kubernetes/pkg/apis/abac/latest" // registers the versions
	"k8s.io/kubernetes/pkg/apis/abac/v0"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// ABACPolicy is one policy of the authorization mode ABAC.
type ABACPolicy struct {
	User, Group                   string
	Readonly                      bool
	APIGroup, Resource, Namespace string
	NonResourcePath               string
}

// DecodeABACPolicy decodes a line of a policy file; old reports that it has the form from before versions.
func DecodeABACPolicy(line []byte) (p ABACPolicy, old bool, err error) {
	decoder := abac.Codecs.UniversalDecoder()
	obj, _, err := decoder.Decode(line, nil, nil)
	if runtime.IsMissingVersion(err) || runtime.IsMissingKind(err) || runtime.IsNotRegisteredError(err) {
		before := &v0.Policy{}
		if err := runtime.DecodeInto(decoder, line, before); err != nil {
			return p, true, err
		}
		is := &abac.Policy{}
		if err := abac.Scheme.Convert(before, is, nil); err != nil {
			return p, true, err
		}
		return ABACPolicy(is.Spec), true, nil
	}
	if err != nil {
		return p, false, err
	}
	is, ok := obj.(*abac.Policy)
	if !ok {
		return p, false, fmt.Errorf("unrecognized object: %#v", obj) // upstream's words
	}
	return ABACPolicy(is.Spec), false, nil
}

// NodeRules returns the rules of every node for objects that belong to no node.
func NodeRules() []rbacv1.PolicyRule { return bootstrappolicy.NodeRules() }
