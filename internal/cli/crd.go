// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"
)

// Judgement has the findings of one definition.
type Judgement struct {
	File     string    `json:"file"`
	Name     string    `json:"name"`
	Findings []Finding `json:"findings"`
}

// Finding is one result of a check. Level is error, breaking, warning or note.
type Finding struct {
	Level   string `json:"level"`
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
}

// Judge reads the definitions of a file and validates each. If older is not nil, it compares each with the definition of the same name
// there.
type Judge func(ctx context.Context, file, older io.Reader) ([]Judgement, error)

// runCRD validates files with definitions as a server would, without a server.
func runCRD(ctx context.Context, p Program, args []string) int {
	f := pflag.NewFlagSet("crd", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	old := f.String("old", "", "File of the older definitions. Also reports what the newer ones break.")
	output := f.StringP("output", "o", "", "Output format: json.")
	strict := f.Bool("strict", false, "Exit with code 1 on warnings too.")
	f.Usage = func() {
		fmt.Fprintf(f.Output(), `Usage: mortise crd check FILE... [flags]

Validates the CustomResourceDefinitions in files ("-" is standard input) by the rules of the server: errors, warnings, and the estimated
cost of CEL rules. Exit codes: 0 if a server would accept all of them and nothing would break, 1 if not, 2 if the command line is
invalid.

%s`, f.FlagUsages())
	}
	if code, done := parse(p, f, "crd", args); done {
		return code
	}
	if f.Arg(0) != "check" || f.NArg() < 2 || *output != "" && *output != "json" {
		f.Usage()
		return 2
	}
	var all []Judgement
	for _, file := range f.Args()[1:] {
		js, err := judge(ctx, p, file, *old)
		if err != nil {
			return fail(p, fmt.Errorf("check %s: %w", file, err))
		}
		all = append(all, js...)
	}
	if len(all) == 0 {
		return fail(p, errors.New("check: no CustomResourceDefinition in the files"))
	}
	if err := report(p, all, *output); err != nil {
		return fail(p, err)
	}
	for _, j := range all {
		for _, found := range j.Findings {
			if found.Level == "error" || found.Level == "breaking" || *strict && found.Level == "warning" {
				return 1
			}
		}
	}
	return 0
}

func judge(ctx context.Context, p Program, file, old string) ([]Judgement, error) {
	in := p.In
	if file != "-" {
		r, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		in = r
	}
	var older io.Reader
	if old != "" {
		r, err := os.Open(old)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		older = r
	}
	js, err := p.Judge(ctx, in, older)
	for i := range js {
		js[i].File = file
	}
	return js, err
}

func report(p Program, all []Judgement, output string) error {
	if output == "json" {
		b, err := json.MarshalIndent(all, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(p.Out, string(b))
		return err
	}
	for _, j := range all {
		verdict := "ok"
		for _, found := range j.Findings {
			if found.Level == "error" || found.Level == "breaking" {
				verdict = "not ok"
			}
		}
		fmt.Fprintf(p.Out, "%s: %s: %s\n", j.File, j.Name, verdict)
		for _, found := range j.Findings {
			where := ""
			if found.Path != "" {
				where = found.Path + ": "
			}
			fmt.Fprintf(p.Out, "  %s: %s%s\n", found.Level, where, found.Message)
		}
	}
	return nil
}
