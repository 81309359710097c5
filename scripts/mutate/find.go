// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
)

// mutant is one fault.
type mutant struct {
	id      int
	at      token.Position
	kind    string
	reached bool
	killed  string // by which tests
}

func (m *mutant) String() string {
	return fmt.Sprintf("%s:%d:%d %s", m.at.Filename, m.at.Line, m.at.Column, m.kind)
}

// edit puts text before and after a piece of a file, by which a mutant can be switched on there.
type edit struct {
	from, to      int
	before, after string
}

// on is the function that reports whether a mutant is switched on.
const on = "mutantOn__"

// finder finds the mutants of a package.
type finder struct {
	set     *token.FileSet
	pkg     *types.Package
	info    *types.Info
	home    string
	mutants []*mutant

	source    *source
	functions []*ast.FuncType // that surround the node, innermost last
}

// find adds a file's mutants, and to the file the edits for them.
func (f *finder) find(s *source) {
	f.source = s
	for _, d := range s.file.Decls {
		ast.Walk(f, d)
	}
}

// Visit implements [ast.Visitor].
func (f *finder) Visit(n ast.Node) ast.Visitor {
	switch n := n.(type) {
	case *ast.FuncDecl:
		return f.within(n.Type)
	case *ast.FuncLit:
		return f.within(n.Type)
	case *ast.IfStmt:
		f.negate(n.Cond, "if negated")
	case *ast.ForStmt:
		f.negate(n.Cond, "for negated")
	case *ast.SwitchStmt:
		if n.Tag == nil {
			for _, c := range n.Body.List {
				for _, e := range c.(*ast.CaseClause).List {
					f.negate(e, "case negated")
				}
			}
		}
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.BlockStmt:
		f.calls(n.List)
	case *ast.CaseClause:
		f.calls(n.Body)
	case *ast.CommClause:
		f.calls(n.Body)
	case *ast.ReturnStmt:
		f.returned(n)
	}
	return f
}

// within is the finder for what is inside a function. It shares the list of mutants by handing each walk to the same finder and
// taking the function off when the walk has ended.
func (f *finder) within(t *ast.FuncType) ast.Visitor {
	f.functions = append(f.functions, t)
	return inside{f, len(f.functions)}
}

// inside visits a function's nodes; ast.Walk tells it of the end with a nil node.
type inside struct {
	*finder
	depth int
}

// Visit implements [ast.Visitor].
func (i inside) Visit(n ast.Node) ast.Visitor {
	if n == nil {
		i.functions = i.functions[:i.depth-1]
		return nil
	}
	return i.finder.Visit(n)
}

func (f *finder) offset(p token.Pos) int { return f.set.Position(p).Offset }

func (f *finder) text(n ast.Node) string {
	return string(f.source.text[f.offset(n.Pos()):f.offset(n.End())])
}

// add makes a mutant of the node; before and after have %d where its number goes.
func (f *finder) add(n ast.Node, kind, before, after string) {
	m := &mutant{id: len(f.mutants) + 1, at: f.set.Position(n.Pos()), kind: kind}
	m.at.Filename = filepath.Base(m.at.Filename)
	f.mutants = append(f.mutants, m)
	number := func(s string) string { return strings.ReplaceAll(s, "§", fmt.Sprintf("%s(%d)", on, m.id)) }
	f.source.edits = append(f.source.edits, edit{f.offset(n.Pos()), f.offset(n.End()), number(before), number(after)})
}

// isBool reports whether an expression is of type bool itself, and no constant.
func (f *finder) isBool(e ast.Expr) bool {
	t := f.info.Types[e]
	b, ok := t.Type.(*types.Basic)
	return ok && t.Value == nil && b.Info()&types.IsBoolean != 0
}

func (f *finder) negate(e ast.Expr, kind string) {
	if e != nil && f.isBool(e) {
		f.add(e, kind, "((", ") != §)")
	}
}

func (f *finder) binary(n *ast.BinaryExpr) {
	moved := map[token.Token]token.Token{token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR}
	switch other, ordered := moved[n.Op]; {
	case n.Op == token.LAND || n.Op == token.LOR:
		f.negate(n.X, "operand negated")
		f.negate(n.Y, "operand negated")
	case ordered && f.isBool(n):
		f.add(n, fmt.Sprintf("%s for %s", other, n.Op), fmt.Sprintf("(§ && (%s) %s (%s) || !§ && (", f.text(n.X), other, f.text(n.Y)), "))")
	}
}

// calls drops each call among the statements.
func (f *finder) calls(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if c, ok := s.X.(*ast.CallExpr); ok && !f.unheard(c) {
				f.add(s, "call dropped", "if !§ { ", " }")
			}
		case *ast.DeferStmt:
			if !f.unheard(s.Call) && f.info.Types[s.Call.Fun].Type.String() != "context.CancelFunc" { // what only frees a timer
				f.add(s, "defer dropped", "if !§ { ", " }")
			}
		}
	}
}

