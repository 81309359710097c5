// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets the scripts run `mortise`, with a cluster that only says what it was asked for.
func TestMain(m *testing.M) {
	main := func() {
		os.Exit(Main(context.Background(), Arguments(os.Args), Program{
			In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
			Start: startNothing, AddFlags: addFlags, Engines: engines, Judge: judgeByName, Examine: examineByName,
			PluginBench: driveByName,
		}))
	}
	testscript.Main(m, map[string]func(){"mortise": main, kubectlName: main})
}

// examineByName finds what the data directory's name says.
func examineByName(_ context.Context, o DoctorOptions) ([]Symptom, error) {
	if filepath.Base(o.DataDir) != "ill" {
		return nil, errors.New("read kubelet configuration: denied")
	}
	leased := Symptom{Check: "attachments", State: "wrong", What: "10.1.0.3 is leased,\nolder than " + o.Older.String(),
		Do: "--fix gives it back"}
	if o.Fix {
		leased.State, leased.Do = "fixed", ""
	}
	return []Symptom{{Check: "runtime", State: "ok", What: "containerd answers"}, leased}, nil
}

// driveByName finds what the plug-in's name says.
func driveByName(_ context.Context, o PluginBenchOptions) (*PluginReport, error) {
	if o.Name == "" {
		return nil, errors.New("make directory: denied")
	}
	r := &PluginReport{Protocol: o.Protocol, Name: o.Name, Calls: []PluginCalls{{Plugin: "device-plugin " + o.Name, Calls: 2, P50: 1}}}
	r.Checks = []PluginCheck{
		{Check: "registers", Result: "ok", Milliseconds: 1.25, What: strings.Join(o.Command, " ")},
		{Check: "reports a changed health", Result: "skip", What: "no command"},
	}
	if o.Name == "example.com/broken" {
		r.Checks = append(r.Checks, PluginCheck{Check: "allocates a device", Result: "fail", What: "it\nhangs", Kubelet: "Allocate failed"})
	}
	return r, nil
}

// judgeByName finds in a file what the file's text says.
func judgeByName(_ context.Context, file, older io.Reader) ([]Judgement, error) {
	b, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	j := Judgement{Name: "things.example.com", Findings: []Finding{}}
	switch text := strings.TrimSpace(string(b)); text {
	case "none":
		return nil, nil
	case "broken":
		return nil, errors.New("read document 1: broken")
	case "good":
	default:
		j.Findings = append(j.Findings, Finding{Level: text, Path: "spec", Message: "found"})
	}
	if older != nil {
		j.Findings = append(j.Findings, Finding{Level: "breaking", Message: "the field was removed"})
	}
	return []Judgement{j}, nil
}

// startNothing ends by itself at once, or refuses where the script says so.
func startNothing(_ context.Context, o UpOptions) (Cluster, error) {
	if o.Listen == "refused" {
		return nil, errors.New("listen on refused: the port is taken by another process")
	}
	return ended{o}, nil
}

type ended struct{ o UpOptions }

func (e ended) Ready() (url, kubeconfig, node string) {
	return "https://" + e.o.Listen, e.o.Kubeconfig, e.o.Node
}
func (ended) Settled() <-chan struct{} { return nil }
func (ended) Wait() error              { return errors.New("run controllers: ended") }
func (ended) Stop() error              { return nil }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script"})
}
