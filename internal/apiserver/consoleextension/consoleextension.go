// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package consoleextension has the kind ConsoleExtension of extension.mortise.dev, by which links and columns are added to the console. The
// API server stores and validates its objects; the console's page reads them as the user who signed in.
//
// [Kind] describes the kind, and [Validate] checks what its schema cannot express: that a link leads to a web page of a host that the
// object names itself, and that paths can be parsed. Both may be called by any goroutine.
package consoleextension

import (
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/jsonpath"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

//go:embed definition.yaml
var definition []byte

// Kind describes ConsoleExtension.
func Kind() (*resource.Descriptor, error) { return crd.BuiltIn(definition, Validate) }

// Validate checks links and paths.
func Validate(e *v1alpha1.ConsoleExtension) field.ErrorList {
	path, spec := field.NewPath("spec"), &e.Spec
	var errs field.ErrorList
	if len(spec.Links) == 0 && len(spec.Columns) == 0 {
		errs = append(errs, field.Required(path, "must have links or columns"))
	}
	if len(spec.Columns) > 0 && spec.Resource == nil {
		errs = append(errs, field.Required(path.Child("resource"), "columns are those of a resource"))
	}
	for i, l := range spec.Links {
		if err := checkURL(l.URL, spec.Resource != nil); err != nil {
			errs = append(errs, field.Invalid(path.Child("links").Index(i).Child("url"), l.URL, err.Error()))
		}
	}
	for i, c := range spec.Columns {
		if err := checkPath(c.JSONPath); err != nil {
			errs = append(errs, field.Invalid(path.Child("columns").Index(i).Child("jsonPath"), c.JSONPath, err.Error()))
		}
	}
	return errs
}

// checkURL checks the template of a URL. The object that a link is about must not choose its host.
func checkURL(template string, ofObject bool) error {
	if strings.ContainsFunc(template, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '\\' }) {
		return errors.New("must not contain spaces, control characters or '\\'")
	}
	var plain strings.Builder
	for rest := template; ; {
		before, after, found := strings.Cut(rest, "{")
		plain.WriteString(before)
		if !found {
			break
		}
		path, next, closed := strings.Cut(after, "}")
		switch {
		case !closed:
			return errors.New("a brace is not closed")
		case !ofObject:
			return errors.New("must not have JSONPaths in braces without a resource")
		case !strings.ContainsAny(hostAndMore(plain.String()), "/?#"):
			return errors.New("must not have JSONPaths in braces before the end of the host")
		}
		if err := checkPath(path); err != nil {
			return err
		}
		plain.WriteString("x")
		rest = next
	}
	u, err := url.Parse(plain.String())
	switch {
	case err != nil:
		return fmt.Errorf("must be a URL: %w", err)
	case u.Scheme != "https" && u.Scheme != "http":
		return errors.New("must begin with https:// or http://")
	case u.Hostname() == "":
		return errors.New("must have a host")
	case u.User != nil:
		return errors.New("must not have a user")
	}
	return nil
}

// hostAndMore returns what follows the scheme of a URL; empty: it has none.
func hostAndMore(begin string) string {
	_, rest, _ := strings.Cut(begin, "://")
	return rest
}

// checkPath checks a JSONPath as in a column of a CustomResourceDefinition: .spec.replicas.
func checkPath(path string) error {
	if !strings.HasPrefix(path, ".") {
		return errors.New("must be a JSONPath that begins with a dot: .spec.replicas")
	}
	if strings.ContainsAny(path, "{}") {
		return errors.New("must be one JSONPath without braces")
	}
	if _, err := jsonpath.Parse("path", "{"+path+"}"); err != nil {
		return fmt.Errorf("must be a JSONPath: %w", err)
	}
	return nil
}
