// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// Annotations that kubectl and other clients read to follow a rollout.
const (
	annotationRevision = "deployment.kubernetes.io/revision"
	annotationHistory  = "deployment.kubernetes.io/revision-history"
	annotationDesired  = "deployment.kubernetes.io/desired-replicas"
	annotationMax      = "deployment.kubernetes.io/max-replicas"

	historyLength = 2000 // the longest annotationHistory, in characters
)

// own reports whether an annotation belongs to a deployment or replica set itself, so that it is not copied between them.
func own(key string) bool {
	switch key {
	case corev1.LastAppliedConfigAnnotation, annotationRevision, annotationHistory, annotationDesired, annotationMax,
		appsv1.DeprecatedRollbackTo:
		return true
	}
	return false
}

// sameTemplate compares pod templates without the hash label.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	if a.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != b.Labels[appsv1.DefaultDeploymentUniqueLabelKey] {
		a, b = withoutHash(a), withoutHash(b)
	}
	return equality.Semantic.DeepEqual(a, b)
}

func withoutHash(t *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	t = &corev1.PodTemplateSpec{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	t.Labels = maps.Clone(t.Labels)
	delete(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return t
}

// revision returns the revision of a replica set; 0 if it has none.
func revision(o metav1.Object) int64 {
	n, err := strconv.ParseInt(o.GetAnnotations()[annotationRevision], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// syncRevision makes the replica set with the deployment's template the newest revision, creating it if create is set. It copies
// annotations to the replica set and the revision to the deployment.
func (p *planner) syncRevision(create bool) {
	var newest int64
	for _, rs := range p.old {
		newest = max(newest, revision(rs))
	}
	next := newest + 1
	if p.new == nil {
		if !create {
			return
		}
		p.makeNew(next)
		p.setRevision(strconv.FormatInt(next, 10))
		if hasDeadline(p.d) {
			setCondition(&p.d.Status, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonNewSet,
				fmt.Sprintf("Created new replica set %q", p.new.Name), p.now)
		}
		return
	}
	p.touch(p.new)
	annotate(p.new, p.d, next)
	p.new.Spec.MinReadySeconds = p.d.Spec.MinReadySeconds
	p.setRevision(p.new.Annotations[annotationRevision])
	if hasDeadline(p.d) && condition(&p.d.Status, appsv1.DeploymentProgressing) == nil {
		setCondition(&p.d.Status, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonFoundNewSet,
			fmt.Sprintf("Found new replica set %q", p.new.Name), p.now)
	}
}

func (p *planner) setRevision(r string) {
	if p.d.Annotations == nil {
		p.d.Annotations = map[string]string{}
	}
	p.d.Annotations[annotationRevision] = r
}

// makeNew adds the replica set for the deployment's template.
func (p *planner) makeNew(revision int64) {
	template := p.d.Spec.Template.DeepCopy()
	hash := workload.TemplateHash(template, p.d.Status.CollisionCount)
	template.Labels = maps.Clone(template.Labels)
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	selector := p.d.Spec.Selector.DeepCopy()
	if selector.MatchLabels == nil {
		selector.MatchLabels = map[string]string{}
	}
	selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	name := p.d.Name
	if most := validation.DNS1123SubdomainMaxLength - len(hash) - 1; len(name) > most {
		name = name[:most]
	}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name:            name + "-" + hash,
			Namespace:       p.d.Namespace,
			Labels:          maps.Clone(template.Labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p.d, kind)},
		},
		Spec: appsv1.ReplicaSetSpec{MinReadySeconds: p.d.Spec.MinReadySeconds, Selector: selector, Template: *template},
	}
	size := p.newSize(rs)
	rs.Spec.Replicas = &size
	annotate(rs, p.d, revision)
	noteSizes(rs, p.d)
	p.new = rs
	p.touch(rs)
	p.tell(rs, 0, size)
}

// annotate copies the deployment's annotations to rs and raises its revision. When an old template becomes the newest again, rs's previous
// revision joins its history.
func annotate(rs *appsv1.ReplicaSet, d *appsv1.Deployment, next int64) {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	for k, v := range d.Annotations {
		if !own(k) {
			rs.Annotations[k] = v
		}
	}
	was, had := rs.Annotations[annotationRevision]
	n, err := strconv.ParseInt(was, 10, 64)
	if err != nil && was != "" || n >= next {
		return
	}
	rs.Annotations[annotationRevision] = strconv.FormatInt(next, 10)
	if !had {
		return
	}
	var history []string
	if h := rs.Annotations[annotationHistory]; h != "" {
		history = strings.Split(h, ",")
	}
	history = append(history, was)
	for len(history) > 1 && len(strings.Join(history, ",")) > historyLength {
		history = history[1:]
	}
	rs.Annotations[annotationHistory] = strings.Join(history, ",")
}

// rollbackTo reads the deprecated annotation that requests a rollback.
func rollbackTo(d *appsv1.Deployment) (revision int64, ok bool) {
	n, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedRollbackTo], 10, 64)
	return n, err == nil
}

// rollBack restores the template of an earlier revision; 0 is the last but one.
func (p *planner) rollBack(to int64) {
	warn := func(reason, message string) {
		p.out.events = append(p.out.events, event{corev1.EventTypeWarning, reason, message})
	}
	p.out.spec = p.d
	delete(p.d.Annotations, appsv1.DeprecatedRollbackTo)
	if to == 0 {
		if to = lastButOne(p.all()); to == 0 {
			warn("DeploymentRollbackRevisionNotFound", "Unable to find last revision.")
			return
		}
	}
	for _, rs := range p.all() {
		if revision(rs) != to {
			continue
		}
		if sameTemplate(&rs.Spec.Template, &p.d.Spec.Template) {
			warn("DeploymentRollbackTemplateUnchanged", fmt.Sprintf("The rollback revision contains the same template as current deployment %q",
				p.d.Name))
			return
		}
		p.d.Spec.Template = *withoutHash(rs.Spec.Template.DeepCopy())
		maps.DeleteFunc(p.d.Annotations, func(k, _ string) bool { return !own(k) })
		for k, v := range rs.Annotations {
			if !own(k) {
				p.d.Annotations[k] = v
			}
		}
		p.out.events = append(p.out.events, event{corev1.EventTypeNormal, "DeploymentRollback",
			fmt.Sprintf("Rolled back deployment %q to revision %d", p.d.Name, to)})
		return
	}
	warn("DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to.")
}

func lastButOne(sets []*appsv1.ReplicaSet) int64 {
	var last, before int64
	for _, rs := range sets {
		switch r := revision(rs); {
		case r >= last:
			last, before = r, last
		case r > before:
			before = r
		}
	}
	return before
}
