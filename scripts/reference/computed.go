// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/types"
	"strings"
)

// valueTypes are the values of the type prometheus.ValueType.
var valueTypes = map[string]string{"1": "counter", "2": "gauge"}

// computed returns the types of the metrics that collectors compute at each request, by name: a description does not have a type, only the
// place that makes a metric of it.
func (s *source) computed() map[string]string {
	out := map[string]string{}
	for _, c := range s.calls {
		fun := s.callee(c.expr)
		if fun == nil || fun.Pkg() == nil || fun.Pkg().Path() != prometheus || len(c.expr.Args) < 2 {
			continue
		}
		expressions := c.expr.Args[:1]
		switch strings.TrimPrefix(fun.Name(), "Must") {
		case "NewConstMetric":
			expressions = c.expr.Args[:2]
		case "NewConstHistogram":
		default:
			continue
		}
		s.follow(expressions, binding{}, farthest, func(b binding) {
			kind := "histogram"
			if len(expressions) > 1 {
				kind = valueTypes[s.value(expressions[1], b, farthest)]
			}
			for _, name := range s.described(expressions[0], b, farthest) {
				out[name] = kind
			}
		})
	}
	return out
}

// described returns the names of the metrics that an expression of a description may describe.
func (s *source) described(e ast.Expr, b binding, left int) (names []string) {
	if e == nil || left < 0 {
		return nil
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		v, _ := s.objects[e].(*types.Var)
		return s.described(b[v], b, left-1)
	case *ast.SelectorExpr:
		field := s.nameKey(e)
		for _, given := range s.fieldsSet[field] {
			names = append(names, s.described(given, b, left-1)...)
		}
		for _, l := range s.literals[strings.TrimSuffix(field, "."+e.Sel.Name)] {
			names = append(names, s.described(fieldOf(l, e.Sel.Name, s.constantsOf[l].Type), b, left-1)...)
		}
	case *ast.CallExpr:
		if fun := s.callee(e); fun != nil && fun.Name() == "NewDesc" {
			for _, row := range s.ways(e.Args[:1]) {
				names = append(names, row[0])
			}
			if len(names) > 1 || names[0] == unknown { // in a helper: what this call of it gives
				names = []string{s.value(e.Args[0], b, left-1)}
			}
			return names
		}
		k := s.calleeKey(e)
		for _, r := range s.results[k] {
			names = append(names, s.described(r.Results[0], b.with(s.arguments(k, &call{expr: e})), left-1)...)
		}
	}
	return names
}
