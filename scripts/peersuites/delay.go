// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// With -delay, each commit of the store takes longer, as one of etcd does on a disk: a spec that passes only so depends on the time between
// two writes.

// slowEngine is a file of a suite's package: an environment's server with the store's delay.
const slowEngine = `package PACKAGE

import (
	"context"
	"time"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

type slowEngine struct{ store.Engine }

func (e slowEngine) Commit(ctx context.Context, ops ...store.Op) (int64, []*store.Record, error) {
	<-time.After(DELAY)
	return e.Engine.Commit(ctx, ops...)
}

func slowServer() *embed.Server {
	privileged := true
	return &embed.Server{
		Controllers: []string{"none"}, ServiceCIDR: "10.0.0.0/24", Engine: slowEngine{memory.Open(memory.Options{})},
		APIServer: options.APIServer{
			Admission: options.Admission{Disable: []string{"ServiceAccount"}}, Pods: options.Pods{AllowPrivileged: &privileged},
		},
	}
}
`

var (
	clause      = regexp.MustCompile(`(?m)^package (\w+)`)
	environment = []byte("&envtest.Environment{")
)

// slow gives the environment of a suite's package the delay.
func slow(folder string, delay time.Duration) error {
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !bytes.Contains(text, environment) {
			continue
		}
		name := clause.FindSubmatch(text)
		if name == nil {
			return fmt.Errorf("%s has no package clause", file)
		}
		engine := strings.NewReplacer("PACKAGE", string(name[1]), "DELAY", strconv.FormatInt(int64(delay), 10)).Replace(slowEngine)
		if err := os.WriteFile(filepath.Join(folder, "slow_test.go"), []byte(engine), 0o600); err != nil {
			return err
		}
		text = bytes.ReplaceAll(text, environment, []byte(string(environment)+"Server: slowServer(), "))
		return os.WriteFile(file, text, 0o600)
	}
	return fmt.Errorf("no test in %s has an environment", folder)
}