// unheard says of a call that its effect is a log line, a metric or the end of the program.
func (f *finder) unheard(c *ast.CallExpr) bool {
	var id *ast.Ident
	switch fun := c.Fun.(type) {
	case *ast.Ident:
		id = fun
	case *ast.SelectorExpr:
		id = fun.Sel
	default:
		return false
	}
	o := f.info.Uses[id]
	if o == nil {
		return false
	}
	if o.Pkg() == nil {
		return o.Name() == "panic" || o.Name() == "print" || o.Name() == "println"
	}
	for _, p := range []string{"log", "log/slog", "k8s.io/klog/v2", "github.com/go-logr/logr"} {
		if o.Pkg().Path() == p {
			return true
		}
	}
	return strings.HasPrefix(o.Pkg().Path(), "github.com/prometheus/client_golang/") || o.Pkg().Path() == "os" && o.Name() == "Exit"
}

// returned changes each of the values that a statement returns.
func (f *finder) returned(n *ast.ReturnStmt) {
	results := f.functions[len(f.functions)-1].Results
	if results == nil || len(n.Results) == 0 {
		return
	}
	var declared []ast.Expr // the results' types
	for _, r := range results.List {
		for range max(1, len(r.Names)) {
			declared = append(declared, r.Type)
		}
	}
	values := make([]string, len(declared))
	if len(n.Results) != len(declared) { // return f()
		for i, d := range declared {
			values[i] = f.zero(d, n.Pos())
		}
		f.answer(n, values, "zero values returned")
		return
	}
	for i, r := range n.Results {
		values[i] = f.text(r)
	}
	fails := false // the statement returns an error that it makes
	for i, r := range n.Results {
		_, made := r.(*ast.CallExpr)
		fails = fails || made && f.isError(declared[i])
	}
	for i, r := range n.Results {
		was := values[i]
		if kind := f.changed(values, i, r, declared[i], fails); kind != "" {
			f.answer(n, values, kind)
		}
		values[i] = was
	}
}

// changed puts another value in the place of the one returned and says what it did.
func (f *finder) changed(values []string, i int, r, declared ast.Expr, fails bool) string {
	value := f.info.Types[r]
	basic, _ := f.info.TypeOf(declared).Underlying().(*types.Basic)
	switch {
	case f.isError(declared) && value.IsNil():
		values[i] = "mutantError__()"
		return "error returned for nil"
	case f.isError(declared):
		values[i] = "nil"
		return "nil returned for an error"
	case basic != nil && basic.Info()&types.IsBoolean != 0:
		values[i] = "!(" + values[i] + ")"
		return "returned bool negated"
	case fails || value.IsNil() || isZero(value.Value) || emptyLiteral(r):
		return ""
	}
	values[i] = f.zero(declared, r.Pos())
	return "zero value returned"
}

func (f *finder) isError(e ast.Expr) bool {
	return types.Identical(f.info.TypeOf(e), types.Universe.Lookup("error").Type())
}

func isZero(v constant.Value) bool {
	if v == nil {
		return false
	}
	switch v.Kind() {
	case constant.String:
		return constant.StringVal(v) == ""
	case constant.Int, constant.Float:
		return constant.Sign(v) == 0
	}
	return false
}

// emptyLiteral reports whether an expression is T{}.
func emptyLiteral(e ast.Expr) bool {
	l, ok := e.(*ast.CompositeLit)
	return ok && len(l.Elts) == 0
}

// zero is the text of a type's zero value at a place; empty if the type's name means something else there.
func (f *finder) zero(declared ast.Expr, at token.Pos) string {
	t := f.info.TypeOf(declared)
	if _, generic := t.(*types.TypeParam); !generic {
		switch u := t.Underlying().(type) {
		case *types.Basic:
			switch {
			case u.Info()&types.IsString != 0:
				return `""`
			case u.Info()&types.IsNumeric != 0:
				return "0"
			case u.Info()&types.IsBoolean != 0:
				return "false"
			}
		case *types.Pointer, *types.Slice, *types.Map, *types.Chan, *types.Signature, *types.Interface:
			return "nil"
		}
	}
	text := "*new(" + f.text(declared) + ")"
	if got, err := types.Eval(f.set, f.pkg, at, text); err != nil || !types.Identical(got.Type, t) {
		return ""
	}
	return text
}

// answer makes a mutant that returns these values in place of the statement's.
func (f *finder) answer(n *ast.ReturnStmt, values []string, kind string) {
	for _, v := range values {
		if v == "" {
			return
		}
	}
	f.add(n, kind, "if § { return "+strings.Join(values, ", ")+" }; ", "")
}
