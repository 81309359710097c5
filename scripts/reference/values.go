// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"slices"
	"strings"
)

// unknown stands for a value that no constant gives.
const unknown = "…"

// farthest is how many variables are followed from one place.
const farthest = 7

// binding gives variables the expression that they stand for on one way through the program.
type binding map[*types.Var]ast.Expr

// with returns the binding and more.
func (b binding) with(more binding) binding {
	out := maps.Clone(b)
	maps.Copy(out, more)
	return out
}

// ways returns the values that expressions have together at one place: one row for each way in which their variables get their values. A
// list, such as a metric's labels, is one value with commas.
func (s *source) ways(expressions []ast.Expr) [][]string {
	var rows [][]string
	s.follow(expressions, binding{}, farthest, func(b binding) {
		row := make([]string, len(expressions))
		for i, e := range expressions {
			row[i] = s.value(e, b, farthest)
		}
		if !slices.ContainsFunc(rows, func(r []string) bool { return slices.Equal(r, row) }) {
			rows = append(rows, row)
		}
	})
	return rows
}

// follow calls each with the bindings in which all variables of expressions have a value, as far as there is one.
func (s *source) follow(expressions []ast.Expr, b binding, left int, each func(binding)) {
	v, selected := s.unbound(expressions, b)
	if v == nil || left == 0 {
		each(b)
		return
	}
	bind := func(more binding) {
		s.follow(slices.AppendSeq(slices.Clone(expressions), maps.Values(more)), b.with(more), left-1, each)
	}
	p, isParameter := s.parameters[v]
	switch {
	case s.ranged[v] != nil && s.list(s.ranged[v], b) != nil:
		for _, element := range elements(s.list(s.ranged[v], b)) {
			bind(binding{v: element})
		}
	case selected && s.indexed(v, b) != nil:
		for _, element := range s.indexed(v, b) {
			bind(binding{v: element})
		}
	case selected && strings.HasPrefix(typeKey(v.Type()), module) && s.literals[typeKey(v.Type())] != nil:
		for _, l := range s.literals[typeKey(v.Type())] {
			bind(binding{v: l})
		}
	case isParameter && len(s.callsOf[p.function]) > 0:
		for _, c := range s.callsOf[p.function] {
			bind(s.arguments(p.function, c))
		}
	case len(s.assigned[v]) > 0:
		for _, e := range s.assigned[v] {
			bind(binding{v: e})
		}
	default:
		bind(binding{v: nil})
	}
}

// arguments binds all parameters of a function to the arguments of a call.
func (s *source) arguments(function string, c *call) binding {
	out := binding{}
	for v, p := range s.parameters {
		if p.function != function {
			continue
		}
		out[v] = nil
		if p.index < len(c.expr.Args) {
			out[v] = c.expr.Args[p.index]
		}
		if p.variadic && !c.expr.Ellipsis.IsValid() {
			out[v] = &ast.CompositeLit{Elts: c.expr.Args[min(p.index, len(c.expr.Args)):]} // the rest, as a list
		}
	}
	return out
}

// unbound returns the first variable of expressions that has no binding yet, and whether a field of it is meant.
func (s *source) unbound(expressions []ast.Expr, b binding) (v *types.Var, selected bool) {
	for _, e := range expressions {
		if e == nil {
			continue
		}
		var fields []*ast.Ident
		ast.Inspect(whole(e), func(n ast.Node) bool {
			if v != nil {
				return false
			}
			if x, ok := n.(ast.Expr); ok && s.constantsOf[x].Value != nil {
				return false
			}
			switch n := n.(type) {
			case *ast.FuncLit:
				return false
			case *ast.KeyValueExpr:
				if got, is := s.unbound([]ast.Expr{n.Value}, b); got != nil {
					v, selected = got, is
				}
				return false
			case *ast.SelectorExpr:
				if id, ok := ast.Unparen(n.X).(*ast.Ident); ok {
					fields = append(fields, id)
				}
			case *ast.Ident:
				if found, ok := s.objects[n].(*types.Var); ok && !found.IsField() {
					if _, bound := b[found]; !bound && useful(found.Type()) {
						v, selected = found, slices.Contains(fields, n)
					}
				}
			}
			return true
		})
		if v != nil {
			return v, selected
		}
	}
	return nil, false
}

// useful reports whether a value of a type can hold a text: others are not followed.
func useful(t types.Type) bool {
	if k := typeKey(t); k == prometheus+".Desc" || k == prometheus+".ValueType" {
		return true
	}
	switch t := t.Underlying().(type) {
	case *types.Basic:
		return t.Info()&types.IsString != 0
	case *types.Slice:
		return useful(t.Elem())
	case *types.Struct:
		return true
	case *types.Pointer:
		_, is := t.Elem().Underlying().(*types.Struct)
		return is && (typeKey(t) == "" || strings.HasPrefix(typeKey(t), module))
	}
	return false
}

// whole is the expression that inspection starts at.
func whole(e ast.Expr) ast.Expr {
	if r, ok := e.(*result); ok {
		return r.CallExpr
	}
	return e
}

