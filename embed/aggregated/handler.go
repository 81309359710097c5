// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	lru "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/internal/selectors"
)

// handler is the whole server: authentication, authorization, and the response.
func (s *Server) handler(t *trust) http.Handler {
	who := authenticators(t, s.client)
	may := &permissions{client: s.client, known: lru.NewLRUExpireCache(kept)}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler {
					panic(p)
				}
				s.Logger.ErrorContext(r.Context(), "Panic while serving a request", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
				status.Write(w, r, apierrors.NewInternalError(fmt.Errorf("%v", p)))
			}
		}()
		if open(r.URL.Path) {
			_, _ = w.Write([]byte("ok")) // a client that went away needs no answer
			return
		}
		u, err := identify(who, r)
		if err != nil {
			s.Logger.DebugContext(r.Context(), "Could not authenticate a request", "path", r.URL.Path, "error", err)
			status.Refuse(w, r, apierrors.NewUnauthorized("Unauthorized"))
			return
		}
		info := requestinfo.Parse(r)
		switch err := may.check(r.Context(), u, info); {
		case errors.As(err, &errDenied{}):
			status.Refuse(w, r, forbidden(u, info, err))
			return
		case err != nil:
			s.Logger.WarnContext(r.Context(), "Could not authorize a request", "user", u.GetName(), "path", r.URL.Path, "error", err)
			status.Refuse(w, r, apierrors.NewInternalError(err))
			return
		}
		s.api.serve(w, r, u, info)
	})
}

func forbidden(u user.Info, i *requestinfo.Info, why error) error {
	reason := ""
	if why.Error() != "" {
		reason = ": " + why.Error()
	}
	if !i.IsResourceRequest {
		return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("User %q cannot %s path %q%s", u.GetName(), i.Verb, i.Path, reason))
	}
	where := "at the cluster scope"
	if i.Namespace != "" {
		where = fmt.Sprintf("in the namespace %q", i.Namespace)
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: i.APIGroup, Resource: i.Resource}, i.Name,
		fmt.Errorf("User %q cannot %s resource %q in API group %q %s%s", u.GetName(), i.Verb, i.Resource, i.APIGroup, where, reason))
}

// api is the compiled form of the resources.
type api struct {
	resources map[schema.GroupVersionResource]*Resource
	documents *documents
}

func newAPI(list []Resource) (*api, error) {
	if len(list) == 0 {
		return nil, errors.New("no Resources")
	}
	a := &api{resources: map[schema.GroupVersionResource]*Resource{}}
	for i := range list {
		r := &list[i]
		if err := r.check(); err != nil {
			return nil, err
		}
		gvr := schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Name}
		if a.resources[gvr] != nil {
			return nil, fmt.Errorf("resource %s is listed twice", gvr)
		}
		a.resources[gvr] = r
	}
	var err error
	a.documents, err = newDocuments(list)
	return a, err
}

// serve serves an authorized request.
func (a *api) serve(w http.ResponseWriter, r *http.Request, u user.Info, i *requestinfo.Info) {
	if !i.IsResourceRequest {
		a.documents.serve(w, r)
		return
	}
	res := a.resources[schema.GroupVersionResource{Group: i.APIGroup, Version: i.APIVersion, Resource: i.Resource}]
	if res == nil || i.Subresource != "" || (res.Namespaced && i.Namespace == "" && (i.Name != "" || i.Verb == "create")) ||
		(!res.Namespaced && i.Namespace != "") {
		status.Write(w, r, status.Route(http.StatusNotFound, ""))
		return
	}
	req, err := newRequest(r, u, i)
	if err == nil {
		err = res.serve(w, r, req)
	}
	if err != nil {
		status.Write(w, r, err)
	}
}

func newRequest(r *http.Request, u user.Info, i *requestinfo.Info) (*Request, error) {
	req := &Request{Namespace: i.Namespace, Name: i.Name, User: u, Verb: i.Verb, HTTP: r}
	q := r.URL.Query()
	if err := metav1.Convert_url_Values_To_v1_ListOptions(&q, &req.Options, nil); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var err error
	if req.Labels, err = selectors.ParseLabels(req.Options.LabelSelector); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if req.Fields, err = selectors.ParseFields(req.Options.FieldSelector); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	for _, f := range req.Fields.Requirements() {
		if f.Field != "metadata.name" && f.Field != "metadata.namespace" {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", f.Field))
		}
	}
	req.DryRun = q.Get("dryRun") == metav1.DryRunAll
	if i.Verb == "list" || i.Verb == "watch" || i.Verb == "deletecollection" {
		req.Name = "" // a selector by name requests the collection
	}
	return req, nil
}

// serve calls the resource's functions.
func (res *Resource) serve(w http.ResponseWriter, r *http.Request, req *Request) error {
	ctx := r.Context()
	notAllowed := status.Route(http.StatusMethodNotAllowed, "")
	if res.Answer != nil && r.Method == http.MethodGet {
		req.HTTP = r
		res.Answer(w, r.WithContext(context.WithValue(ctx, requestKey{}, req)))
		return nil
	}
	switch req.Verb {
	case "get":
		obj, err := res.get(ctx, req)
		if err != nil {
			return err
		}
		return res.writeObject(w, r, http.StatusOK, obj)
	case "list":
		if res.List == nil {
			return notAllowed
		}
		l, err := res.list(ctx, req)
		if err != nil {
			return err
		}
		return res.writeList(w, r, l)
	case "watch":
		if res.Watch == nil {
			return notAllowed
		}
		return res.watch(ctx, w, r, req)
	case "create":
		if res.Create == nil {
			return notAllowed
		}
		obj, err := res.decode(w, r)
		if err != nil {
			return err
		}
		if obj, err = res.setIdentity(req, obj); err != nil {
			return err
		}
		if obj, err = res.Create(ctx, req, obj); err != nil {
			return err
		}
		return res.writeObject(w, r, http.StatusCreated, obj)
	case "update", "patch":
		if res.Update == nil {
			return notAllowed
		}
		return res.change(ctx, w, r, req)
	case "delete", "deletecollection":
		if res.Delete == nil || req.Verb == "deletecollection" && res.List == nil {
			return notAllowed
		}
		return res.remove(ctx, w, r, req)
	}
	return notAllowed
}
