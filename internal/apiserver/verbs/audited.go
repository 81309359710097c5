// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/resource"
)

// auditObject adds the object of the request's body to the audit event.
func (q *req) auditObject(obj resource.Object, gvk schema.GroupVersionKind) {
	audit.Request(q.ctx, obj, gvk, q.gvr(), q.subName())
}

// auditOptions adds the options of a deletion to the audit event. Upstream writes them in the version that it reads all of them into.
func (q *req) auditOptions(o *metav1.DeleteOptions) {
	audit.RequestOptions(q.ctx, o, schema.GroupVersionKind{Group: metav1.GroupName, Version: "__internal", Kind: "DeleteOptions"}, q.gvr(),
		q.subName())
}

// auditPatch adds the patch to the audit event.
func (p *patching) auditPatch() {
	var convert func([]byte) ([]byte, error)
	if p.kind == types.ApplyYAMLPatchType {
		convert = utilyaml.ToJSON
	}
	audit.Patch(p.ctx, p.bytes, convert)
}

func (q *req) gvr() schema.GroupVersionResource { return q.gr().WithVersion(q.ver().Name) }

// removed finds in the warning of a deprecated version when it is gone: "…, unavailable in v1.25+; …".
var removed = regexp.MustCompile(`unavailable in v(\d+\.\d+)\+`)

// auditDeprecated records in the audit event that the version is deprecated.
func (q *req) auditDeprecated() {
	audit.Annotate(q.ctx, "k8s.io/deprecated", "true")
	if m := removed.FindStringSubmatch(q.ver().Deprecation); m != nil {
		audit.Annotate(q.ctx, "k8s.io/removed-release", m[1])
	}
}
