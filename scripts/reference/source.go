// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"strings"

	"golang.org/x/tools/go/packages"
)

const module = "github.com/mortise-dev/mortise/"

// source is the type-checked packages, with indexes from an object to the places that give it a value.
//
// The type checker reads imported packages from their export data. The same function or field is therefore a different object in each
// package that uses it. The indexes identify functions and fields by keys, which are equal in all packages.
type source struct {
	set   *token.FileSet
	calls []*call // of all packages, in the order of the source

	callsOf     map[string][]*call                     // by the key of a function, or of the variable that holds a function literal
	assigned    map[*types.Var][]ast.Expr              // right sides of definitions and assignments
	ranged      map[*types.Var]ast.Expr                // what a range statement's value comes from
	parameters  map[*types.Var]parameter               // the function that a parameter belongs to
	literals    map[string][]*ast.CompositeLit         // by the key of the type
	fieldsSet   map[string][]ast.Expr                  // by type and field: x.Field = value
	results     map[string][]*ast.ReturnStmt           // by the key of the function
	constantsOf map[ast.Expr]types.TypeAndValue        // of all packages
	objects     map[*ast.Ident]types.Object            // uses and definitions of all packages
	selections  map[*ast.SelectorExpr]*types.Selection // fields and methods
}

// call is a call expression.
type call struct {
	pkg  *packages.Package
	expr *ast.CallExpr
	at   string // package below internal, for example controllers/job
}

// parameter is a parameter of a function: the function's key, which one it is, and whether it stands for all further arguments.
type parameter struct {
	function string
	index    int
	variadic bool
}

// load type-checks packages.
func load(tags string, patterns ...string) (*source, error) {
	found, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports |
			packages.NeedExportFile,
		BuildFlags: []string{"-tags", tags},
	}, patterns...)
	if err != nil {
		return nil, fmt.Errorf("load packages: %w", err)
	}
	s := &source{
		callsOf: map[string][]*call{}, assigned: map[*types.Var][]ast.Expr{}, ranged: map[*types.Var]ast.Expr{},
		parameters: map[*types.Var]parameter{}, literals: map[string][]*ast.CompositeLit{}, fieldsSet: map[string][]ast.Expr{},
		results: map[string][]*ast.ReturnStmt{}, constantsOf: map[ast.Expr]types.TypeAndValue{}, objects: map[*ast.Ident]types.Object{},
		selections: map[*ast.SelectorExpr]*types.Selection{},
	}
	var failures []error
	for _, p := range found {
		for _, e := range p.Errors {
			failures = append(failures, fmt.Errorf("check %s: %w", p.PkgPath, e))
		}
		s.set = p.Fset
		s.index(p)
	}
	return s, errors.Join(failures...)
}

// index adds a package to the indexes.
func (s *source) index(p *packages.Package) {
	for e, v := range p.TypesInfo.Types {
		s.constantsOf[e] = v
	}
	for i, o := range p.TypesInfo.Uses {
		s.objects[i] = o
	}
	for i, o := range p.TypesInfo.Defs {
		s.objects[i] = o
	}
	for e, sel := range p.TypesInfo.Selections {
		s.selections[e] = sel
	}
	if strings.HasSuffix(path.Base(p.PkgPath), "test") {
		return // helpers of tests define no metrics and no events
	}
	for _, file := range p.Syntax {
		var within []string // keys of the functions around a node
		var depth []ast.Node
		ast.Inspect(file, func(n ast.Node) bool {
			if n == nil {
				if _, ok := depth[len(depth)-1].(*ast.FuncDecl); ok {
					within = within[:len(within)-1]
				} else if _, ok := depth[len(depth)-1].(*ast.FuncLit); ok {
					within = within[:len(within)-1]
				}
				depth = depth[:len(depth)-1]
				return true
			}
			switch n := n.(type) {
			case *ast.FuncDecl:
				within = append(within, s.key(s.objects[n.Name]))
				s.parametersOf(within[len(within)-1], n.Type)
			case *ast.FuncLit:
				within = append(within, s.literalKey(n, depth))
				s.parametersOf(within[len(within)-1], n.Type)
			case *ast.ReturnStmt:
				k := within[len(within)-1]
				s.results[k] = append(s.results[k], n)
			}
			depth = append(depth, n)
			s.node(p, n)
			return true
		})
	}
}

