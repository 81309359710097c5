// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
)

// rule is one compiled rule of a flow schema: its subjects and resources.
type rule struct {
	everyone  bool
	users     []string
	groups    []string
	accounts  []string // prefixes of user names: the service accounts of a namespace
	resources []flowcontrolv1.ResourcePolicyRule
	paths     []flowcontrolv1.NonResourcePolicyRule
}

func compileRules(rules []flowcontrolv1.PolicyRulesWithSubjects) []rule {
	out := make([]rule, 0, len(rules))
	for _, r := range rules {
		n := rule{resources: r.ResourceRules, paths: r.NonResourceRules}
		for _, s := range r.Subjects {
			switch {
			case s.Kind == flowcontrolv1.SubjectKindUser && s.User != nil:
				n.everyone = n.everyone || s.User.Name == flowcontrolv1.NameAll
				n.users = append(n.users, s.User.Name)
			case s.Kind == flowcontrolv1.SubjectKindGroup && s.Group != nil:
				n.everyone = n.everyone || s.Group.Name == "*"
				n.groups = append(n.groups, s.Group.Name)
			case s.Kind == flowcontrolv1.SubjectKindServiceAccount && s.ServiceAccount != nil:
				prefix := "system:serviceaccount:" + s.ServiceAccount.Namespace + ":"
				if s.ServiceAccount.Name == flowcontrolv1.NameAll {
					n.accounts = append(n.accounts, prefix)
				} else {
					n.users = append(n.users, prefix+s.ServiceAccount.Name)
				}
			}
		}
		out = append(out, n)
	}
	return out
}

// Match returns the first flow schema in order that matches a request, or the catch-all schema.
func (c *Controller) Match(info *requestinfo.Info, who user.Info) *Schema {
	var name string
	var groups []string
	if who != nil {
		name, groups = who.GetName(), who.GetGroups()
	}
	cfg := c.config.Load()
	for _, s := range cfg.schemas {
		for i := range s.rules {
			if r := &s.rules[i]; r.of(name, groups) && r.asks(info) {
				return s
			}
		}
	}
	return cfg.rest
}

func (r *rule) of(name string, groups []string) bool {
	if r.everyone {
		return true
	}
	for _, u := range r.users {
		if u == name {
			return true
		}
	}
	for _, g := range r.groups {
		for _, has := range groups {
			if g == has {
				return true
			}
		}
	}
	for _, prefix := range r.accounts {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func (r *rule) asks(info *requestinfo.Info) bool {
	if !info.IsResourceRequest {
		for i := range r.paths {
			if p := &r.paths[i]; among(info.Verb, p.Verbs) && under(info.Path, p.NonResourceURLs) {
				return true
			}
		}
		return false
	}
	for i := range r.resources {
		p := &r.resources[i]
		if !among(info.Verb, p.Verbs) || !resourceAmong(info, p.Resources) || !among(info.APIGroup, p.APIGroups) {
			continue
		}
		if info.Namespace == "" && p.ClusterScope || info.Namespace != "" && among(info.Namespace, p.Namespaces) {
			return true
		}
	}
	return false
}

// all is the wildcard; it must be the only item of its list.
const all = "*"

func among(x string, list []string) bool {
	return len(list) == 1 && list[0] == all || slices.Contains(list, x)
}

func resourceAmong(info *requestinfo.Info, list []string) bool {
	if info.Subresource == "" {
		return among(info.Resource, list)
	}
	if len(list) == 1 && list[0] == all {
		return true
	}
	n := len(info.Resource)
	for _, x := range list {
		if len(x) == n+1+len(info.Subresource) && x[:n] == info.Resource && x[n] == '/' && x[n+1:] == info.Subresource {
			return true
		}
	}
	return false
}

// under reports whether a path is one of some, or below one.
func under(path string, list []string) bool {
	for _, x := range list {
		if x == all || x == path {
			return true
		}
		x = strings.TrimSuffix(x, "*")
		if strings.HasSuffix(x, "/") {
			if strings.HasPrefix(path, x) {
				return true
			}
		} else if len(path) > len(x) && path[len(x)] == '/' && path[:len(x)] == x {
			return true
		}
	}
	return false
}

// distinguisher returns the name of the request's flow within the schema.
func (s *Schema) distinguisher(info *requestinfo.Info, who user.Info) string {
	switch {
	case !s.deal || s.by == "":
		return ""
	case s.by == flowcontrolv1.FlowDistinguisherMethodByNamespaceType:
		return info.Namespace
	case who == nil:
		return ""
	}
	return who.GetName()
}

// hash returns the hash that selects the queues of a flow.
func (s *Schema) hash(distinguisher string) uint64 {
	if !s.deal {
		return 0
	}
	var buf [128]byte
	b := append(append(append(buf[:0], s.Name...), 0), distinguisher...)
	sum := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(sum[:8])
}
