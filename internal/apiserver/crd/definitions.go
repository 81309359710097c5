// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"

	"github.com/mortise-dev/mortise/resource"
)

// Resource is the CustomResourceDefinition resource.
var Resource = schema.GroupResource{Group: v1.GroupName, Resource: "customresourcedefinitions"}

// Definitions is the descriptor of the CustomResourceDefinition kind itself. It belongs in the server's list of kinds.
func Definitions() *resource.Descriptor {
	return &resource.Descriptor{
		Group: v1.GroupName, Resource: "customresourcedefinitions", Singular: "customresourcedefinition",
		Kind: "CustomResourceDefinition", ListKind: "CustomResourceDefinitionList",
		ShortNames: []string{"crd", "crds"}, Categories: []string{"api-extensions"},
		Storage: "v1", Prefix: "apiextensions.k8s.io/customresourcedefinitions", Codec: definitionCodec{},
		Versions: []resource.Version{{
			Name: "v1",
			New:  func() resource.Object { return &v1.CustomResourceDefinition{} },
			Default: func(obj resource.Object) {
				v1.SetObjectDefaults_CustomResourceDefinition(obj.(*v1.CustomResourceDefinition))
			},
			Columns:   definitionColumns{},
			Protobuf:  true,
			Strategic: true,
		}},
		Strategy: resource.Strategy{
			PrepareCreate: prepareDefinition, PrepareUpdate: prepareDefinitionUpdate,
			Validate: validateDefinition, ValidateUpdate: validateDefinitionUpdate, Warn: warnDefinition,
			Finalizers: pendingCleanup, BeginDelete: beginCleanup,
			GarbageCollection: metav1.DeletePropagationBackground, Conditional: true, Undeclared: true,
		},
		Subresources: []resource.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: &resource.Strategy{
				PrepareUpdate: func(_ context.Context, obj, old resource.Object) {
					obj.(*v1.CustomResourceDefinition).Spec = *old.(*v1.CustomResourceDefinition).Spec.DeepCopy()
				},
				ValidateUpdate: validateDefinitionStatus, Conditional: true,
			},
		}},
	}
}

func prepareDefinition(_ context.Context, obj resource.Object) {
	d := obj.(*v1.CustomResourceDefinition)
	d.Status = v1.CustomResourceDefinitionStatus{}
	d.Generation = 1
	rememberStored(d)
}

func prepareDefinitionUpdate(_ context.Context, obj, old resource.Object) {
	d, o := obj.(*v1.CustomResourceDefinition), old.(*v1.CustomResourceDefinition)
	d.Status = *o.Status.DeepCopy()
	if !sameSpec(d, o) {
		d.Generation = o.Generation + 1
	}
	rememberStored(d)
}

// sameSpec compares specs by their meaning: defaults and enumerations in schemas are JSON, which can be written in many ways.
func sameSpec(d, old *v1.CustomResourceDefinition) bool {
	if apiequality.Semantic.DeepEqual(old.Spec, d.Spec) {
		return true
	}
	x, err := internal(d)
	if err != nil {
		return false
	}
	y, err := internal(old)
	return err == nil && apiequality.Semantic.DeepEqual(x.Spec, y.Spec)
}

// rememberStored adds the storage version to the versions in which objects may be stored.
func rememberStored(d *v1.CustomResourceDefinition) {
	for _, v := range d.Spec.Versions {
		if v.Storage {
			if !slices.Contains(d.Status.StoredVersions, v.Name) {
				d.Status.StoredVersions = append(d.Status.StoredVersions, v.Name)
			}
			return
		}
	}
}

// internal converts a definition to the form that apiextensions' validation uses. The result shares nothing with obj.
func internal(obj resource.Object) (*apiextensions.CustomResourceDefinition, error) {
	out := &apiextensions.CustomResourceDefinition{}
	in := obj.(*v1.CustomResourceDefinition).DeepCopy()
	if err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(in, out, nil); err != nil {
		return nil, fmt.Errorf("convert definition: %w", err)
	}
	return out, nil
}

func validateDefinition(ctx context.Context, obj resource.Object) field.ErrorList {
	d, err := internal(obj)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return crdvalidation.ValidateCustomResourceDefinition(ctx, d)
}

func validateDefinitionUpdate(ctx context.Context, obj, old resource.Object) field.ErrorList {
	return validatePair(ctx, obj, old, crdvalidation.ValidateCustomResourceDefinitionUpdate)
}

func validateDefinitionStatus(ctx context.Context, obj, old resource.Object) field.ErrorList {
	return validatePair(ctx, obj, old, crdvalidation.ValidateUpdateCustomResourceDefinitionStatus)
}