// node adds one node to the indexes.
func (s *source) node(p *packages.Package, n ast.Node) {
	switch n := n.(type) {
	case *ast.CallExpr:
		c := &call{pkg: p, expr: n, at: strings.TrimPrefix(strings.TrimPrefix(p.PkgPath, module), "internal/")}
		s.calls = append(s.calls, c)
		if k := s.calleeKey(n); k != "" {
			s.callsOf[k] = append(s.callsOf[k], c)
		}
	case *ast.AssignStmt:
		for i, left := range n.Lhs {
			right := n.Rhs[0]
			if len(n.Rhs) == len(n.Lhs) {
				right = n.Rhs[i]
			} else if c, ok := right.(*ast.CallExpr); ok {
				right = &result{CallExpr: c, index: i}
			}
			s.assign(left, right)
		}
	case *ast.ValueSpec:
		for i, name := range n.Names {
			if len(n.Values) == len(n.Names) {
				s.assign(name, n.Values[i])
			}
		}
	case *ast.RangeStmt:
		if id, ok := n.Value.(*ast.Ident); ok {
			if v, ok := s.objects[id].(*types.Var); ok {
				s.ranged[v] = n.X
			}
		}
	case *ast.CompositeLit:
		if k := typeKey(s.constantsOf[n].Type); k != "" {
			s.literals[k] = append(s.literals[k], n)
		}
	}
}

func (s *source) assign(left, right ast.Expr) {
	switch left := left.(type) {
	case *ast.Ident:
		if v, ok := s.objects[left].(*types.Var); ok {
			s.assigned[v] = append(s.assigned[v], right)
		}
	case *ast.SelectorExpr:
		if k := s.nameKey(left); k != "" {
			s.fieldsSet[k] = append(s.fieldsSet[k], right)
		}
	}
}

// result is one of the results of a call.
type result struct {
	*ast.CallExpr
	index int
}

func (s *source) parametersOf(function string, t *ast.FuncType) {
	i := 0
	for _, field := range t.Params.List {
		for _, name := range field.Names {
			if v, ok := s.objects[name].(*types.Var); ok {
				_, variadic := field.Type.(*ast.Ellipsis)
				s.parameters[v] = parameter{function, i, variadic}
			}
			i++
		}
	}
}

// literalKey is the key of a function literal: that of the variable or field that it is assigned to, if any.
func (s *source) literalKey(f *ast.FuncLit, around []ast.Node) string {
	if a, ok := around[len(around)-1].(*ast.AssignStmt); ok {
		for i, right := range a.Rhs {
			if right == f {
				return s.nameKey(a.Lhs[i])
			}
		}
	}
	return fmt.Sprint("literal at ", f.Pos())
}

// nameKey is the key of what a name, or a field's name, stands for.
func (s *source) nameKey(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return s.key(s.objects[e])
	case *ast.SelectorExpr:
		if sel := s.selections[e]; sel != nil && sel.Kind() == types.FieldVal {
			return fieldKey(sel)
		}
	}
	return ""
}

// calleeKey is the key of what a call calls.
func (s *source) calleeKey(c *ast.CallExpr) string {
	if sel, ok := ast.Unparen(c.Fun).(*ast.SelectorExpr); ok {
		if k := s.nameKey(sel); k != "" {
			return k
		}
	}
	return s.key(s.callee(c))
}

// callee is the function, or the variable of a function type, that a call calls.
func (s *source) callee(c *ast.CallExpr) types.Object {
	fun := ast.Unparen(c.Fun)
	if i, ok := fun.(*ast.IndexExpr); ok {
		fun = i.X
	}
	switch fun := fun.(type) {
	case *ast.Ident:
		return s.objects[fun]
	case *ast.SelectorExpr:
		if sel := s.selections[fun]; sel != nil {
			return sel.Obj()
		}
		return s.objects[fun.Sel]
	}
	return nil
}

// key identifies an object in all packages.
func (s *source) key(o types.Object) string {
	switch o := o.(type) {
	case *types.Func:
		return o.Origin().FullName()
	case *types.Var:
		return fmt.Sprint("variable at ", o.Pos())
	}
	return ""
}

// fieldKey identifies a field in all packages, by the type that declares it: a structure may have it from one that it embeds.
func fieldKey(sel *types.Selection) string {
	of := sel.Recv()
	for _, i := range sel.Index()[:len(sel.Index())-1] {
		if p, ok := of.Underlying().(*types.Pointer); ok {
			of = p.Elem()
		}
		of = of.Underlying().(*types.Struct).Field(i).Type()
	}
	return typeKey(of) + "." + sel.Obj().Name()
}

// typeKey identifies a named type, or the one that a pointer points to, in all packages; of others it is empty.
func typeKey(t types.Type) string {
	if t == nil {
		return ""
	}
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := types.Unalias(t).(*types.Named); ok && n.Obj().Pkg() != nil {
		return n.Obj().Pkg().Path() + "." + n.Obj().Name()
	}
	return ""
}
