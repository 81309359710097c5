// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
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
	q.warnDelete(opts)
	l, err := q.find(q.ctx, q.kind, q.ns, s)
	if err != nil {
		return err
	}
	ctx := q.ctx
	for _, rec := range l.records {
		f, err := q.kind.Forms(rec)
		if err != nil {
			return err
		}
		if err := q.deleteListed(ctx, f, opts); err != nil {
			return err
		}
	}
	return q.respondList(http.StatusOK, l)
}

func (q *req) deleteListed(ctx context.Context, f *watchcache.Forms, opts *metav1.DeleteOptions) error {
	_, _, err := q.delete(ctx, q.deletion(f.Hub.GetNamespace(), f.Hub.GetName(), opts))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// decodeDeleteOptions reads a body: DeleteOptions of meta.k8s.io/v1, or of any group, as old clients send them.
func decodeDeleteOptions(body []byte, media string, o *metav1.DeleteOptions) error {
	var said schema.GroupVersionKind
	switch media {
	case mediaProtobuf:
		var u runtime.Unknown
		if len(body) < len(protobufMagic) || string(body[:len(protobufMagic)]) != protobufMagic {
			return badRequest(errors.New("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"))
		}
		if err := u.Unmarshal(body[len(protobufMagic):]); err != nil {
			return badRequest(err)
		}
		if said = schema.FromAPIVersionAndKind(u.APIVersion, u.Kind); said.Kind == "" || said.Kind == "DeleteOptions" {
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
		if said = *found; said.Kind == "" || said.Kind == "DeleteOptions" {
			if _, err := unmarshal(body, o, false); err != nil {
				return badRequest(err)
			}
			return nil
		}
	}
	return badRequest(fmt.Errorf("no kind %q is registered for version %q in scheme %q", said.Kind, said.GroupVersion(), schemeName))
}

func yamlToJSON(b []byte) ([]byte, error) {
	j, err := yaml.YAMLToJSON(b)
	if err != nil {
		return nil, badRequest(err)
	}
	return j, nil
}
