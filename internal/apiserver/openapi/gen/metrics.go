// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// metricsGroup is the group of metrics-server, whose kinds the server has itself. The module has no documents of them: those in the
// directory metricsserver are what metrics-server 0.9.0 answers, with Kubernetes' title and version.
const metricsGroup = "apis/metrics.k8s.io"

// metrics writes the documents of metrics.k8s.io, as v3 documents and as additions to the v2 document of base.
func metrics(base *spec.Swagger, ix *index) error {
	dir := filepath.Join("gen", "metricsserver")
	for p, file := range map[string]string{metricsGroup: "v3_group.json", metricsGroup + "/v1beta1": "v3_version.json"} {
		doc, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		parsed, err := openapi_v3.ParseDocument(doc)
		if err != nil {
			return fmt.Errorf("parse %s: %w", file, err)
		}
		if ix.V3[p], err = write("v3_"+strings.ReplaceAll(p, "/", "_"), doc, parsed); err != nil {
			return err
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, "v2.json"))
	if err != nil {
		return err
	}
	var doc spec.Swagger
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("parse v2.json: %w", err)
	}
	for name := range doc.Parameters {
		if _, ok := base.Parameters[name]; !ok {
			return fmt.Errorf("there is no parameter %s", name)
		}
	}
	for p, version := range map[string]bool{metricsGroup: false, metricsGroup + "/v1beta1": true} {
		prefix := "/" + p + "/"
		paths := map[string]spec.PathItem{}
		for _, path := range slices.Sorted(maps.Keys(doc.Paths.Paths)) {
			if path == prefix || version && strings.HasPrefix(path, prefix) {
				paths[path] = doc.Paths.Paths[path]
			}
		}
		definitions := spec.Definitions{}
		for name, d := range doc.Definitions {
			if _, known := base.Definitions[name]; !known && version {
				definitions[name] = d
			}
		}
		if err := ix.writePart(p, paths, definitions); err != nil {
			return err
		}
	}
	return nil
}
