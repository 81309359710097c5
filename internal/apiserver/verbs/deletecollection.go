// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/yaml"

	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/mortise-dev/mortise/internal/apiserver/registry"
)

// deleteCollection deletes what a list would find, and answers with that list.
func deleteCollection(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	s, err := q.listOptions()
	if err != nil {
		return err
	}
	opts, err := q.deleteOptions()
	if err != nil {
		return err
	}
	if unsafely(opts) {
		return invalidOptions("DeleteOptions", field.ErrorList{field.Invalid(field.NewPath("ignoreStoreReadErrorWithClusterBreakingPotential"),
			true,
			"is not allowed with DELETECOLLECTION, try again after removing the option")})
	}
	q.warnDelete(opts)
	ctx, cancel := context.WithTimeout(warning.WithWarningRecorder(q.ctx, q.warn), collectionTimeout)
	defer cancel()
	s.Initialized = false // deleting a collection includes objects that wait for initializers
	l, err := q.reader.List(ctx, q.kind, q.ns, s)
	if err != nil {
		return err
	}
	one := func(namespace, name string) *registry.Deletion { return q.deletion(namespace, name, opts, true) }
	if err := q.writer.DeleteCollection(ctx, q.kind, l.Records, one); err != nil {
		return err
	}
	return q.respondList(http.StatusOK, l)
}

// collectionTimeout bounds what the deletion of a collection may take.
const collectionTimeout = time.Minute

// decodeDeleteOptions reads a body: DeleteOptions of meta.k8s.io/v1, or of any group, as old clients send them.
func decodeDeleteOptions(body []byte, media string, o *metav1.DeleteOptions) error {
	own := metav1.SchemeGroupVersion.WithKind("DeleteOptions")
	var said schema.GroupVersionKind
	switch media {
	case mediaCBOR:
		return cborDeleteOptions(body, own, o)
	case mediaProtobuf:
		var u runtime.Unknown
		if string(body) == protobufMagic {
			return badRequest(errors.New("empty body"))
		}
		if len(body) < len(protobufMagic) || string(body[:len(protobufMagic)]) != protobufMagic {
			return badRequest(errors.New("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"))
		}
		if err := u.Unmarshal(body[len(protobufMagic):]); err != nil {
			return badRequest(err)
		}
		if said = withDefaults(schema.FromAPIVersionAndKind(u.APIVersion, u.Kind), own); said.Kind == own.Kind {
			if err := o.Unmarshal(u.Raw); err != nil {
				return badRequest(err)
			}
			return nil
		}
	default:
		if media == mediaYAML {
			j, err := yaml.YAMLToJSON(body)
			if err != nil {
				return badRequest(err)
			}
			body = j
		}
		found, err := jsonserializer.DefaultMetaFactory.Interpret(body)
		if err != nil {
			return badRequest(err)
		}
		if said = withDefaults(*found, own); said.Kind == own.Kind {
			if _, err := unmarshal(body, o, false); err != nil {
				return badRequest(err)
			}
			return nil
		}
	}
	return badRequest(fmt.Errorf("no kind %q is registered for version %q in scheme %q", said.Kind, said.GroupVersion(), schemeName))
}
