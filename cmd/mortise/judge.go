// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/crd/lint"
	"github.com/mortise-dev/mortise/internal/cli"
)

// judge lets `mortise crd check` judge by the server's rules.
func judge(ctx context.Context, file, older io.Reader) ([]cli.Judgement, error) {
	defs, err := lint.Read(file)
	if err != nil {
		return nil, err
	}
	before := map[string]*v1.CustomResourceDefinition{}
	if older != nil {
		olds, err := lint.Read(older)
		if err != nil {
			return nil, fmt.Errorf("older definitions: %w", err)
		}
		for _, d := range olds {
			before[d.Name] = d
		}
	}
	var out []cli.Judgement
	for _, d := range defs {
		found := lint.Check(ctx, d)
		if old := before[d.Name]; old != nil && !refused(found) {
			found = append(found, lint.Compare(ctx, old, d)...)
		}
		delete(before, d.Name)
		out = append(out, judgement(d.Name, found))
	}
	for name := range before {
		out = append(out, judgement(name, []lint.Finding{{Level: lint.Breaking, Message: "the definition was removed"}}))
	}
	return out, nil
}

func refused(found []lint.Finding) bool {
	for _, f := range found {
		if f.Level == lint.Error {
			return true
		}
	}
	return false
}

func judgement(name string, found []lint.Finding) cli.Judgement {
	j := cli.Judgement{Name: name, Findings: []cli.Finding{}}
	for _, f := range found {
		j.Findings = append(j.Findings, cli.Finding{Level: string(f.Level), Path: f.Path, Message: f.Message})
	}
	return j
}