func validatePair(ctx context.Context, obj, old resource.Object,
	validate func(ctx context.Context, obj, old *apiextensions.CustomResourceDefinition) field.ErrorList) field.ErrorList {
	d, err := internal(obj)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	o, err := internal(old)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return validate(ctx, d, o)
}

// pendingCleanup blocks the deletion of a definition until its objects are deleted. It applies before the deletion
// begins; afterwards metadata.finalizers decides.
func pendingCleanup(obj resource.Object) []string {
	if obj.GetDeletionTimestamp() != nil {
		return nil
	}
	return []string{v1.CustomResourceCleanupFinalizer}
}

func beginCleanup(obj resource.Object) {
	d := obj.(*v1.CustomResourceDefinition)
	if !slices.Contains(d.Finalizers, v1.CustomResourceCleanupFinalizer) {
		d.Finalizers = append(slices.Clone(d.Finalizers), v1.CustomResourceCleanupFinalizer)
	}
	apihelpers.SetCRDCondition(d, v1.CustomResourceDefinitionCondition{
		Type: v1.Terminating, Status: v1.ConditionTrue, Reason: "InstanceDeletionPending",
		Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
	})
}

// definitionCodec stores definitions as JSON.
type definitionCodec struct{}

// Encode returns the definition's JSON.
func (definitionCodec) Encode(obj resource.Object) ([]byte, error) {
	d := *obj.(*v1.CustomResourceDefinition)
	d.TypeMeta = metav1.TypeMeta{Kind: "CustomResourceDefinition", APIVersion: v1.SchemeGroupVersion.String()}
	b, err := json.Marshal(&d)
	if err != nil {
		return nil, fmt.Errorf("encode definition: %w", err)
	}
	return append(b, '\n'), nil
}

// Decode returns the definition of stored JSON, which is of v1beta1 where kube-apiserver wrote it.
func (definitionCodec) Decode(data []byte) (resource.Object, error) {
	d := &v1.CustomResourceDefinition{}
	if err := json.Unmarshal(data, d); err != nil {
		return nil, fmt.Errorf("decode definition: %w", err)
	}
	if d.APIVersion == v1beta1.SchemeGroupVersion.String() {
		var err error
		if d, err = decodeBeta(data); err != nil {
			return nil, fmt.Errorf("decode definition: %w", err)
		}
	}
	d.TypeMeta = metav1.TypeMeta{}
	v1.SetObjectDefaults_CustomResourceDefinition(d)
	return d, nil
}

// DecodedSize implements [resource.SizeCodec]: a schema has a struct of pointers for each of its fields.
func (definitionCodec) DecodedSize(stored int) int64 { return 12 * int64(stored) }

// decodeBeta returns the definition of JSON of v1beta1, whose schema may stand beside the versions.
func decodeBeta(data []byte) (*v1.CustomResourceDefinition, error) {
	b := &v1beta1.CustomResourceDefinition{}
	if err := json.Unmarshal(data, b); err != nil {
		return nil, err
	}
	v1beta1.SetObjectDefaults_CustomResourceDefinition(b)
	hub, d := &apiextensions.CustomResourceDefinition{}, &v1.CustomResourceDefinition{}
	if err := v1beta1.Convert_v1beta1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(b, hub, nil); err != nil {
		return nil, err
	}
	return d, v1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(hub, d, nil)
}

type definitionColumns struct{}

// Definitions are the columns of kubectl get crd.
func (definitionColumns) Definitions() []metav1.TableColumnDefinition {
	docs := metav1.ObjectMeta{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: docs["name"]},
		{Name: "Scope", Type: "string", Description: "Cluster/Namespaced"},
		{Name: "Versions", Type: "string", Description: "Served versions"},
		{Name: "Created At", Type: "date", Description: docs["creationTimestamp"]},
		{Name: "Group", Type: "string", Priority: 1, Description: "API group"},
		{Name: "Kind", Type: "string", Priority: 1, Description: "CustomResource kind"},
		{Name: "ShortNames", Type: "string", Priority: 1, Description: "Short names"},
		{Name: "Established", Type: "boolean", Priority: 1, Description: "Established status"},
	}
}

// Cells returns the cells of a definition.
func (definitionColumns) Cells(obj resource.Object) ([]any, error) {
	d := obj.(*v1.CustomResourceDefinition)
	var versions []string
	for _, v := range d.Spec.Versions {
		switch {
		case v.Served && v.Storage:
			versions = append(versions, v.Name+"(storage)")
		case v.Served:
			versions = append(versions, v.Name)
		}
	}
	sort.Strings(versions)
	return []any{
		d.Name, string(d.Spec.Scope), strings.Join(versions, ","), d.CreationTimestamp.UTC().Format(time.RFC3339),
		d.Spec.Group, d.Spec.Names.Kind, strings.Join(d.Spec.Names.ShortNames, ","), apihelpers.IsCRDConditionTrue(d, v1.Established),
	}, nil
}