// indexed returns the elements of the list of which a variable is one: v := list[i], or v := &list[i].
func (s *source) indexed(v *types.Var, b binding) []ast.Expr {
	for _, e := range s.assigned[v] {
		if u, ok := e.(*ast.UnaryExpr); ok {
			e = u.X
		}
		if i, ok := e.(*ast.IndexExpr); ok {
			if l := s.list(i.X, b); l != nil {
				return elements(l)
			}
		}
	}
	return nil
}

// elements returns the elements of a list, without their indexes.
func elements(l *ast.CompositeLit) []ast.Expr {
	out := make([]ast.Expr, len(l.Elts))
	for i, e := range l.Elts {
		out[i] = e
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			out[i] = kv.Value
		}
	}
	return out
}

// list is the literal that an expression of a list is, through the variables that are bound.
func (s *source) list(e ast.Expr, b binding) *ast.CompositeLit {
	for range farthest {
		switch x := ast.Unparen(e).(type) {
		case *ast.CompositeLit:
			return x
		case *ast.Ident:
			v, _ := s.objects[x].(*types.Var)
			if bound := b[v]; bound != nil {
				e = bound
			} else if given := s.assigned[v]; len(given) == 1 {
				e = given[0]
			} else {
				return nil
			}
		default:
			return nil
		}
	}
	return nil
}

// value is an expression's text under a binding.
func (s *source) value(e ast.Expr, b binding, left int) string {
	if e == nil || left < 0 {
		return unknown
	}
	if v := s.constantsOf[e].Value; v != nil {
		if v.Kind() == constant.String {
			return constant.StringVal(v)
		}
		return v.ExactString()
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		if v, ok := s.objects[e].(*types.Var); ok && b[v] != nil && b[v] != e {
			return s.value(b[v], b, left-1)
		}
		if e.Name == "nil" {
			return ""
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return strings.ReplaceAll(s.value(e.X, b, left)+s.value(e.Y, b, left), unknown+unknown, unknown)
		}
	case *ast.CompositeLit:
		elements := make([]string, len(e.Elts))
		for i, x := range e.Elts {
			elements[i] = s.value(x, b, left-1)
		}
		return strings.Join(elements, ",")
	case *ast.SelectorExpr:
		return s.field(e, b, left)
	case *ast.SliceExpr:
		return s.value(e.X, b, left)
	case *ast.CallExpr:
		return s.called(e, 0, b, left)
	case *result:
		return s.called(e.CallExpr, e.index, b, left)
	}
	return unknown
}

// field is the value of x.Field where x is a literal under the binding, or a call of a function that returns one.
func (s *source) field(e *ast.SelectorExpr, b binding, left int) string {
	id, ok := ast.Unparen(e.X).(*ast.Ident)
	if !ok {
		return unknown
	}
	v, _ := s.objects[id].(*types.Var)
	bound := b[v]
	if u, ok := bound.(*ast.UnaryExpr); ok {
		bound = u.X
	}
	if made, ok := bound.(*ast.CallExpr); ok {
		k := s.calleeKey(made)
		b = b.with(s.arguments(k, &call{expr: made}))
		for _, r := range s.results[k] {
			bound = r.Results[0]
		}
	}
	l, ok := bound.(*ast.CompositeLit)
	if !ok {
		return unknown
	}
	return s.value(fieldOf(l, e.Sel.Name, v.Type()), b, left-1)
}

// fieldOf is a field's expression in a literal of a structure, or nil.
func fieldOf(l *ast.CompositeLit, name string, t types.Type) ast.Expr {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	structure, _ := t.Underlying().(*types.Struct)
	for i, x := range l.Elts {
		if kv, ok := x.(*ast.KeyValueExpr); ok {
			if id, ok := kv.Key.(*ast.Ident); ok && id.Name == name {
				return kv.Value
			}
		} else if structure != nil && i < structure.NumFields() && structure.Field(i).Name() == name {
			return x
		}
	}
	return nil
}

// called is the value of a call: of append its arguments, of a conversion or fmt's formatting the text, else the only constant that the
// function returns with these arguments.
func (s *source) called(c *ast.CallExpr, index int, b binding, left int) string {
	fun := s.callee(c)
	switch {
	case s.constantsOf[c.Fun].IsType():
		return s.value(c.Args[0], b, left-1)
	case fun == nil:
		return unknown
	case fun.Name() == "append" && fun.Pkg() == nil:
		parts := make([]string, len(c.Args))
		for i, a := range c.Args {
			parts[i] = s.value(a, b, left-1)
		}
		return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ",")
	case fun.Pkg() != nil && (fun.Pkg().Path() == "fmt" || fun.Name() == "Wrapf") && len(c.Args) > 0:
		return s.value(c.Args[0], b, left-1)
	case fun.Name() == "BuildFQName":
		parts := []string{s.value(c.Args[0], b, left-1), s.value(c.Args[1], b, left-1), s.value(c.Args[2], b, left-1)}
		return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), "_")
	}
	k := s.calleeKey(c)
	inner := b.with(s.arguments(k, &call{expr: c}))
	out := ""
	for _, r := range s.results[k] {
		if index >= len(r.Results) {
			continue
		}
		if got := s.value(r.Results[index], inner, left-1); got != unknown && got != "" && out == "" {
			out = got
		}
	}
	if out == "" {
		return unknown
	}
	return out
}
